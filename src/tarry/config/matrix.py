"""Settings of the Matrix door."""

from typing import Annotated

from msgspec import Meta

from tarry.config.listening import Listening
from tarry.config.table import Path
from tarry.core import limits

Rate = Annotated[float, Meta(ge=0, le=1e9)]


class Matrix(Listening, frozen=True, kw_only=True):
    """Matrix delayed events, in front of a homeserver."""

    enabled: bool | None = None
    """Whether the door is open. If unset, `tarry up` opens it and `tarry serve` does not."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8008
    """Port to listen on; 0 takes a free one and prints it."""
    homeserver: str | None = None
    """Address of the homeserver behind the door, such as http://127.0.0.1:8009. Without one `tarry up` starts a private Synapse."""
    registration: Path | None = None
    """The registration file that the homeserver was given; `tarry matrix register` writes one. The two tokens are in it."""
    stable: bool = True
    """Whether clients are told that the stable endpoints of MSC4140 are served."""
    management_token: bool = False
    """Whether `send`, `cancel` and `restart` need a token of the event's owner; if not, the delay id suffices."""
    cancel_by_state_update: bool = False
    """Whether a state event of another user cancels delayed events for the same state that were scheduled while this was on."""
    max_delay_ms: Annotated[int, Meta(ge=1, le=limits.MAX_DELAY_MS)] = 7 * limits.DAY_MS
    """The longest delay of an event."""
    max_pending_per_user: Annotated[int, Meta(ge=1)] = 100
    """Maximum number of a user's pending delayed events."""
    schedule_per_second: Rate = 20.0
    """Events a second that one user may schedule; 0 sets no limit."""
    manage_per_second: Rate = 50.0
    """Commands a second on the events of one user, whoever sends them; 0 sets no limit."""
    manage_per_second_per_event: Rate = 10.0
    """Commands a second on one event, whoever sends them; 0 sets no limit."""
    list_per_second: Rate = 10.0
    """Lists a second that one user may ask for; 0 sets no limit."""
    send_per_second: Rate = 50.0
    """Events a second of one user that are sent; further ones go out later. 0 sets no limit."""
    token_fresh_ms: Annotated[int, Meta(ge=0, le=limits.HOUR_MS)] = limits.MINUTE_MS
    """How long the homeserver's answer about a token is used without asking again."""
    token_kept_ms: Annotated[int, Meta(ge=0, le=limits.DAY_MS)] = 10 * limits.MINUTE_MS
    """How long the homeserver's last answer about a token is used while the homeserver cannot be reached."""
    send_timeout_ms: Annotated[int, Meta(ge=1, le=limits.HOUR_MS)] = 10_000
    """How long `send`, a future's `send_token` and a batch of futures wait for the homeserver; then the answer is 504, and the event stays due."""
    future_guesses: Annotated[int, Meta(ge=0)] = 5
    """Invalid tokens of futures in a row that one source may send; 0 sets no limit."""
    future_guesses_pause_ms: Annotated[int, Meta(ge=1, le=limits.DAY_MS)] = 10_000
    """How long that source is then answered 429."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies whose X-Forwarded-For is believed."""
