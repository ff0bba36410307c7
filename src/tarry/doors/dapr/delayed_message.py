"""Messages in a delayed topic: the proposal's `DelayedMessage`, with its time in its metadata. Pure."""

import base64
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from tarry.core.unreadable import UNREADABLE
from tarry.doors.dapr.delayed_pb2 import DelayedMessage
from tarry.outlets.dapr.component import BulkEntry
from tarry.outlets.dapr.times import FIELD as SCHEDULED


class Undecodable(ValueError):
    """The bytes are no delayed message, or one that can never be sent."""


class WaitingMessage(Struct, frozen=True, kw_only=True):
    """A message that waits in a delayed topic."""

    topic: str
    message: bytes
    """The bytes to publish; of a bulk the JSON of Dapr's `BulkMessageEntry`."""
    content_type: str
    metadata: dict[str, str]
    """Without its time."""
    time: str
    bulk: bool

    def entry(self) -> BulkEntry:
        """The entry of a bulk publish; raises `Undecodable`."""
        return decode_entry(self.message, self.metadata)


def delayed_topic(app_id: str, namespace: str | None) -> str:
    """The name of an application's delayed topic; with namespaced consumer groups it belongs to a namespace."""
    return f"{app_id}{namespace or ''}-delayed"


def encode(delayed: WaitingMessage) -> bytes:
    """The bytes in the topic."""
    encoded: bytes = DelayedMessage(
        topic=delayed.topic,
        message=delayed.message,
        contentType=delayed.content_type,
        metadata=delayed.metadata | {SCHEDULED: delayed.time},
        bulkPublish=delayed.bulk,
    ).SerializeToString(deterministic=True)
    return encoded


def decode(data: bytes) -> WaitingMessage:
    """Read the bytes in the topic; raises `Undecodable`."""
    try:
        found = DelayedMessage.FromString(data)
    except DecodeError as error:
        raise Undecodable(f"is no DelayedMessage: {error}") from None
    if not found.topic:
        raise Undecodable("has no topic")
    metadata = dict(found.metadata)
    time = metadata.pop(SCHEDULED, "")
    if not time:
        raise Undecodable(f"has no metadata {SCHEDULED}")
    delayed = WaitingMessage(
        topic=found.topic,
        message=found.message,
        content_type=found.contentType,
        metadata=metadata,
        time=time,
        bulk=found.bulkPublish,
    )
    if delayed.bulk:
        delayed.entry()
    return delayed


class _Entry(Struct, rename="camel"):
    """Dapr's `BulkMessageEntry`, as Go writes it: bytes in base 64."""

    entry_id: str
    event: str
    content_type: str = ""
    metadata: dict[str, str] | None = None


def encode_entry(entry: BulkEntry) -> bytes:
    """The JSON of an entry of a bulk publish."""
    event = base64.b64encode(entry.data).decode()
    return msgspec.json.encode(_Entry(entry.entry_id, event, entry.content_type or "", entry.metadata))


def decode_entry(data: bytes, metadata: dict[str, str]) -> BulkEntry:
    """Read the JSON of an entry; raises `Undecodable`. Go takes the names of its fields in any case, so it is done here."""
    try:
        loose: dict[str, Any] = msgspec.json.decode(data, type=dict)
        names = {name.lower(): name for name in _Entry.__struct_encode_fields__}
        found = msgspec.convert({names.get(key.lower(), key): one for key, one in loose.items()}, _Entry)
        event = base64.b64decode(found.event, validate=True)
    except (ValueError, *UNREADABLE) as error:
        raise Undecodable(f"is no BulkMessageEntry: {error}") from None
    if not found.entry_id:
        raise Undecodable("is a BulkMessageEntry without an entryId")
    own = {name: value for name, value in (found.metadata or {}).items() if name != SCHEDULED}
    return BulkEntry(
        entry_id=found.entry_id,
        data=event,
        content_type=found.content_type or None,
        metadata={**metadata, **own},
    )
