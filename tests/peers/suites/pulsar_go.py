"""apache/pulsar-client-go: the tests of its package `pulsar`, each alone, from the Go module proxy."""

import json
import re
import shutil
from pathlib import Path
from typing import Final

from tests.peers.gotest import read_cases, read_list
from tests.peers.suite import Case
from tests.peers.workplace import Door, Workplace

MODULE: Final = "github.com/apache/pulsar-client-go"
ONE_WITHIN_S: Final = 150


class PulsarGo:
    """See `Suite`."""

    name = "pulsar-go"
    title = "apache/pulsar-client-go `./pulsar`"
    version = "v0.19.0"
    programs = ("go",)
    minutes = 40

    def lacking(self) -> str | None:
        """Nothing beyond Go."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Download, point at the server, build, and run each test by itself."""
        door = Door("pulsar")
        server = workplace.serve(door.config)
        tree = self._tree(workplace, door.port, server.port)
        program = workplace.folder / "pulsar.test"
        workplace.must("go", "test", "-c", "-o", program, "./pulsar", cwd=tree, within_s=1800)
        names = read_list(workplace.must(program, "-test.list", "Test"))
        cases: list[Case] = []
        for name in names:
            if re.search(only, name):
                cases += self._one(workplace, program, tree / "pulsar", name)
                print(f"  {cases[-1].outcome} {name}", flush=True)
        return cases

    def _tree(self, workplace: Workplace, binary: int, web: int) -> Path:
        """The module's files with the ports of this run in place of the default ones."""
        told = workplace.must("go", "mod", "download", "-json", f"{MODULE}@{self.version}")
        tree = workplace.cache / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        # Files of the module cache are read-only.
        shutil.copytree(json.loads(told)["Dir"], tree, copy_function=shutil.copyfile)
        for file in tree.joinpath("pulsar").glob("*_test.go"):
            text = file.read_text("utf-8")
            text = text.replace("localhost:6650", f"localhost:{binary}").replace(
                "localhost:8080", f"localhost:{web}"
            )
            file.write_text(text, "utf-8")
        return tree

    @staticmethod
    def _one(workplace: Workplace, program: Path, cwd: Path, name: str) -> list[Case]:
        limit = f"-test.timeout={ONE_WITHIN_S}s"
        done = workplace.command(
            program, "-test.v", "-test.run", f"^{name}$", limit, cwd=cwd, within_s=ONE_WITHIN_S + 10
        )
        return read_cases(done.stdout) or [Case(name, "failed", done.stdout[-2000:])]


SUITE: Final = PulsarGo()
