import json
import logging

import pytest

from tarry.config.settings import Log
from tarry.serve.composition.logs import JsonLines, PlainLines, set_up


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "tarry.x", "levelno": 20, "levelname": "INFO", "msg": "opened %s", "args": ("it",)}
    )
    made.created = 1.5
    vars(made).update(fields)
    return made


def test_plain_lines_show_the_event_and_its_fields() -> None:
    assert PlainLines().format(record(took_ms=3)) == "1970-01-01T00:00:01.500Z info    opened it  took_ms=3"
    assert PlainLines().format(record()) == "1970-01-01T00:00:01.500Z info    opened it"


@pytest.mark.parametrize("end", ["\n", "\r", "\x1b[2K", "\x85", "\u2028", "\x00", "\u202e"])
def test_what_a_client_chooses_begins_no_line_and_moves_no_cursor(end: str) -> None:
    """A name such as this is taken from a Pulsar producer, and shown where its delays are ignored."""
    forged = f"ann{end}1970-01-01T00:00:02.000Z warning the ledger is damaged"
    line = PlainLines().format(record(producer=forged))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert "producer=ann\\" in line
    # In the event itself too, whose own lines are indented.
    lines = PlainLines().format(record(msg="closed: %s", args=(forged,))).splitlines()
    assert lines[0].startswith("1970-01-01T00:00:01.500Z info    closed: ann")
    assert all(later.startswith("    ") for later in lines[1:])


def test_json_lines_are_one_object_each() -> None:
    line = JsonLines().format(record(took_ms=3, path="a\nb"))
    assert "\n" not in line
    assert json.loads(line) == {
        "at": "1970-01-01T00:00:01.500Z", "level": "info", "logger": "tarry.x", "event": "opened it",
        "took_ms": 3, "path": "a\nb",
    }  # fmt: skip


def test_an_exception_is_in_the_line() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        made = record(exc_info=(type(error), error, error.__traceback__))
    assert "ValueError: why" in json.loads(JsonLines().format(made))["exception"]
    assert "ValueError: why" in PlainLines().format(made)


def test_the_level_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up(Log(format="json", level="warning"))
        logging.getLogger("tarry.x").info("quiet")
        logging.getLogger("tarry.x").warning("loud")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["loud"]
