#!/usr/bin/env bash
# Other people's linters, in .cache/linters, for what Tarry publishes: manifests, chart, alert rules, the OpenAPI document.
#
#   tools/linters.sh             all of them: Go builds helm (two minutes of a core), kubeconform and the Compose loader (one)
#   tools/linters.sh prometheus  only this one (or: helm kubeconform compose schemas spectral)
#
# One that cannot be had does not keep the others away; the exit status is 1 then.
# Nothing is installed outside the folder, and nothing is started. Go and npm check what they fetch by their own sums.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$PWD/.cache/linters
mkdir -p "$folder/bin"

HELM=helm.sh/helm/v3/cmd/helm@v3.22.0
KUBECONFORM=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
COMPOSE=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
SPECTRAL=@stoplight/spectral-cli@6.16.3
SCHEMAS=kubernetes-validate==1.37.0

have() {
  [ -x "$folder/bin/$1" ]
}

# go_install NAME PACKAGE: build a program of Go's module proxy.
go_install() {
  have "$1" && return
  command -v go >/dev/null 2>&1 || { echo "go is missing: install Go 1.25 or later" >&2; return 1; }
  echo "Building $2 (once) ..." >&2
  local built
  built=$(mktemp -d -p "$folder")
  # What Go fetches and compiles for it, half a gigabyte, is not left in anybody's home.
  GOBIN=$built GOMODCACHE=$built/fetched GOCACHE=$built/compiled GOFLAGS="$(go env GOFLAGS) -modcacherw" \
    go install "$2" 2>&1 | grep -v '^go: downloading' >&2 || true
  mv "$built/$(basename "${2%@*}")" "$folder/bin/$1"
  rm -rf "$built"
}

helm() { go_install helm "$HELM"; }
kubeconform() { go_install kubeconform "$KUBECONFORM"; }
# The loader and the checks of `docker compose config`.
compose() { go_install compose-spec "$COMPOSE"; }

# Kubernetes' own schemas, out of a package of PyPI that ships them.
schemas() {
  [ -d "$folder/schemas" ] && return
  local fetched
  fetched=$(mktemp -d)
  ${PYTHON:-python3} -m pip download --quiet --retries 1 --disable-pip-version-check --no-deps --dest "$fetched" "$SCHEMAS"
  ${PYTHON:-python3} -m zipfile -e "$fetched"/*.whl "$fetched/out"
  mkdir "$folder/schemas.new"
  mv "$fetched"/out/kubernetes_validate/kubernetes-json-schema/v1.{29,34}.0-local-strict "$folder/schemas.new"
  # They refer to each other by addresses; here they are files.
  sed -i -e 's#"/api/_definitions.json#"_definitions.json#' -e 's#^  "$id": .*#  "$comment": ""#' "$folder"/schemas.new/*/*.json
  mv "$folder/schemas.new" "$folder/schemas"
  rm -r "$fetched"
}

# Debian's package is unpacked and not installed: nothing is to be started.
prometheus() {
  have promtool && return
  command -v apt-get >/dev/null 2>&1 || { echo "promtool comes from Debian's package prometheus" >&2; return 1; }
  local fetched
  fetched=$(mktemp -d)
  chmod 755 "$fetched"
  (cd "$fetched" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } >&2)
  dpkg-deb -x "$fetched"/prometheus_*.deb "$fetched/out"
  mv "$fetched"/out/usr/bin/{prometheus,promtool} "$folder/bin"
  rm -r "$fetched"
}

spectral() {
  have spectral && return
  command -v npm >/dev/null 2>&1 || { echo "npm is missing: install Node.js 18 or later" >&2; return 1; }
  echo "Installing $SPECTRAL (once) ..." >&2
  npm install --silent --fetch-retries 1 --no-audit --no-fund --prefix "$folder/spectral" "$SPECTRAL" >&2
  ln -sf ../spectral/node_modules/.bin/spectral "$folder/bin/spectral"
}

if [ $# -eq 1 ]; then
  "$1"
  exit
fi
[ $# -gt 0 ] || set -- prometheus schemas kubeconform spectral helm compose
failed=()
for one in "$@"; do
  # In a shell of its own: a function that is asked whether it failed does not stop at its first error.
  "$folder/../../tools/linters.sh" "$one" || failed+=("$one")
done
[ ${#failed[@]} -eq 0 ] || { echo "Not installed: ${failed[*]}" >&2; exit 1; }
