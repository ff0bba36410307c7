"""Every command of the README, in order, against what `tarry up` starts."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import CLOSED_DOORS, environment, free_port

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@contextmanager
def up(folder: Path, port: int) -> Iterator[None]:
    """`tarry up`, until it is ready, and after it a clean end."""
    command = [sys.executable, "-m", "tarry", "up", "--port", str(port), "--data", "tarry-data"]
    settings = {
        "TARRY_WEBHOOK__ALLOW": "127.0.0.1",
        "TARRY_LEDGER__SEGMENT_BYTES": "1048576",
        # Nothing on this page waits for it, and this machine has better things to do meanwhile.
        "TARRY_PIPELINE__ENABLED": "false",
        **CLOSED_DOORS,
    }
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            banner = ""
            while f"tarry: ready on http://127.0.0.1:{port}" not in banner:
                line = process.stdout.readline()
                assert line, banner
                banner += line
            assert f"curl -s http://127.0.0.1:{port}/v1/messages" in banner
            # A pipe that nobody reads would stop what writes to it.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_it_begins_with_make_run_and_make_test() -> None:
    assert re.match(r"# Tarry\n\n```\nmake run .*\nmake test ", README)


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parents[2]
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).exists(), target


def test_every_command_works(tmp_path: Path) -> None:
    port, hook = free_port(), free_port()
    # The commands as a reader types them, but on ports that are free here.
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    program = tmp_path / ".venv" / "bin" / "tarry"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tarry "$@"\n')
    program.chmod(0o755)
    settings = environment(
        TARRY_URL=f"http://127.0.0.1:{port}", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    printed = []
    with up(tmp_path, port):
        for block in blocks("sh"):
            text = block.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("9000", str(hook))
            # `doctor` finds bad what this machine may lack (space); the README only shows the command.
            text = text.replace("tarry doctor", "tarry doctor || [ $? = 1 ]")
            ended = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert ended.returncode == 0, (text, ended.stdout, ended.stderr)
            assert '"status":' not in ended.stdout, (text, ended.stdout)
            printed.append(ended.stdout)
        (code,) = blocks("python")
        ended = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:8080", f"127.0.0.1:{port}")],
            env=settings, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ended.stderr == ""
        assert ended.stdout == 'b\'{"text":"good evening"}\' True\n'
    scheduled, received, plug, webhook, commands, many = printed
    assert '"id":' in scheduled
    assert '"payload":"good morning"' in received
    assert plug.splitlines()[-1].endswith("still here")
    assert "ce-specversion: 1.0" in webhook
    assert '{"order": 17}' in webhook
    assert "cancelled" in commands
    assert many.count('"id":') == 3
