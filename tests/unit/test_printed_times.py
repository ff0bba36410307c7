"""Every printed time carries its zone: all that a server's commands print is read, and searched for times without one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tarry import Client
from tarry.cli import report as report_command
from tarry.pipeline.report.page import page_of
from tarry.pipeline.report.report import COMING, Bar, Report
from tests.processes import SMALL, ServerProcess, free_port, running
from tests.unit.cli_kit import Shell
from tests.waiting import wait_until

TIME: Final = re.compile(r"(?:\d{4}-\d\d-\d\d[T ])?(?<![\d.:+-])\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?![\d:])")
ZONE: Final = re.compile(r"Z\b| ?UTC\b| ?[+-]\d\d:?\d\d\b")
DAY: Final = re.compile(r"\d{4}-\d\d-\d\d(?![T \d-])")
AT: Final = "2100-01-01T12:30:00+05:30"


def without_zone(text: str) -> list[str]:
    """The times in a text that say nothing of their zone, with what is around them."""
    found = [one for one in TIME.finditer(text) if not ZONE.match(text, one.end())]
    return [text[max(0, one.start() - 30) : one.end() + 10] for one in [*found, *DAY.finditer(text)]]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("due 2026-11-19T04:40:21.751Z  in 3 d", 0),
        ("2026-11-19 04:40:21Z", 0),
        ("2026-11-19 04:40 UTC, 2026-11-19T04:40+01:00 and 21:34:41 UTC", 0),
        ("http://127.0.0.1:8080 [::1]:8080 21:0:-1", 0),
        ("due 2026-11-19T04:40:21.751  in 3 d", 1),
        ("2026-11-19 04:40:21 x", 1),
        ("at 04:40", 1),
        ("21:34:41  struck", 1),
        ("on 2026-11-19", 1),
    ],
)
def test_the_search_finds_what_it_should(text: str, count: int) -> None:
    assert len(without_zone(text)) == count, text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = (
        f'{SMALL}[doors.pulsar]\nenabled = true\nport = {free_port()}\n[webhook]\nallow = ["127.0.0.1"]\n'
    )
    with running(tmp_path_factory.mktemp("times") / "data", config) as started:
        yield started


@pytest.fixture
def tarry(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Shell:
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsys)
    shell.set("TARRY_URL", server.url)
    # Wide enough for whole tables, and in a zone that is not that of the output.
    shell.set("COLUMNS", "300")
    shell.set("TZ", "Asia/Kolkata")
    return shell


def test_every_time_that_a_command_prints_has_its_zone(
    tarry: Shell, server: ServerProcess, tmp_path: Path
) -> None:
    printed: dict[str, str] = {}

    def typed(*arguments: str) -> str:
        """Type a command, for people and for machines."""
        name = " ".join(arguments[: 2 if arguments[0] in ("repeat", "commands", "pulsar", "bulk") else 1])
        ended = tarry(*arguments)
        assert ended.code in (0, 1) if name == "doctor" else ended.code == 0, (arguments, ended)
        printed[name] = printed.get(name, "") + ended.out + ended.err
        return ended.out.strip()

    id_ = typed("schedule", "far", "x", "--at", AT, "--owner", "ann", "--name", "n")
    near = typed("schedule", "near", "x", "--in", "1ms")
    failing = typed("schedule", f"http://127.0.0.1:{free_port()}/hook", "x", "--in", "1ms")
    with Client(server.url) as client:
        wait_until(lambda: client.get(near).state == "sent")
        wait_until(lambda: client.get(failing).attempts > 1)
    for one in (id_, near, failing):
        typed("show", one)
        typed("show", one, "--json")
    for more in ([], ["--json"], ["--state", "retrying"]):
        typed("list", *more)
    typed("restart", id_, "--at", AT)
    typed("pause", id_)
    typed("show", id_)
    typed("resume", id_)
    typed("pause", "--owner", "bob")
    typed("pauses")
    typed("pauses", "--json")
    typed("send", id_)
    typed("tail", "near", "--from", "earliest", "--count", "1")
    typed("tail", "near", "--from", "earliest", "--count", "1", "--json")
    typed("consume", "near", "me", "--from", "earliest", "--count", "1")
    for zone in ("Europe/Berlin", "Asia/Kolkata"):
        typed("repeat", "set", f"r-{zone[:3]}", "far", "x", "--cron", "30 8 * * *", "--zone", zone)
        typed("repeat", "show", f"r-{zone[:3]}")
    typed("repeat", "set", "r-i", "far", "x", "--every", "1d", "--start", AT)
    typed("repeat", "show", "r-i", "--json")
    typed("repeat", "pause", "r-i")
    typed("repeat", "list")
    typed("schedule", "far", "x", "--at", AT)
    typed("commands", "move", "--destination", "persistent://public/default/far", "--at", AT, "--yes")
    typed("commands", "list")
    typed("commands", "list", "--json")
    typed("publish", "entries", "x", "--at", AT)
    typed("pulsar", "topics", "list-delayed", "entries")
    typed("pulsar", "topics", "peek-delayed", "entries", "0")
    typed("cancel", typed("schedule", "far", "x", "--at", AT))
    typed("export", "-", "--data", str(server.folder))
    typed("doctor")
    printed["the server's log"] = server.said()
    offending = {name: found for name, text in printed.items() if (found := without_zone(text))}
    assert offending == {}
    without_times = {name for name, text in printed.items() if not TIME.search(text)}
    # These say that something is done.
    assert without_times <= {"cancel", "commands move", "doctor", "pause", "publish", "send"}, without_times


def test_every_time_of_a_report_has_its_zone(
    tarry: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = {
        unit: [Bar(1_794_740_400_000 + n * length, 1) for n in range(count)]
        for unit, (length, count) in COMING.items()
    }
    found = Report(1_794_740_400_123, 0, 5, 1, 0, coming, {"sent": 3}, [], [], [])
    monkeypatch.setattr(report_command, "run_job", lambda *_: found)
    said = tarry("report").out
    assert TIME.search(said)
    assert without_zone(said) == []
    # What is written along an axis is short: the chart says which zone it is.
    for chart in re.findall(r"<svg.*?</svg>", page := page_of(found), re.DOTALL):
        assert "times are UTC" in chart
    told = re.sub(r"<text.*?</text>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert len(TIME.findall(told)) > 10
    assert without_zone(told) == []
