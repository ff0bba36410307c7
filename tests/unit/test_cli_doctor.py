import json
import os
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tarry.cli import checks
from tarry.cli.checks import (
    check_clock,
    check_clock_since,
    check_folder,
    check_java,
    check_pipeline,
    check_server,
    check_sync,
    check_tables,
)
from tarry.cli.finding import CheckResult
from tarry.cli.ports import ConfiguredPort, check_port, check_ports, ports_of
from tarry.config import load
from tarry.index.progress import FRESH_MS, Progress, write_progress
from tarry.serve.datafolder import DataFolder
from tests.processes import running
from tests.unit.cli_kit import Shell


def levels(findings: list[CheckResult]) -> dict[str, str]:
    return {finding.about: finding.level for finding in findings}


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    assert levels(list(check_folder(tmp_path / "a" / "b"))) == {"data folder": "ok"}
    assert not (tmp_path / "a").exists()
    assert levels(list(check_folder(Path("/proc/none/such")))) in (
        {"data folder": "bad"},
        {"data folder": "ok"},
    )


def test_a_folder_in_use_says_by_whom_and_its_key_must_be_private(tmp_path: Path) -> None:
    with DataFolder.open(tmp_path) as folder:
        folder.id_key()
        found = list(check_folder(tmp_path))
        assert "in use by the server with pid" in found[0].text
        assert levels(found) == {
            "data folder": "ok",
            "id key": "ok",
            "disk space": levels(found)["disk space"],
        }
    assert "no server uses it" in next(iter(check_folder(tmp_path))).text
    (tmp_path / "id.key").chmod(0o644)
    assert levels(list(check_folder(tmp_path)))["id key"] == "bad"
    (tmp_path / "id.key").unlink()
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "x").touch()
    assert levels(list(check_folder(tmp_path)))["id key"] == "bad"


