"""Requests for futures: their query parameters, and the body of a batch. Pure."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from tarry.core.limits import MAX_GROUP_BYTES, MAX_GROUP_MEMBERS
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.wire import Query, milliseconds, read_object
from tarry.outlets.matrix.outlet import STICKY_PARAMETER
from tarry.outlets.matrix.template import VARIABLES, mentions

UNSTABLE: Final = ("io.element.msc3140", "io.element.msc4140", "org.matrix.msc4140")
"""The draft's own prefix, with the number that it says, and those with the number that it has."""

GROUP: Final = "future:"
"""The prefix of a future group's name in the engine, so that no other door's group is taken for one."""
MAX_GROUP_ID_BYTES: Final = MAX_GROUP_BYTES - len(GROUP)

TIMEOUT: Final = "future_timeout"
GROUP_ID: Final = "future_group_id"
_TIMEOUTS: Final = (TIMEOUT, *(f"{prefix}.{TIMEOUT}" for prefix in UNSTABLE))
_GROUP_IDS: Final = (GROUP_ID, *(f"{prefix}.{GROUP_ID}" for prefix in UNSTABLE))
PARAMETERS: Final = frozenset((*_TIMEOUTS, *_GROUP_IDS))
"""Query parameters that make an event a future."""
_EXAMPLE_TIMEOUTS: Final = ("timeout", *_TIMEOUTS)
"""The draft's example of a self-destructing message says `timeout`; only on endpoints that are the draft's own."""

BATCH_KEYS: Final = ("timeout", "send_on_timeout", "send_on_action", "send_now")


class AskedFuture(Struct, frozen=True):
    """How a future is to be sent: after a time, and as which group's."""

    timeout_ms: int | None
    group_id: str | None


def read_query(query: Query, *, own: bool) -> AskedFuture:
    """Read the query of a request for a future; `own` on the draft's own endpoints."""
    timeout = _one(query, _EXAMPLE_TIMEOUTS if own else _TIMEOUTS)
    group_id = _one(query, _GROUP_IDS)
    if timeout is None and group_id is None:
        raise MatrixError(400, "M_MISSING_PARAM", f"Give {TIMEOUT} or {GROUP_ID}, or both.")
    if group_id is not None:
        _check_group_id(group_id)
    return AskedFuture(None if timeout is None else milliseconds(TIMEOUT, timeout), group_id)


def _one(query: Query, names: tuple[str, ...]) -> str | None:
    given = [value for name, value in query if name in names]
    if len(given) > 1:
        raise MatrixError(400, "M_INVALID_PARAM", f"{names[-1]} is given more than once.")
    return given[0] if given else None


def _check_group_id(group_id: str) -> None:
    if not group_id or len(group_id.encode("utf-8", "replace")) > MAX_GROUP_ID_BYTES:
        text = f"{GROUP_ID} is not between 1 and {MAX_GROUP_ID_BYTES} bytes."
        raise MatrixError(400, "M_INVALID_PARAM", text)


# A batch


class FutureEvent(Struct, frozen=True):
    """One event of a batch."""

    type: str
    content: Raw
    state_key: str | None = None
    sticky_ms: int | None = msgspec.field(default=None, name=STICKY_PARAMETER)


class FutureBatch(Struct, frozen=True):
    """Events that are accepted together."""

    timeout_ms: int
    on_timeout: FutureEvent
    on_action: dict[str, FutureEvent] | None
    now: FutureEvent | None


_batch_decoder = msgspec.json.Decoder(dict[str, Raw])
_decoders: Final[dict[str, "msgspec.json.Decoder[Any]"]] = {
    "timeout": msgspec.json.Decoder(int),
    "send_on_timeout": msgspec.json.Decoder(FutureEvent),
    "send_on_action": msgspec.json.Decoder(dict[str, FutureEvent]),
    "send_now": msgspec.json.Decoder(FutureEvent),
}


def read_batch(body: bytes) -> FutureBatch:
    """Read the body of a batch. Its keys may have the prefix of Matrix, or an unstable one."""
    given = read_object(body, _batch_decoder)
    found = {key: _value(given, key) for key in BATCH_KEYS}
    timeout, on_timeout = found["timeout"], found["send_on_timeout"]
    if timeout is None or on_timeout is None:
        missing = "timeout" if timeout is None else "send_on_timeout"
        raise MatrixError(400, "M_MISSING_PARAM", f"{missing} is missing.")
    batch = FutureBatch(timeout, on_timeout, found["send_on_action"], found["send_now"])
    _check_batch(batch)
    return batch


def _value(given: dict[str, Raw], key: Literal["timeout"] | str) -> Any:
    names = [name for name in (key, f"m.{key}", *(f"{prefix}.{key}" for prefix in UNSTABLE)) if name in given]
    if not names:
        return None
    if len(names) > 1:
        raise MatrixError(400, "M_INVALID_PARAM", f"{key} is given more than once.")
    try:
        return read_object(bytes(given[names[0]]), _decoders[key])
    except MatrixError as error:
        # Which of them it is, the decoder does not know.
        raise MatrixError(error.status, error.body["errcode"], f"{key}: {error.body['error']}") from None


def _check_batch(batch: FutureBatch) -> None:
    if batch.timeout_ms <= 0:
        raise MatrixError(400, "M_INVALID_PARAM", "timeout is not positive.")
    actions = batch.on_action or {}
    if len(actions) >= MAX_GROUP_MEMBERS:
        raise MatrixError(400, "M_INVALID_PARAM", f"There are more than {MAX_GROUP_MEMBERS - 1} actions.")
    if batch.now is None and any(
        mentions(bytes(sent.content)) for sent in (batch.on_timeout, *actions.values())
    ):
        raise MatrixError(400, "M_INVALID_PARAM", f"{VARIABLES[0]} needs send_now.")
