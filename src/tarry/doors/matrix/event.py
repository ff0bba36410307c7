"""A delayed event as the door takes it, and as a message of the engine.

The owner is the user, the key is the room, the payload is the content to the byte. What else has to be known when it is
sent or shown is in the destination (room, type, state key) and in a few headers: the dialect, the device, the sticky
duration. The user's token is nowhere in it.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from tarry.core.messages.message import Message, MessageView
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.settings import EVENTS
from tarry.doors.matrix.wire import Account, read_object
from tarry.outlets.matrix.destination import Destination, parse
from tarry.outlets.matrix.outlet import DEVICE, STICKY

MAX_NAME_BYTES: Final = 255
"""Maximum bytes of a room id, a type and a state key, as in every Matrix event."""
MAX_CONTENT_BYTES: Final = 65_536

_object_decoder = msgspec.json.Decoder(dict[str, Any])


class EventToSend(Struct, frozen=True, kw_only=True):
    """An event that is to be sent later."""

    room_id: str
    type: str
    state_key: str | None = None
    content: bytes
    """JSON, as it was given."""
    sticky_ms: int | None = None


def check_event(event: EventToSend) -> None:
    """Raise `MatrixError` unless the request can be an event. Whether it may be sent is for the homeserver to say, when it is sent."""
    _check_name("room id", event.room_id)
    if not event.room_id.startswith("!") or len(event.room_id) < 2:
        raise MatrixError(400, "M_INVALID_PARAM", "The room id does not begin with an exclamation mark.")
    _check_name("event type", event.type)
    if not event.type:
        raise MatrixError(400, "M_INVALID_PARAM", "The event type is empty.")
    if event.state_key is not None:
        _check_name("state key", event.state_key)
    content = read_object(event.content, _object_decoder)
    if len(event.content) > MAX_CONTENT_BYTES:
        # Canonical JSON is never longer than another way to write the same.
        size = len(msgspec.json.encode(content, order="deterministic"))
        if size > MAX_CONTENT_BYTES:
            raise MatrixError(413, "M_TOO_LARGE", f"The content has {size} bytes; {MAX_CONTENT_BYTES} fit.")


def message_of(
    event: EventToSend,
    account: Account,
    *,
    delay_ms: int | None,
    dialect: str,
    txn: tuple[str, ...] | None = None,
    group: str | None = None,
    namespace: str = EVENTS,
    extra: Mapping[str, str] | None = None,
    ended_by_state: bool = True,
) -> Message:
    """The message that sends an event after a delay, or, in a group, by command.

    `txn` names the request within the user's device: one that repeats it gets the same answer. `ended_by_state` says
    whether a newer event about the same state may end it.
    """
    headers = {"dialect": dialect, **(extra or {})}
    if account.device_id is not None:
        headers[DEVICE] = account.device_id
    if event.sticky_ms is not None:
        headers[STICKY] = str(event.sticky_ms)
    subject = None
    if event.state_key is not None and ended_by_state:
        subject = subject_of(event.room_id, event.type, event.state_key)
    return Message(
        destination=str(Destination(event.room_id, event.type, event.state_key)),
        payload=event.content,
        headers=headers,
        key=event.room_id,
        owner=account.user_id,
        door="matrix",
        namespace=namespace,
        delay_ms=delay_ms,
        group=group,
        idempotency_key=None if txn is None else _transaction_key(account, txn),
        any_repeat=True,
        listed=True,
        subject=subject,
    )


def transaction_of(account: Account, txn: tuple[str, ...], namespace: str = EVENTS) -> Message:
    """As much of a message as says which request it is: enough to find the answer to the same request before."""
    return Message(
        destination="",
        owner=account.user_id,
        namespace=namespace,
        idempotency_key=_transaction_key(account, txn),
        any_repeat=True,
    )


def _transaction_key(account: Account, txn: tuple[str, ...]) -> str:
    """Transaction ids belong to a device."""
    return _digest(account.device_id or "", *txn)


def event_of(view: MessageView) -> EventToSend:
    """The event that a message sends."""
    room_id, type_, state_key = parse(view.destination)
    headers = {} if view.headers is UNSET else view.headers
    sticky = headers.get(STICKY)
    return EventToSend(
        room_id=room_id,
        type=type_,
        state_key=state_key,
        content=b"{}" if view.payload is UNSET else view.payload,
        sticky_ms=None if sticky is None else int(sticky),
    )


def subject_of(room_id: str, type_: str, state_key: str) -> str:
    """The one piece of state that an event is about: a newer event about it may end delayed ones."""
    return _digest(room_id, type_, state_key)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _check_name(what: str, name: str) -> None:
    if name.isascii() and len(name) <= MAX_NAME_BYTES:
        return
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise MatrixError(400, "M_INVALID_PARAM", f"The {what} is not valid Unicode.") from None
    if size > MAX_NAME_BYTES:
        raise MatrixError(400, "M_INVALID_PARAM", f"The {what} has {size} bytes; {MAX_NAME_BYTES} fit.")
