# Tarry: every task of the project. `make` alone lists them.
# Each target does the set-up it needs; the second time that costs next to nothing.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON  ?= python3
ARGS    ?=
SEEDS   ?= 10000
MINUTES ?= 30
ROUNDS  ?= 16
export PYTHON
# Every command of Tarry reads hundreds of modules: without their bytecode each start would compile them again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# Folders that hold Python of ours (bench/ and others may be absent in a partial checkout).
CODE := $(wildcard src tests bench demo tools examples)

# Workers get whole files, or folders that share something costly, those that take longest first (tests/conftest.py).
# There are more of them than cores, since much of the time is spent waiting for an instant or a server.
WORKERS ?= 4
# A worker that dies is not replaced: the run fails and says which test it was at, instead of waiting for it.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

##@ Every day

.PHONY: help
help: ## list the targets and what they do
	@awk 'BEGIN { FS = ":.*## "; print "make TARGET, where TARGET is one of" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@printf '\nThe first run of a target sets up .venv; nothing outside this folder is touched,\n'
	@printf 'except that root on Debian gets the packages python3-venv, default-jre-headless and chromium, and for\n'
	@printf 'the tests redis-server, rabbitmq-server and nats-server, none of which is started as a service;\n'
	@printf 'for `make container` podman, runc, netavark and mmdebstrap.\n'

.PHONY: run
run: .base .java ## start Tarry here: server and pipeline (ARGS="--data DIR ..." goes to `tarry up`)
	@exec $(BIN)/tarry up $(ARGS)

.PHONY: test
test: .dev .java .browser .linters ## everything that must hold before a push: lint, then all tests but the soak
	@# Beside the types, which take one core: what the workers would each make for themselves, Spark's archive and bytecode.
	@($(BIN)/python -m tests.pipeline.archive; $(BIN)/python -m pytest --collect-only -qq >/dev/null) & \
		$(MAKE) lint; code=$$?; wait; exit $$code
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

.PHONY: lint
lint: .dev ## style, types and the direction of imports
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --quiet --check $(CODE) || \
		{ echo 'These files are not formatted; type: make format' >&2; $(BIN)/ruff format --check $(CODE); }
	@$(BIN)/mypy --no-error-summary $(CODE)
	@report=$$($(BIN)/lint-imports --no-logo 2>&1) || { printf '%s\n' "$$report" >&2; exit 1; }
	@echo 'lint: style, types and imports are as they should be'

.PHONY: format
format: .dev ## rewrite the code in the project's style
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

##@ Tests by kind

.PHONY: unit
unit: .dev ## only the quick tests: unit and property (ARGS="-k wheel" and the like go to pytest)
	@$(BIN)/python -m pytest -p no:schemathesis $(wildcard tests/unit tests/property) $(ARGS)

.PHONY: simulate
simulate: .dev ## crash and clock simulation, SEEDS=10000 of them (ten minutes); a failure prints its seed
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) $(ARGS)

.PHONY: mutants
mutants: .dev ## make each kept dangerous change and see that a test notices: about an hour (ARGS="--part ledger --match sync")
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: soak
soak: .dev .java ## kill the real server and pipeline under load for MINUTES=30, auditing what arrived
	@$(BIN)/python -m tests.crash.soak --minutes $(MINUTES) $(ARGS)

.PHONY: cluster
cluster: .dev .java ## unmodified clients across a takeover, then faults of brokers, servers and links under load, ROUNDS=16 of them (about half a minute each), with an audit (needs mvn)
	@$(BIN)/python -m pytest -m soak tests/cluster
	@$(BIN)/python -m tests.cluster --rounds $(ROUNDS) $(ARGS)

.PHONY: linearizable
linearizable: .dev ## record concurrent commands on real servers for MINUTES=30 and check that they are linearizable
	@$(BIN)/python -m tests.linearizability --minutes $(MINUTES) $(ARGS)

.PHONY: fuzz
fuzz: .dev ## feed every door of a real server what it accepts, SEEDS=20 times, about a minute each; a failure prints its seed
	@GRPC_VERBOSITY=ERROR $(BIN)/python -m tests.fuzz $(if $(filter command line environment,$(origin SEEDS)),--seeds $(SEEDS)) $(ARGS)

.PHONY: container
container: .dev ## build the container file and run the image, as root on Debian: five minutes and 4 GB of disk
	@$(BIN)/python -m pytest -m soak -o faulthandler_timeout=1800 tests/system $(ARGS)

