"""`tarry report` and `tarry audit` without Spark: what they print, and what they say when there is nothing to read."""

from pathlib import Path

import pytest

from tarry.cli import audit as audit_command
from tarry.cli import report as report_command
from tarry.cli.app import app
from tarry.cli.exits import exit_code
from tarry.core.errors import NotFound
from tarry.pipeline.audit.audit import AuditFindings, Offender
from tarry.pipeline.audit.checks import OFFENCES
from tarry.pipeline.report.report import COMING, Bar, Failure, LatenessFigures, Owner, Report

START_MS = 1_794_740_400_000


GOOD = AuditFindings({"accepted": 1234, "scheduled": 1234}, {}, [], ["a note [of] caution"])
BAD = AuditFindings({"accepted": 2, "scheduled": 1}, {"lost": 1}, [Offender("lost", 7, 7, "")], [])


def test_the_verdict_is_printed_and_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for verdict, code, said in ((GOOD, 0, "The books balance."), (BAD, 1, OFFENCES["lost"])):
        monkeypatch.setattr(audit_command, "run_job", lambda *_, verdict=verdict: verdict)
        with pytest.raises(SystemExit) as ended:
            app(["audit"], standalone_mode=True)
        assert ended.value.code == code
        assert said in capsys.readouterr().out


def test_without_tables_the_audit_cannot_tell_and_a_report_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledger").mkdir()
    with pytest.raises(SystemExit) as ended:
        app(["audit", str(tmp_path)])
    assert ended.value.code == 2
    assert "cannot tell" in capsys.readouterr().err
    with pytest.raises(NotFound, match="run `tarry pipeline --once`") as missing:
        app(["report", str(tmp_path)], standalone_mode=False)
    assert exit_code(missing.value) == 3


def test_a_report_in_the_terminal_as_json_and_as_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coming = {unit: [Bar(START_MS, 12_345)] for unit in COMING}
    found = Report(
        START_MS, 0, 12_345, 0, 0, coming, {"sent": 3}, [LatenessFigures("door", "http", 3, 1, 2, 3, 987)],
        [Failure("[red]gone\x1b[0m", 2)], [Owner("public/default", "", 1, 2, 3)],
    )  # fmt: skip
    monkeypatch.setattr(report_command, "run_job", lambda *_: found)
    app(["report"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "12,345" in said
    assert "987" in said
    assert "[red]gone\\x1b[0m" in said
    app(["report", "--json", "--html", str(tmp_path / "r.html")], standalone_mode=False)
    assert '"worst_ms": 987' in capsys.readouterr().out
    assert "<svg" in (tmp_path / "r.html").read_text("utf-8")
