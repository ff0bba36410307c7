"""apache/pulsar-client-go: the tests of its package `pulsar`, each alone, from the Go module proxy."""

import json
import re
import shutil
from pathlib import Path
from typing import Final

from tests.peers.gotest import read_cases, read_list
from tests.peers.pulsar import point, run_each, serve_pair
from tests.peers.suite import Case
from tests.peers.workplace import Workplace

MODULE: Final = "github.com/apache/pulsar-client-go"
ONE_WITHIN_S: Final = 150


class PulsarGo:
    """See `Suite`."""

    name = "pulsar-go"
    title = "apache/pulsar-client-go `./pulsar`"
    version = "v0.19.0"
    programs = ("go",)
    minutes = 25

    def lacking(self) -> str | None:
        """Nothing beyond Go."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Download, point at the servers, build, and run each test by itself."""
        tree = self._tree(workplace)
        certs = tree / "integration-tests" / "certs"
        ports = serve_pair(workplace, certs, ["private/auth"], max_message_bytes=1 << 20)
        # The client of the administration has its address in its code, and not only in tests.
        point(tree.rglob("*.go"), ports)
        program = workplace.folder / "pulsar.test"
        workplace.must("go", "test", "-c", "-o", program, "./pulsar", cwd=tree, within_s=1800)
        names = read_list(workplace.must(program, "-test.list", "Test"))

        def one(name: str) -> list[Case]:
            return self._one(workplace, program, tree / "pulsar", name)

        return run_each([name for name in names if re.search(only, name)], one)

    def _tree(self, workplace: Workplace) -> Path:
        """The module's files."""
        told = workplace.must("go", "mod", "download", "-json", f"{MODULE}@{self.version}")
        tree = workplace.cache / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        # Files of the module cache are read-only.
        shutil.copytree(json.loads(told)["Dir"], tree, copy_function=shutil.copyfile)
        return tree

    @staticmethod
    def _one(workplace: Workplace, program: Path, cwd: Path, name: str) -> list[Case]:
        limit = f"-test.timeout={ONE_WITHIN_S}s"
        done = workplace.command(
            program, "-test.v", "-test.run", f"^{name}$", limit, cwd=cwd, within_s=ONE_WITHIN_S + 10
        )
        return read_cases(done.stdout) or [Case(name, "failed", done.stdout[-2000:])]


SUITE: Final = PulsarGo()
