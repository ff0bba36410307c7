"""Quantities as people say them, exactly: `7 days`, `1 hour 30 minutes`, `5 MiB`."""

from typing import Final

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, YEAR_MS

_DURATIONS: Final = (
    (DAY_MS, "day"),
    (HOUR_MS, "hour"),
    (MINUTE_MS, "minute"),
    (SECOND_MS, "second"),
    (1, "millisecond"),
)
_SIZES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration_in_words(duration_ms: int) -> str:
    """A duration in its own units, and in no others."""
    if duration_ms and duration_ms % YEAR_MS == 0:
        return _counted(duration_ms // YEAR_MS, "year")
    parts, rest_ms = [], duration_ms
    for unit_ms, unit in _DURATIONS:
        count, rest_ms = divmod(rest_ms, unit_ms)
        if count:
            parts.append(_counted(count, unit))
    return " ".join(parts) or "0 milliseconds"


def size_in_words(size_bytes: int) -> str:
    """A size in the largest unit of which it is a multiple."""
    for unit_bytes, unit in _SIZES:
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes:,} {unit}"
    return _counted(size_bytes, "byte")


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"
