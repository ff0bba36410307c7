"""The dialects of MSC4140 as one table: what differs between them, and nowhere else.

A delayed event remembers the dialect that it was scheduled in, and management answers in it. Beside the dialect, what a
path begins with counts: an unstable path prefixes its error codes and never answers 409, because the clients that use
it take that for the end of their call.
"""

from typing import Any, Final

from msgspec import Struct

UNSTABLE: Final = "org.matrix.msc4140"

STATE_UPDATE: Final = "M_CANCELLED_BY_STATE_UPDATE"
"""The proposal's own code for an event that someone else's state event has ended."""


class Dialect(Struct, frozen=True, kw_only=True):
    """One of the forms that the proposal has taken."""

    name: str
    delay: str
    """The name of the delay."""
    since: str
    """The name of the instant from which the delay counts."""
    too_long: str
    tells_longest: bool
    """Whether a delay that is too long is told the longest one."""
    too_many_is_a_rate: bool
    conflict_status: int
    """The answer to an action that a finalised event does not allow."""
    cancel_repeats: bool
    """Whether a cancelled event may be cancelled again."""
    repeats_error: bool
    """Whether `send` on an event that failed repeats the error."""
    stays_on_refusal: bool
    """Whether an event stays scheduled whose `send` the homeserver refused."""


SEED: Final = Dialect(
    name="seed", delay="delay", since="running_since", too_long="M_MAX_DELAY_EXCEEDED", tells_longest=True,
    too_many_is_a_rate=False, conflict_status=404, cancel_repeats=False, repeats_error=True,
    stays_on_refusal=False,
)  # fmt: skip
"""The draft of January 2026: `delay` in the body of a request."""

QUERY: Final = Dialect(
    name="query", delay="delay", since="running_since", too_long="M_MAX_DELAY_EXCEEDED", tells_longest=True,
    too_many_is_a_rate=False, conflict_status=404, cancel_repeats=False, repeats_error=True,
    stays_on_refusal=False,
)  # fmt: skip
"""The dialect of clients in the field: a query parameter on /send and /state."""

MERGED: Final = Dialect(
    name="merged", delay="delay_ms", since="delayed_since_ts", too_long="M_DELAY_TOO_LARGE", tells_longest=False,
    too_many_is_a_rate=True, conflict_status=409, cancel_repeats=True, repeats_error=False,
    stays_on_refusal=True,
)  # fmt: skip
"""The proposal as merged in September 2026: `delay_ms` in the body of a request."""

DIALECTS: Final = {dialect.name: dialect for dialect in (SEED, QUERY, MERGED)}


def dialect_of(headers: Any) -> Dialect:
    """The dialect that a message was scheduled in, by its headers."""
    return DIALECTS.get(headers.get("dialect", "") if isinstance(headers, dict) else "", SEED)


class Speech(Struct, frozen=True):
    """A dialect on a stable or an unstable path."""

    dialect: Dialect
    unstable: bool = False
    room_in_ms: int = 1_000
    """How long until one of the user's events is due: then there is room for another."""

    @property
    def conflict_status(self) -> int:
        """404 or 409."""
        return 404 if self.unstable else self.dialect.conflict_status

    def too_long(self, max_delay_ms: int) -> tuple[str, str, dict[str, Any]]:
        """The code, text and further fields of the refusal of a delay."""
        text = "The requested delay exceeds the allowed maximum."
        if not self.dialect.tells_longest:
            code = self.dialect.too_long
            return (f"ORG.MATRIX.MSC4140_{code[2:]}" if self.unstable else code), text, {}
        code, text, fields = self.prefixed(self.dialect.too_long, text)
        return code, text, {**fields, f"{UNSTABLE}.max_delay" if self.unstable else "max_delay": max_delay_ms}

    def prefixed(self, code: str, text: str) -> tuple[str, str, dict[str, Any]]:
        """A new error code as the path wants it: itself, or beside M_UNKNOWN."""
        return ("M_UNKNOWN", text, {f"{UNSTABLE}.errcode": code}) if self.unstable else (code, text, {})
