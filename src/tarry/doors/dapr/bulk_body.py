"""Bodies of bulk publishes over HTTP: a JSON array of entries, read into the bytes of each event. Pure."""

import base64
from typing import Final

import msgspec
from msgspec import Struct

from tarry.core.unreadable import UNREADABLE
from tarry.doors.dapr import errors
from tarry.doors.dapr.cloudevents import is_binary, is_cloud_event, is_json, is_text
from tarry.doors.dapr.errors import Refusal
from tarry.doors.dapr.planning import MAX_ENTRIES, BulkItem, check_entries


class _Item(Struct):
    entryId: str = ""  # noqa: N815 - Dapr's name of the field
    event: msgspec.Raw = msgspec.Raw(b"null")
    contentType: str = ""  # noqa: N815
    metadata: dict[str, str] | None = None


_KNOWN: Final = "use application/json, application/cloudevents+json, text/… or application/octet-stream"
_FIELDS: Final = {name.lower(): name for name in _Item.__struct_fields__}
_decode = msgspec.json.Decoder(list[_Item]).decode
_decode_loose = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def entries_of(body: bytes, pubsub: str, topic: str) -> list[BulkItem]:
    """The entries of a body, in order; raises `Refusal`."""
    try:
        if not body.isascii():
            body.decode()
        items = _items(body)
    except UNREADABLE as error:
        raise Refusal(
            errors.REQUEST,
            f"error when unmarshaling the request for topic {topic} pubsub {pubsub}: {error}",
            pubsub=pubsub,
            metadata={"error": str(error)},
        ) from None
    check_entries(len(items), pubsub)
    try:
        return [BulkItem(item.entryId, _event(item), item.contentType, item.metadata or {}) for item in items]
    except (ValueError, *UNREADABLE) as error:
        raise Refusal(
            errors.ENVELOPE,
            f"error when marshalling cloud event envelope for topic {topic} pubsub {pubsub}: {error}",
            pubsub=pubsub,
            metadata={"error": str(error)},
        ) from None


def _items(body: bytes) -> list[_Item]:
    try:
        items = _decode(body)
    except msgspec.ValidationError:
        return _loosely(body)
    return _loosely(body) if any(not (item.entryId and item.contentType) for item in items) else items


def _loosely(body: bytes) -> list[_Item]:
    """Entries with field names in any case, which Dapr accepts and its JavaScript SDK needs (`entryID`)."""
    items = []
    # Those beyond the bound are refused by their number, and need not be read.
    for given in _decode_loose(body)[: MAX_ENTRIES + 1]:
        known = {_FIELDS[name.lower()]: raw for name, raw in given.items() if name.lower() in _FIELDS}
        event = known.pop("event", msgspec.Raw(b"null"))
        item = msgspec.convert({name: msgspec.json.decode(raw) for name, raw in known.items()}, _Item)
        item.event = event
        items.append(item)
    return items


def _event(item: _Item) -> bytes:
    """The bytes of an entry's event, which its content type tells how to find in the JSON."""
    raw, type_ = bytes(item.event), item.contentType
    if is_json(type_) or is_cloud_event(type_):
        return raw
    if not is_binary(type_) and not is_text(type_):
        raise ValueError(
            f"mismatch between contentType and event: entry {item.entryId} has the contentType {type_!r}; {_KNOWN}"
        )
    event = msgspec.json.decode(raw)
    if not isinstance(event, str):
        raise ValueError(
            f"mismatch between contentType and event: entry {item.entryId} is {type_} and no string"
        )
    if is_text(type_):
        return event.encode()
    try:
        return base64.b64decode(event, validate=True)
    except ValueError as error:
        raise ValueError(
            f"the event of entry {item.entryId} is not base64, as {type_} has it: {error}"
        ) from None
