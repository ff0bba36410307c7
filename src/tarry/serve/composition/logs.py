"""Log lines on standard error, for people or for machines.

A line is an event in a few words and its facts as fields. Ids, payloads, headers and tokens are
credentials or private: no caller passes them, and nothing here adds them.
"""

import json
import logging
import sys
from typing import Final

from tarry.config.settings import Log
from tarry.core.time.times import format_instant

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(settings: Log) -> None:
    """Send every log line of this process to standard error in the configured form."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonLines() if settings.format == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(settings.level.upper())
    # A slow callback prints its arguments.
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _instant(record: logging.LogRecord) -> str:
    return format_instant(int(record.created * 1000))


def _printable(text: str) -> str:
    """Text without what a terminal or a reader of lines obeys: names come from clients."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class PlainLines(logging.Formatter):
    """`2027-01-01T00:00:00.000Z info  recovered  records=12 took_ms=3`.

    A record is one line, and those of an event that has several are indented: nothing that a client chooses begins one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = " ".join(f"{name}={_printable(str(value))}" for name, value in _fields(record).items())
        event = "\n    ".join(map(_printable, record.getMessage().split("\n")))
        line = f"{_instant(record)} {record.levelname.lower():7} {event}"
        line = f"{line}  {fields}" if fields else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `event`, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "at": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        } | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
