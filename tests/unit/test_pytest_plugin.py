"""The pytest plugin in runs of pytest, and the servers that it starts, with a clock that a test moves."""

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tarry.pytest.server import ServerFailed, Starter, TarryServer
from tests.documents import blocks
from tests.processes import ROOT, environment, tarry
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as made:
        yield made


@pytest.fixture
def server(starter: Starter, tmp_path: Path) -> Iterator[TarryServer]:
    with starter.start(tmp_path, {}) as started:
        yield started


def run_pytest(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A run of pytest in a folder, as its user types it."""
    # A tree that is not installed has no entry points.
    loaded = [] if "tarry" in entry_points(group="pytest11").names else ["-p", "tarry.pytest.plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "pytest.ini", *loaded, *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


# The plugin


def test_the_page_runs_as_printed_and_in_parallel(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    # A configuration in the folder of the tests is not the server's.
    (tmp_path / "tarry.toml").write_text("[http]\nport = 1\n")
    pages = [block for block in blocks("docs/pytest.md") if block.language == "python"]
    for number, block in enumerate(pages):
        (tmp_path / f"test_page_{number}.py").write_text(block.text)
    ended = run_pytest(tmp_path, "-q", "-n", "2", "--dist", "loadfile")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(pages)} passed" in ended.stdout
    assert not _starters_of(tmp_path)


def _starters_of(folder: Path) -> list[str]:
    """Processes that still have the folder of a run as theirs."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if str(folder) in os.readlink(process / "cwd"):
                    found.append(process.name)
            except OSError:
                continue
    return found


def test_pytest_is_told_of_the_plugin_and_it_costs_a_run_nothing(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tarry": "tarry.pytest.plugin"}
    code = (
        "import sys, tarry.pytest.plugin; print([name for name in sys.modules if name.startswith('tarry')])"
    )
    told = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    heavy = {"tarry.client", "tarry.config", "tarry.serve", "tarry.engine"}
    assert not heavy & set(told.stdout.split("'"))


def test_servers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_killed.py").write_text(
        "import os, signal\ndef test_killed(tarry_server): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run_pytest(tmp_path, f"--basetemp={tmp_path / 'temp'}").returncode < 0
    wait_until(lambda: not _starters_of(tmp_path))


# The clock


def test_nothing_goes_out_before_the_clock_shows_its_instant(server: TarryServer) -> None:
    client, clock = server.client, server.clock
    client.subscribe("letters", "me", start="earliest")
    clock.stop()
    began = clock.now()
    scheduled = client.schedule("letters", "x", delay="3d")
    assert clock.advance(timedelta(days=3) - timedelta(milliseconds=1)) - began < timedelta(days=3)
    assert client.receive("letters", "me", wait_ms=0) == []
    assert client.get(scheduled.id).state == "scheduled"
    assert clock.advance(milliseconds=1) == began + timedelta(days=3)
    (entry,) = client.receive("letters", "me", wait_ms=0)
    assert entry.due_at_ms == scheduled.due_at_ms == (began + timedelta(days=3)).timestamp() * 1000
    assert client.warnings() == []


def test_the_clock_goes_on_by_itself_unless_it_is_stopped(server: TarryServer) -> None:
    client, clock = server.client, server.clock
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    clock.advance(days=400)
    client.subscribe("soon", "me", start="earliest")
    client.schedule("soon", "x", delay_ms=50)
    assert len(client.receive("soon", "me", max=1, wait_ms=30_000)) == 1
    clock.stop()
    client.schedule("soon", "y", delay_ms=1)
    assert clock.now() == clock.now()
    assert client.receive("soon", "me", wait_ms=200)[1:] == []
    clock.start()
    began = clock.now()
    wait_until(lambda: clock.now() > began)


def test_an_advance_passes_every_instant_on_the_way(server: TarryServer) -> None:
    client = server.client
    client.subscribe("hourly", "me", start="earliest")
    client.set_repeat("tick", "hourly", "tick", every="1h")
    server.clock.advance(days=1)
    due = [entry.due_at_ms for entry in client.receive("hourly", "me", wait_ms=0)]
    assert len(due) == 24
    assert all(due)


def test_attempts_to_send_are_made_at_their_instants(server: TarryServer) -> None:
    tried: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            tried.append(self.path)
            self.send_response(503 if len(tried) < 3 else 204)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        id_ = server.client.schedule(f"http://127.0.0.1:{busy.server_port}/", "x", delay="1d").id
        server.clock.stop()
        server.clock.advance(days=1)
        assert len(tried) == 1
        server.clock.advance(days=1)
        busy.shutdown()
    assert len(tried) == 3
    assert server.client.get(id_).state == "sent"


def test_the_clock_does_not_go_back(server: TarryServer) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        server.clock.advance(days=-1)


def test_drain_names_the_subscription_that_has_more(server: TarryServer) -> None:
    server.client.subscribe("mine", "slow", start="earliest")
    server.drain()
    server.client.publish("mine", "x")
    with pytest.raises(ServerFailed, match="1 of persistent://public/default/mine by slow"):
        server.drain(timeout_s=0.05)
    (entry,) = server.client.receive("mine", "slow")
    server.client.ack("mine", "slow", [entry.entry_id])
    server.drain()


def test_settings_that_cannot_be_are_told(starter: Starter, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="did you mean TARRY_HTTP__PORT"):
        starter.start(tmp_path, {"http.prt": 1})


def test_no_setting_gives_a_server_another_clock() -> None:
    """The clock of `tarry serve` is the machine's: nothing that it can be told names another."""
    settings = json.loads(tarry("config", "--all", "--json").stdout)
    assert not [name for name in settings if "clock" in name and name != "engine.clock_slack_ms"]
    sources = [*(ROOT / "src/tarry/cli").rglob("*.py"), *(ROOT / "src/tarry/serve").rglob("*.py")]
    assert not [path for path in sources if "moved_clock" in path.read_text()]
