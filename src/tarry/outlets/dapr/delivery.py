"""A scheduled publish as a message: its destination `dapr://app/component/topic`, and its metadata as headers. Pure."""

import hashlib
import uuid
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Delivery
from tarry.core.messages.message import Message
from tarry.core.unreadable import UNREADABLE
from tarry.outlets.dapr.repeats import repeat_of

SCHEME: Final = "dapr"
CONTENT_TYPE: Final = "content-type"
REPEAT: Final = "repeat"
"""The occurrences after this message, of a schedule that repeats."""
_METADATA: Final = "metadata."


class PublishTarget(NamedTuple):
    """The parts of a destination."""

    app_id: str
    pubsub: str
    topic: str


def destination(app_id: str, pubsub: str, topic: str) -> str:
    """Where a message goes that this application publishes to this topic of this component."""
    return f"{SCHEME}://{quote(app_id, safe='')}/{quote(pubsub, safe='')}/{quote(topic, safe='')}"


@lru_cache(maxsize=4096)
def target_of(text: str) -> PublishTarget:
    """Read a destination; raises `Invalid`."""
    parts = text.removeprefix(f"{SCHEME}://").split("/")
    if len(parts) != 3 or not all(parts):
        raise Invalid("destination", f"a destination is written {SCHEME}://app/component/topic")
    return PublishTarget(*map(unquote, parts))


def headers_of(metadata: dict[str, str], content_type: str, repeat: str | None = None) -> dict[str, str]:
    """A publish's metadata, its content type and what follows it, as a message's headers."""
    headers = {_METADATA + name: value for name, value in metadata.items()}
    if content_type:
        headers[CONTENT_TYPE] = content_type
    if repeat is not None:
        headers[REPEAT] = repeat
    return headers


def metadata_of(headers: dict[str, str]) -> dict[str, str]:
    """The metadata in a message's headers."""
    return {
        name.removeprefix(_METADATA): value for name, value in headers.items() if name.startswith(_METADATA)
    }


def next_of(delivery: Delivery, now_ms: int) -> Message | None:
    """The occurrence after one of a schedule that repeats; None after the last."""
    repeat = repeat_of(delivery.headers[REPEAT])
    due_at_ms = None if repeat.left == 0 else repeat.next_ms(delivery.due_at_ms, now_ms)
    if due_at_ms is None:
        return None
    return Message(
        destination=delivery.destination,
        payload=_renamed(delivery.payload, delivery.headers.get(CONTENT_TYPE), delivery.id),
        headers=delivery.headers | {REPEAT: repeat.written()},
        key=delivery.key,
        owner=delivery.owner,
        door="dapr",
        due_at_ms=due_at_ms,
        idempotency_key=f"repeat:{delivery.id}",
        any_repeat=True,
        follows=True,
    )


def _renamed(payload: bytes, content_type: str | None, after: str) -> bytes:
    """An event with another id, which follows from the message before it; anything else as it is."""
    if content_type != "application/cloudevents+json":
        return payload
    try:
        event: dict[str, Any] = dict(msgspec.json.decode(payload, type=dict[str, msgspec.Raw]))
    except UNREADABLE:
        return payload
    event["id"] = str(uuid.UUID(bytes=hashlib.blake2b(after.encode(), digest_size=16).digest(), version=4))
    return msgspec.json.encode(event)
