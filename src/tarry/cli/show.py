"""Text for a terminal: instants, delays, payloads, tables.

What comes from messages is shown with control characters made visible, so that a payload cannot play
with the terminal.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tarry.core.names import DEFAULT_NAMESPACE, TOPIC_SCHEME
from tarry.core.time.times import format_instant, format_second_in

# A pipe has no width: nothing is cut there.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """Print a line about the command itself, on standard error, apart from its results."""
    print(f"tarry: {line}", file=sys.stderr, flush=True)


def now_ms() -> int:
    """The present instant."""
    return time.time_ns() // 1_000_000


def instant(at_ms: int | None) -> str:
    """An instant in UTC; group members may have none."""
    if at_ms is None:
        return "by command"
    return format_instant(at_ms)


def instant_in(at_ms: int, zone: str) -> str:
    """An instant as clocks in a zone show it, to the second; in UTC where this system does not know the zone."""
    # Late: few commands need it, and it looks the whole system up.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return format_second_in(at_ms // SECOND_MS, ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        return instant(at_ms)


def span(ms: int) -> str:
    """A duration in its two largest units."""
    if ms < SECOND_MS:
        return f"{ms} ms"
    if ms < MINUTE_MS:
        return f"{ms / SECOND_MS:.1f} s"
    for unit_ms, name, next_ms, next_name in (
        (365 * DAY_MS, "y", DAY_MS, "d"),
        (DAY_MS, "d", HOUR_MS, "h"),
        (HOUR_MS, "h", MINUTE_MS, "min"),
        (MINUTE_MS, "min", SECOND_MS, "s"),
    ):
        if ms >= unit_ms:
            return f"{ms // unit_ms} {name} {ms % unit_ms // next_ms} {next_name}"
    return f"{ms} ms"


def from_now(at_ms: int | None, now: int) -> str:
    """How far away an instant is."""
    if at_ms is None:
        return ""
    return f"in {span(at_ms - now)}" if at_ms > now else f"{span(now - at_ms)} ago"


def printable(text: str) -> str:
    """Text without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def payload(data: bytes, limit: int | None = None) -> str:
    """A payload as text, or in hexadecimal if it is not text."""
    try:
        shown = printable(data.decode())
    except UnicodeDecodeError:
        shown = f"0x{data.hex()}"
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"


def as_json(value: Any) -> None:
    """One JSON object on a line of its own."""
    print(json.dumps(msgspec.to_builtins(value), ensure_ascii=False), flush=True)


def brief_instant(at_ms: int | None) -> str:
    """An instant to the second with its zone, for tables."""
    return instant(at_ms) if at_ms is None else f"{format_instant(at_ms)[:19].replace('T', ' ')}Z"


def brief_destination(destination: str) -> str:
    """A destination without its default parts."""
    return destination.removeprefix(TOPIC_SCHEME + DEFAULT_NAMESPACE + "/").removeprefix(TOPIC_SCHEME)


CUT: Final = frozenset({"destination", "place", "owner", "key", "group", "reason", "filter", "value", "from"})
"""Columns that give way when the terminal is narrow. The others are shown whole."""


def rows(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> None:
    """A plain table. A column that is empty is left out."""
    texts = [["" if cell is None else printable(str(cell)) for cell in line] for line in cells]
    used = [at for at in range(len(columns)) if any(line[at] for line in texts)]
    made = Table(box=None, pad_edge=False, header_style="bold")
    for at in used:
        width = None if columns[at] in CUT else max(len(columns[at]), *(len(line[at]) for line in texts))
        made.add_column(columns[at], no_wrap=True, overflow="ellipsis", min_width=width)
    for line in texts:
        # As `Text`, so that nothing in it is read as markup.
        made.add_row(*(Text(line[at]) for at in used))
    out.print(made)


def facts(pairs: list[tuple[str, object]]) -> None:
    """Names and values below each other; empty values are left out."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, "", {}):
            made.add_row(name, Text(str(value)))
    out.print(made)