def test_tables_elsewhere_that_everybody_can_read_are_told(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    config = load(
        environment={}, overrides={"data": str(tmp_path / "data"), "pipeline.tables": str(tables)}
    ).config
    assert list(check_tables(config)) == []
    (tables / "index").mkdir(parents=True, mode=0o755)
    (tables / "history").mkdir(mode=0o700)
    (found,) = check_tables(config)
    assert (found.level, f"chmod o-rwx {tables / 'index'}" in found.text) == ("note", True)
    inside = load(environment={}, overrides={"data": str(tmp_path)}).config
    assert list(check_tables(inside)) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert levels(list(check_folder(tmp_path / "f"))) == {"data folder": "bad"}


def test_little_space_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LOW_SPACE_BYTES", 1 << 60)
    assert levels(list(check_folder(tmp_path)))["disk space"] == "bad"


def test_the_disk_is_timed_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_sync(tmp_path / "not-yet")
    assert found.level in ("ok", "note")
    assert "ms (median of 30" in found.text
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(checks, "SLOW_SYNC_MS", -1.0)
    assert check_sync(tmp_path).level == "note"


def test_a_clock_that_jumps_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock().level in ("ok", "note")
    ticks = iter([2e9, 2e9 + 5])
    monkeypatch.setattr("tarry.cli.checks.time.time", lambda: next(ticks))
    assert "jumped" in check_clock().text


def test_a_clock_before_this_program_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.cli.checks.time.time", lambda: 0.0)
    assert check_clock().level == "bad"


@pytest.mark.parametrize(
    ("printed", "level"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_402"', "note"),
        ('openjdk version "11.0.2"', "note"),
        ("what?", "note"),
    ],
)
def test_java_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, level: str
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java().level == level


def test_no_java_is_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "apt-get install default-jre-headless" in check_java().text


def test_a_port_that_somebody_else_has_is_bad() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        port = ConfiguredPort("127.0.0.1", number, "doors.pulsar.port", opened=True)
        found = check_port(port, None)
        assert (found.level, "set doors.pulsar.port" in found.text) == ("bad", True)
        # Only `tarry up` would open it.
        assert check_port(port._replace(opened=False), None).level == "note"
        # It is this process that listens, and not its parent.
        assert check_port(port, os.getpid()).level == "ok"
        assert check_port(port, os.getppid()).level == "bad"
    assert check_port(port, None).text == "free (doors.pulsar.port)"


def test_the_ports_of_every_door_are_looked_at() -> None:
    apps = json.dumps([{"app_id": "two", "port": 3600, "grpc_port": 0}])
    variables = {"TARRY_DOORS__DAPR__APPS": apps, "TARRY_DOORS__MATRIX__ENABLED": "false"}
    config = load(environment=variables).config
    assert {port.setting: port.port for port in ports_of(config)} == {
        "http.port": 8080,
        "doors.pulsar.port": 6650,
        "doors.dapr.port": 3500,
        "doors.dapr.grpc_port": 50001,
        "doors.dapr.apps[0].port": 3600,
        "doors.dapr.apps[0].grpc_port": 0,
    }
    assert not [found for found in check_ports(config, None) if found.about == "port 0"]


def test_a_clock_that_is_behind_the_ledger_is_bad(tmp_path: Path) -> None:
    assert list(check_clock_since(tmp_path / "none", 0.0)) == []
    (tmp_path / "head").touch()
    now_s = time.time()
    assert list(check_clock_since(tmp_path, now_s)) == []
    (found,) = check_clock_since(tmp_path, now_s - 3600)
    assert (found.level, found.text.startswith("3600 s behind")) == ("bad", True)


def test_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # What this machine lacks is not what is tested here.
    monkeypatch.setattr(checks, "LOW_SPACE_BYTES", 0)
    tarry = Shell(monkeypatch, capsys)
    with running(tmp_path / "d") as server:
        assert check_server(server.url, None, server.pid) == CheckResult(
            "server", "ok", f"{server.url} is ready"
        )
        for other in (None, os.getpid()):
            found_other = check_server(server.url, None, other)
            assert (found_other.level, "not the server of this data folder" in found_other.text) == (
                "note",
                True,
            )
        tarry.set("TARRY_DATA", str(tmp_path / "d"))
        tarry.set("TARRY_HTTP__PORT", str(server.port))
        ended = tarry("doctor", "--json")
        found = {finding["about"]: finding for finding in ended.json()}
        assert ended.code == 0, ended.out
        assert found["server"]["level"] == "ok"
        assert f"pid {server.pid}" in found["data folder"]["text"]
        assert found[f"port {server.port}"]["text"] == f"the server with pid {server.pid} listens (http.port)"
    tarry.set("TARRY_NONSENSE", "1")
    ended = tarry("doctor")
    assert ended.code == 1
    assert "bad   configuration" in ended.out
    assert "note  server" in ended.out


def test_the_pipeline_says_how_far_it_is_or_what_stopped_it(tmp_path: Path) -> None:
    assert check_pipeline(tmp_path, 0).level == "note"
    progress = Progress(
        state="running", at_ms=100_000, pid=os.getpid(), durable_seq=50, cursor=20, behind_ms=9_000, last_commit_at_ms=90_000
    )  # fmt: skip
    write_progress(tmp_path, progress)
    found = check_pipeline(tmp_path, 100_000)
    assert found.level == "ok"
    assert f"pid {os.getpid()}; 30 records behind for 9 s; last commit 10 s ago, up to seq 20" in found.text
    assert "does not run" in check_pipeline(tmp_path, 100_000 + FRESH_MS).text
    # A pipeline that was killed while it started has not said so.
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    for pid, said in ((os.getpid(), f"starting, pid {os.getpid()}"), (ended.pid, "does not run")):
        write_progress(tmp_path, Progress(state="starting", at_ms=100_000, pid=pid))
        assert said in check_pipeline(tmp_path, 100_000).text
        assert "up to date" not in check_pipeline(tmp_path, 100_000).text
    write_progress(tmp_path, Progress(state="failed", at_ms=100_000, failure="no Java"))
    found = check_pipeline(tmp_path, 100_000)
    assert (found.level, "its last error: no Java" in found.text) == ("note", True)
