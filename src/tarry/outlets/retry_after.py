"""The `Retry-After` header of HTTP, for every outlet that speaks it (RFC 9110 §10.2.3). Pure."""

from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_ms(value: str | None, now_ms: int, bound_ms: int) -> int | None:
    """The wish in a `Retry-After` header, seconds or a date, at most `bound_ms`.

    None when there is none, when it makes no sense and when it is not in the future: «at once» is left
    to the engine's backoff, or a receiver could make it spin.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        # Ten digits of seconds are centuries: beyond every bound, so the rest need not be converted.
        after_ms = int(text.lstrip("0")[:10] or "0") * 1000
    else:
        at_ms = _http_date_ms(text)
        if at_ms is None:
            return None
        after_ms = at_ms - now_ms
    return min(after_ms, bound_ms) if after_ms > 0 else None


def _http_date_ms(text: str) -> int | None:
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:  # the form without a zone is in GMT by RFC 9110 §5.6.7
            date = date.replace(tzinfo=UTC)
        return int(date.timestamp()) * 1000
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
