"""Every command of the README, in order, against what `tarry up` starts."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.documents import Reader, blocks, output_below, runnable, shows, typed_and_shown
from tests.processes import CLOSED_DOORS, ROOT, environment, free_port

README = (ROOT / "README.md").read_text()


@contextmanager
def up(folder: Path, port: int, **doors: str) -> Iterator[None]:
    """`tarry up`, until it is ready, and after it a clean end."""
    command = [sys.executable, "-m", "tarry", "up", "--port", str(port), "--data", "tarry-data"]
    settings = {
        "TARRY_WEBHOOK__ALLOW": "127.0.0.1",
        "TARRY_LEDGER__SEGMENT_BYTES": "1048576",
        # Nothing on this page waits for it, and this machine has better things to do meanwhile.
        "TARRY_PIPELINE__ENABLED": "false",
        **CLOSED_DOORS,
        **doors,
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
            (shown,) = (output_below(one) for one in blocks("README.md") if one.text == "make run\n")
            assert shown is not None
            assert shows(shown, banner), banner
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


def test_every_block_that_prints_shows_what_to_expect() -> None:
    without = [block.text for block in runnable("README.md") if output_below(block) is None]
    assert without == []


def test_an_output_is_compared_but_for_what_differs_each_time() -> None:
    shown = "id 0123456789abcdef0123456789abcdef  due 2026-11-19T04:40:21.751Z  in 59 min 58 s\n…\nend\n"
    told = "id ffffffffffffffffffffffffffffffff due 2027-01-01T00:00:00.000Z   in 3.0 s  \nx\ny\nend\n"
    assert shows(shown, told)
    assert not shows(shown, told.replace("due", "sent"))
    assert not shows(shown, told.replace("end", "more"))


def test_every_command_works(tmp_path: Path) -> None:
    port, dapr, pulsar = free_port(), free_port(), free_port()
    # The commands as a reader types them, but on ports that are free here.
    swaps = {
        "127.0.0.1:8080": f"127.0.0.1:{port}",
        "localhost:3500": f"127.0.0.1:{dapr}",
        "9000": str(free_port()),
        # It finds bad what this machine may lack (space); the page only shows the command.
        "tarry doctor": "tarry doctor || [ $? = 1 ]",
    }
    doors = {f"TARRY_DOORS__DAPR__{name}": str(value) for name, value in
             (("ENABLED", "true"), ("PORT", dapr), ("GRPC_PORT", 0))}  # fmt: skip
    doors |= {"TARRY_DOORS__PULSAR__ENABLED": "true", "TARRY_DOORS__PULSAR__PORT": str(pulsar)}
    reader = Reader(
        tmp_path, swaps, TARRY_URL=f"http://127.0.0.1:{port}", TARRY_LEDGER__SEGMENT_BYTES="1048576"
    )
    with up(tmp_path, port, **doors):
        # Matrix has a Synapse beside it: tests/conformance/matrix/test_private_homeserver.py.
        told = typed_and_shown(reader, "README.md", lambda block: "tarry matrix" not in block.text)
    assert not [one for one in told if '"status":' in one]
    scheduled, received, plug, webhook, delayed, beside, commands, _, client, many = told
    assert '"id":' in scheduled
    assert '"payload":"good morning"' in received
    assert plug.splitlines()[-1].endswith("still here")
    assert "ce-specversion: 1.0" in webhook
    assert '{"order": 17}' in webhook
    assert delayed.count("order 17") + delayed.count("order-17") >= 2
    assert re.search(r"runs beside shop on [0-9]+\n$", beside)
    assert "cancelled" in commands
    assert client == 'b\'{"text":"good evening"}\' True\n'
    assert many.count('"id":') == 3
