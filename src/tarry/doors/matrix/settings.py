"""Settings of the door; the composition root takes them from the configuration."""

from typing import Final

from msgspec import Struct

from tarry.core.limits import DAY_MS, MINUTE_MS

EVENTS: Final = "matrix/events"
"""The namespace of delayed events: its policies are the limits on delays, on pending events and on rates."""
FUTURES: Final = "matrix/futures"
"""The namespace of the older draft's futures, which have lists of their own."""


class MatrixSettings(Struct, frozen=True, kw_only=True):
    """Settings of the door."""

    hs_token: str = ""
    """The token that the homeserver shows with its transactions; an empty one takes none."""
    stable: bool = True
    """Whether the stable endpoints are advertised."""
    management_token: bool = False
    """Whether send, cancel and restart need a token of the event's owner."""
    cancel_by_state_update: bool = False
    """Whether a state event of another user cancels delayed ones for the same state."""
    max_delay_ms: int = 7 * DAY_MS
    max_pending_per_user: int = 100
    token_fresh_ms: int = MINUTE_MS
    """How long the homeserver is not asked again whose token it is."""
    token_kept_ms: int = 10 * MINUTE_MS
    """How long its last answer is good for while it cannot be reached."""
    list_per_second: float = 10.0
    manage_per_second_per_event: float = 10.0
    send_timeout_ms: int = 10_000
    """How long `send` waits to hear what came of it; then the answer is 504, and the event stays due."""
    future_guesses: int = 5
    """After so many invalid tokens of futures in a row a source is not listened to for a while; 0 sets no limit."""
    future_guesses_pause_ms: int = 10_000
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose X-Forwarded-For is believed."""
