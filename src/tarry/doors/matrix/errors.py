"""How the door says no: errors in the words of Matrix, and those of the engine turned into them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tarry.core.errors import (
    Conflict,
    DelayTooLong,
    Forbidden,
    Invalid,
    NotFound,
    OverShare,
    RateLimited,
    TarryError,
    TooLarge,
    TooManyPending,
    Unavailable,
)
from tarry.core.messages.message import MessageView
from tarry.doors.matrix.dialects import SEED, Speech
from tarry.http.response import HeaderList
from tarry.outlets.matrix.verdict import KeptError

_error_decoder = msgspec.json.Decoder(KeptError)


class MatrixError(TarryError):
    """An answer that is an error: its status and the fields of its body."""

    def __init__(
        self,
        status: int,
        errcode: str,
        text: str,
        fields: Mapping[str, Any] | None = None,
        headers: HeaderList | None = None,
    ) -> None:
        super().__init__(f"{status} {errcode}")
        self.status = status
        self.body: dict[str, Any] = {"errcode": errcode, "error": text, **(fields or {})}
        self.headers = headers or []


SHARE_RETRY_MS: Final = 1_000
"""So long whoever has too many requests under way should wait; nobody knows when one of them ends."""

NOT_FOUND: Final = "There is no such delayed event."


def not_found() -> MatrixError:
    """The delay id is not recognised, or means nothing any more."""
    return MatrixError(404, "M_NOT_FOUND", NOT_FOUND)


def limited(retry_after_ms: int, text: str = "Too many requests.") -> MatrixError:
    """Too fast: when to come again, in both of the ways in which clients look for it."""
    fields = {"retry_after_ms": retry_after_ms}
    return MatrixError(429, "M_LIMIT_EXCEEDED", text, fields, _retry_after(retry_after_ms))


def _retry_after(wait_ms: object) -> HeaderList:
    return [(b"retry-after", b"%d" % -(-wait_ms // 1000))] if isinstance(wait_ms, int) and wait_ms > 0 else []


def unrecognised(allowed: str | None = None) -> MatrixError:
    """Nothing is served at this path, or not with this method."""
    if allowed is None:
        return MatrixError(404, "M_UNRECOGNIZED", "Unrecognized request.")
    return MatrixError(405, "M_UNRECOGNIZED", "Unrecognized method.", None, [(b"allow", allowed.encode())])


def internal() -> MatrixError:
    """The error for a fault of our own."""
    return MatrixError(500, "M_UNKNOWN", "Internal server error.")


def _too_long(error: DelayTooLong, speech: Speech) -> MatrixError:
    return MatrixError(400, *speech.too_long(error.max_delay_ms))


def _too_many(_error: TooManyPending, speech: Speech) -> MatrixError:
    text = "The maximum number of delayed events has been reached."
    if speech.dialect.too_many_is_a_rate:
        return limited(speech.room_in_ms, text)
    return MatrixError(400, *speech.prefixed("M_MAX_DELAYED_EVENTS_EXCEEDED", text))


def _conflict(_error: Conflict, speech: Speech) -> MatrixError:
    if speech.conflict_status == 404:
        return not_found()
    return MatrixError(409, "M_UNKNOWN", "The delayed event is finalised otherwise already.")


_EXPLAINED: Final[dict[type[TarryError], Callable[[Any, Speech], MatrixError]]] = {
    Invalid: lambda error, _: MatrixError(400, "M_INVALID_PARAM", str(error)),
    TooLarge: lambda error, _: MatrixError(413, "M_TOO_LARGE", str(error)),
    DelayTooLong: _too_long,
    TooManyPending: _too_many,
    RateLimited: lambda error, _: limited(error.retry_after_ms),
    NotFound: lambda _error, _: not_found(),
    Conflict: _conflict,
    Forbidden: lambda error, _: MatrixError(403, "M_FORBIDDEN", str(error)),
    OverShare: lambda _, __: limited(SHARE_RETRY_MS, "Too many requests at one time."),
    Unavailable: lambda error, _: MatrixError(503, "M_UNKNOWN", str(error), None, [(b"retry-after", b"1")]),
}


def explain(error: TarryError, speech: Speech = Speech(SEED)) -> MatrixError:  # noqa: B008 - a frozen value
    """An error of the engine in the words of Matrix, as the dialect at hand says them; one that is in them already as it is."""
    if isinstance(error, MatrixError):
        return error
    for kind, explained in _EXPLAINED.items():
        if isinstance(error, kind):
            return explained(error, speech)
    return internal()


def error_of(view: MessageView) -> MatrixError:
    """The error with which an event could not be sent."""
    if view.error is None:
        return MatrixError(500, "M_UNKNOWN", view.reason or "The event could not be sent.")
    return repeat(view.error)


def repeat(kept: str) -> MatrixError:
    """An error that the homeserver has answered, again."""
    error = _error_decoder.decode(kept)
    fields = {name: value for name, value in error.body.items() if name not in ("errcode", "error")}
    headers = _retry_after(fields.get("retry_after_ms"))
    return MatrixError(error.status, error.body["errcode"], str(error.body.get("error", "")), fields, headers)
