"""apache/pulsar-client-python: its `tests/`, each case alone, with the client from PyPI.

The tests are in no package, so that they are run only where a folder with them is given: `PULSAR_PYTHON_TESTS=`. It is the
`tests` of a checkout at the version below.
"""

import contextlib
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.peers.pulsar import point, run_each, serve_pair
from tests.peers.suite import Case
from tests.peers.workplace import Workplace

FOLDER: Final = "PULSAR_PYTHON_TESTS"
ONE_WITHIN_S: Final = 120
APART: Final = ("oauth2_test.py", "auto_cluster_failover_test.py")
"""Files that need an identity provider in the internet, or start Pulsar's containers."""
NEEDED: Final = ("fastavro", "protobuf", "pytest", "ratelimit", "requests")

_ELSEWHERE: Final = re.compile(r"192\.0\.2\.1:[0-9]+")
"""An address of documentation, at which nobody answers. No test leaves this machine."""


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port of this machine at which nobody answers: its queue of connections is full, and nobody takes one."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


class PulsarPython:
    """See `Suite`."""

    name = "pulsar-python"
    title = "apache/pulsar-client-python `tests/`"
    version = "3.13.0"
    programs = ()
    minutes = 12

    def lacking(self) -> str | None:
        """The folder with the tests."""
        folder = os.environ.get(FOLDER)
        if not folder:
            return f"{FOLDER} names no folder with the tests"
        return (
            None if (Path(folder) / "pulsar_test.py").is_file() else f"there is no pulsar_test.py in {folder}"
        )

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Copy the tests, point them at the servers, install the client, and run each test by itself."""
        tests = workplace.folder / "tests"
        shutil.copytree(os.environ[FOLDER], tests)
        for name in APART:
            (tests / name).unlink(missing_ok=True)
        # Any token does: servers on loopback without tokens are open.
        (tests / ".test-token.txt").write_text("none")
        namespaces = ["private/auth", *(f"public/default-{number}" for number in (2, 3, 4))]
        point(tests.glob("*.py"), serve_pair(workplace, tests / "test-conf", namespaces))
        with silent_port() as port:
            for file in tests.glob("*.py"):
                file.write_text(_ELSEWHERE.sub(f"127.0.0.1:{port}", file.read_text("utf-8")), "utf-8")
            return self._run(workplace, tests, only)

    def _run(self, workplace: Workplace, tests: Path, only: str) -> list[Case]:
        python = self._python(workplace)
        told = workplace.must(
            python, "-m", "pytest", "--collect-only", "-q", *sorted(tests.glob("*_test.py")), cwd=tests
        )
        names = [line for line in told.splitlines() if "::" in line]

        def one(name: str) -> list[Case]:
            # One of them interrupts itself, which a run in the background has been told to ignore.
            done = workplace.command(
                "env",
                "--default-signal=INT",
                python,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                name,
                cwd=tests,
                within_s=ONE_WITHIN_S,
            )
            if done.returncode == 0:
                return [
                    Case(name, "skipped" if re.search(r"^1 skipped", done.stdout, re.MULTILINE) else "passed")
                ]
            return [Case(name, "failed", done.stdout[-2000:])]

        return run_each([name for name in names if re.search(only, name)], one)

    def _python(self, workplace: Workplace) -> Path:
        """An interpreter that has the client and what its tests need."""
        python = workplace.cache / "venv" / "bin" / "python"
        if not python.exists():
            workplace.must(sys.executable, "-m", "venv", workplace.cache / "venv")
        workplace.must(python, "-m", "pip", "install", "-q", f"pulsar-client=={self.version}", *NEEDED)
        return python


SUITE: Final = PulsarPython()
