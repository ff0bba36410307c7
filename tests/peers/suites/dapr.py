"""dapr/dapr: the integration tests of its runtime for pub/sub, from the Go module proxy, on sidecars that are Tarry's."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.peers.daprd import script
from tests.peers.suite import Case, Outcome
from tests.peers.workplace import Workplace

MODULE: Final = "github.com/dapr/dapr"
VERSION: Final = "v1.18.0"
"""Later ones need modules that the proxy does not have."""
PACKAGES: Final = "tests/integration"
OTHERS: Final = ("placement", "sentry", "operator", "injector", "scheduler", "helmtemplate", "mcpstdioserver")
"""Programs that the suite would build before it begins; no case that is run here starts one."""
IMPORTS: Final = {
    "": ("metadata", "pubsub", "subscriptions"),
    "suite/daprd/metadata": (),
    "suite/daprd/subscriptions/declarative": ("subscriptions/declarative/selfhosted",),
}
"""By folder: the packages of cases that are compiled in, all below `suite/daprd`. The rest needs Kubernetes or actors."""
_VERDICT: Final = re.compile(r"^    --- (PASS|FAIL|SKIP): Test_Integration/(daprd/\S+) \(", re.MULTILINE)
_ERROR: Final = re.compile(r"Error:      \t(?:(?!Error:      ).)*?Test:       \t[^\n]*", re.DOTALL)
_OUTCOMES: Final[dict[str, Outcome]] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
CASE_WITHIN_S: Final = 60
CASES: Final = 107


class Dapr:
    """See `Suite`."""

    name = "dapr"
    title = "dapr/dapr `tests/integration`, pub/sub"
    version = VERSION
    programs = ("go",)
    minutes = 20

    def lacking(self) -> str | None:
        """Nothing beyond Go."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Download, leave the other cases out, build, and run one case after another."""
        tree = module_tree(workplace)
        for folder, packages in IMPORTS.items():
            _import_only(tree / PACKAGES / folder, packages)
        _reserve_low_ports(tree / PACKAGES / "framework/process/ports/ports.go")
        program = workplace.folder / "integration.test"
        command = ("go", "test", "-c", "-tags", "integration", "-o", program, f"./{PACKAGES}")
        workplace.must(*command, cwd=tree, within_s=3600, env={"CGO_ENABLED": "0"})
        sidecar = str(script(workplace.folder / "daprd"))
        paths = {f"DAPR_INTEGRATION_{name.upper()}_PATH": sidecar for name in ("daprd", *OTHERS)}
        limit_s = CASE_WITHIN_S * CASES
        done = workplace.command(
            program, "-test.v", f"-test.timeout={limit_s}s", "-integration-parallel=false", "-focus", only or ".*",
            cwd=tree / PACKAGES, within_s=limit_s + 60, env=paths,
        )  # fmt: skip
        return read_cases(done.stdout)


def module_tree(workplace: Workplace) -> Path:
    """A copy of Dapr's files, in the cache, that may be written to."""
    told = workplace.must("go", "mod", "download", "-json", f"{MODULE}@{VERSION}", within_s=1800)
    tree = workplace.cache / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    # Files of the module cache are read-only.
    shutil.copytree(json.loads(told)["Dir"], tree, copy_function=shutil.copyfile)
    for folder in (tree, *(one for one in tree.rglob("*") if one.is_dir())):
        folder.chmod(0o755)
    return tree


def _import_only(folder: Path, packages: Sequence[str]) -> None:
    """Make the one file of a folder that imports packages of cases import these alone."""
    (file,) = (
        one for one in folder.glob("*.go") if f'_ "{MODULE}/{PACKAGES}/suite/' in one.read_text("utf-8")
    )
    found = re.search(r"^package \w+$", file.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    lines = "".join(f'\t_ "{MODULE}/{PACKAGES}/suite/daprd/{package}"\n' for package in packages)
    file.write_text(f"{found[0]}\n\nimport (\n{lines})\n", "utf-8")


def _reserve_low_ports(file: Path) -> None:
    """Have the suite take ports that the system does not give to connections.

    It lets go of them before a sidecar binds them; as root it takes those from 40000 on, which others connect from.
    """
    text = file.read_text("utf-8")
    assert "return 40000" in text
    file.write_text(text.replace("return 40000", "return 10000"), "utf-8")


def read_cases(output: str) -> list[Case]:
    """The cases of an output with their verdicts; parts of a case are not counted."""
    began = re.findall(r"^=== RUN   Test_Integration/(daprd/\S+)$", output, re.MULTILINE)
    verdicts = {name: _OUTCOMES[verdict] for verdict, name in _VERDICT.findall(output)}
    names = dict.fromkeys(name.partition("/run")[0] for name in began)
    return [_case(name, verdicts.get(name, "failed"), output) for name in names]


def _case(name: str, outcome: Outcome, output: str) -> Case:
    """A case; of a failed one with the errors that the suite names it in."""
    if outcome != "failed":
        return Case(name, outcome)
    errors = [found for found in _ERROR.findall(output) if f"Test_Integration/{name}/" in f"{found}/"]
    return Case(name, outcome, "\n".join(errors)[:4000] or "it has no verdict: it hung, or ended the process")


SUITE: Final = Dapr()