.PHONY: deploy-lint
deploy-lint: .dev ## check deploy/ and the OpenAPI document with helm, kubeconform, Compose's loader, promtool and spectral: minutes the first time
	@PYTHON=$(BIN)/python tools/linters.sh
	@$(BIN)/python -m pytest tests/deploy $(ARGS)

.PHONY: peers
peers: .dev ## run suites that others wrote and write docs/conformance.md: about an hour and a half (ARGS="--only pulsar-go")
	@$(BIN)/python -m tests.peers $(ARGS)

.PHONY: demo
demo: .dev .java ## every door with its real client, a crash in the middle, and the audit's verdict (about a minute)
	@$(BIN)/python -m demo $(ARGS)

.PHONY: cluster-demo
cluster-demo: .dev .java ## three brokers and two servers with a client at every door; the owner is killed, then a broker (two or three minutes; needs mvn)
	@$(BIN)/python -m demo.cluster $(ARGS)

.PHONY: bench
bench: .dev .java ## measure Tarry beside its peers: 40 minutes; in parts: ARGS="--only schedule,lateness" (--help lists them); with another commit in turns: ARGS="--against REV"
	@$(BIN)/python -m bench $(ARGS)

.PHONY: bench-many
bench-many: .dev .java ## the part with a hundred million messages that wait: half an hour and 20 GB of disk
	@$(BIN)/python -m bench --only many $(ARGS)

.PHONY: load-matrix
load-matrix: .dev ## 10,000 participants of conferences on the Matrix door, for ten minutes (ARGS="--minutes 1")
	@$(BIN)/python -m bench.matrix_load $(ARGS)

.PHONY: typescript
typescript: .base ## build the TypeScript client in clients/typescript, its types from this tree's OpenAPI document (needs npm)
	@tools/typescript-client.sh

.PHONY: lighthouse
lighthouse: .dev .browser ## Lighthouse's scores of every page of the dashboard: five minutes (ARGS="--desk", "--only topics"; needs npm)
	@cd tests/browser/npm && npm ci --silent --no-audit --no-fund
	@$(BIN)/python -m tests.browser.lighthouse $(ARGS)

.PHONY: docs
docs: .dev ## build the documentation site in build/site; a broken link fails (ARGS=--serve shows it on port 8000)
	@$(BIN)/python tools/docs_site.py $(ARGS)

##@ Upkeep

# Compiled with the oldest Python that is supported, so that every pinned version exists for it.
# No option, index or host of the machine that compiled is written into the locks.
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --unsafe-package tarry --strip-extras --no-header \
	--no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

.PHONY: lock
lock: .dev ## compile pyproject.toml and requirements/*.in into the locks (ARGS=--upgrade for newer transitive versions)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and \
		"Locks are compiled with Python 3.11. Type: make clean lock PYTHON=python3.11")'
	@$(COMPILE) $(ARGS) --output-file requirements/base.txt --extra all pyproject.toml requirements/base.in
	@# The extras name each other and so tarry itself, which no lock can hold: pip-compile says so at the end.
	@sed -i '/^# WARNING: /,$$d' requirements/base.txt
	@$(COMPILE) $(ARGS) --output-file requirements/dev.txt requirements/dev.in
	@$(COMPILE) $(ARGS) --output-file src/tarry/homeserver/synapse.txt requirements/synapse.in
	@! grep -nE '://|^ *--(index|extra-index|find-links|trusted)' requirements/*.txt || \
		{ echo 'A lock names an address: see above.' >&2; exit 1; }

.PHONY: proto
proto: .dev ## compile the .proto files into the modules beside them
	@cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		tarry/doors/pulsar/wire.proto tarry/doors/dapr/delayed.proto

.PHONY: manifests
manifests: .dev ## write deploy/kubernetes from the chart in deploy/helm
	@tools/linters.sh helm
	@$(BIN)/python -m tests.deploy.manifests

.PHONY: clean
clean: ## remove the environment, caches and build products (never data)
	@rm -rf .venv .setup.lock build dist .cache .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@rm -rf src/*.egg-info

# Set-up steps. They look at content, not at times of change, so they are no file targets.
.PHONY: .base .dev .java .browser .linters
.base:
	@tools/python-env.sh base
.dev:
	@tools/python-env.sh dev
.java:
	@tools/java-check.sh
.browser:
	@tools/browser.sh
.linters: .dev
	@PYTHON=$(BIN)/python timeout 1200 tools/linters.sh || \
		echo 'Without these linters their tests of deploy/ and of the OpenAPI document are skipped.' >&2
