"""A real server in a process of its own, for tests that need one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def environment(**settings: str) -> dict[str, str]:
    """The environment of a child, without what the tester's own shell has set for Tarry."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
    return kept | {"PYTHONPATH": str(SOURCE), **settings}


class Running:
    """A server process that is ready."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def start(data: Path, *options: str, **settings: str) -> Running:
    """Start a server on a free port and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tarry", "serve", "--data", str(data), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Not the repository: a tarry.toml that happens to lie there is none of the test's business.
        cwd=data.parent,
        env=environment(TARRY_LEDGER__SEGMENT_BYTES="1048576", **settings),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("tarry: ready on "):
        process.kill()
        process.wait()
        process.stdout.close()
        raise AssertionError(f"the server did not start: {line!r}")
    return Running(process, line.removeprefix("tarry: ready on ").strip())


@contextmanager
def running(data: Path, *options: str, **settings: str) -> Iterator[Running]:
    """A server that ends with the test."""
    server = start(data, *options, **settings)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        assert server.process.stdout is not None
        server.process.stdout.close()


def tarry(*arguments: str, stdin: str | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tarry", *arguments],
        capture_output=True, text=True, input=stdin, timeout=60, env=environment(**settings), cwd="/",
    )  # fmt: skip
