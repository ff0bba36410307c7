"""CloudEvents as Dapr's runtime makes and reads them. Pure.

Three kinds of payload: an event that the door makes around the data, an event that the application made (its topic and
component are set, what is missing is filled in), and raw bytes, around which a subscriber's side makes an event.
"""

import base64
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.time.times import format_go_instant, format_second, rfc3339_ms
from tarry.core.unreadable import UNREADABLE

CONTENT_TYPE: Final = "application/cloudevents+json"
EVENT_TYPE: Final = "com.dapr.event.sent"
SPEC_VERSION: Final = "1.0"
DEFAULT_SOURCE: Final = "Dapr"
DEFAULT_DATA_CONTENT_TYPE: Final = "text/plain"
OVERRIDES: Final = "cloudevent."
"""Metadata keys that begin so replace what the door would write into the envelope."""

_PARENT: Final = b'","traceparent":"'
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Trace(Struct, frozen=True):
    """The W3C trace context of a request."""

    parent: str
    state: str = ""


NO_TRACE: Final = Trace("")
"""For a request that came without one. A context that is made here and not sampled would keep an application's own spans
from being sampled; with none the application begins a trace of its own."""
NO_PARENT: Final = f"00-{'0' * 32}-{'0' * 16}-00"
"""The trace parent that Dapr sends with an event without a trace context: not a valid one, so that nobody takes it for one."""


def new_id() -> str:
    """A random UUID (version 4)."""
    random = _random_hex()
    return f"{random[:8]}-{random[8:12]}-4{random[13:16]}-{_VARIANT[random[16]]}{random[17:20]}-{random[20:]}"


_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_POOL_HEX: Final = 32 * 256
_pool: list[str] = []


def _random_hex() -> str:
    """Sixteen random bytes. They are asked of the system for many at a time, which is most of their price."""
    if not _pool:
        text = os.urandom(_POOL_HEX // 2).hex()
        _pool.extend(text[at : at + 32] for at in range(0, _POOL_HEX, 32))
    return _pool.pop()


def is_parent(text: str) -> bool:
    """Whether a text is a `traceparent`."""
    return _TRACEPARENT.fullmatch(text) is not None


def trace_of(parent: str | None, state: str | None) -> Trace:
    """The trace context that a request carries, or none where it cannot be read."""
    if parent is None or not is_parent(parent):
        return NO_TRACE
    return Trace(parent, state or "")


def parent_in_binary(data: bytes) -> str | None:
    """The parent in `grpc-trace-bin`, as SDKs of other languages send it: the fields 0, 1 and 2 of version 0."""
    if len(data) < 29 or (data[0], data[1], data[18], data[27]) != (0, 0, 1, 2):
        return None
    return f"00-{data[2:18].hex()}-{data[19:27].hex()}-{data[28]:02x}"


def binary_of_parent(parent: str) -> bytes:
    """A parent as `grpc-trace-bin` has it."""
    _, trace, span, flags = map(bytes.fromhex, parent.split("-"))
    return b"\0\0" + trace + b"\1" + span + b"\2" + flags


class EventOrigin(Struct, frozen=True):
    """The place where an event is published, and its publisher."""

    pubsub: str
    topic: str
    app_id: str


def is_cloud_event(content_type: str) -> bool:
    """Whether data of this type are an event that the application made."""
    return _bare(content_type) == CONTENT_TYPE


def is_json(content_type: str) -> bool:
    """Whether data of this type go into an event as JSON. `application/vnd.x+json` does not, as in Dapr."""
    return _bare(content_type) == "application/json"


def is_binary(content_type: str) -> bool:
    """Whether data of this type go into an event as base64."""
    return _bare(content_type) in ("application/octet-stream", "application/cloudevents+protobuf")


def is_text(content_type: str) -> bool:
    """Whether data of this type are text."""
    bare = _bare(content_type)
    return bare.startswith("text/") or bare == "application/xml"


@lru_cache(maxsize=256)
def _bare(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def make(
    data: bytes,
    content_type: str,
    metadata: Mapping[str, str],
    place: EventOrigin,
    trace: Trace,
    now_ms: int,
    expires_at_ms: int | None,
) -> bytes:
    """The event to publish, as JSON. Raises `Invalid` for an application's event that is none."""
    if is_cloud_event(content_type):
        return _complete(data, place, trace, now_ms, expires_at_ms)
    name, value = _data_field(data, content_type)
    if not any(map(_is_override, metadata)):
        first, second, third = _frame(content_type, place, now_ms // 1000, expires_at_ms, trace.state)
        parent = trace.parent.encode()
        pieces = (b'{"', name, b'":', value, first, new_id().encode(), second, parent, _PARENT, parent, third)
        return b"".join(pieces)
    return _overridden(name, value, content_type, metadata, place, trace, now_ms, expires_at_ms)


def _is_override(name: str) -> bool:
    return name.startswith(OVERRIDES)


@lru_cache(maxsize=256)
def _frame(
    content_type: str, place: EventOrigin, now_s: int, expires_at_ms: int | None, state: str
) -> tuple[bytes, bytes, bytes]:
    """The parts of an event around its data, id and trace: equal for many events of one second."""
    expiration = {} if expires_at_ms is None else {"expiration": format_go_instant(expires_at_ms)}
    type_ = content_type or DEFAULT_DATA_CONTENT_TYPE
    between = {
        "pubsubname": place.pubsub,
        "source": place.app_id or DEFAULT_SOURCE,
        "specversion": SPEC_VERSION,
        "time": format_second(now_s),
        "topic": place.topic,
    }
    return (
        b"," + _encode({"datacontenttype": type_, **expiration})[1:-1] + b',"id":"',
        b'",' + _encode(between)[1:-1] + b',"traceid":"',
        b'",' + _encode({"tracestate": state, "type": EVENT_TYPE})[1:],
    )


def _overridden(
    name: bytes,
    value: bytes,
    content_type: str,
    metadata: Mapping[str, str],
    place: EventOrigin,
    trace: Trace,
    now_ms: int,
    expires_at_ms: int | None,
) -> bytes:
    """An event some of whose fields the metadata say."""
    get = metadata.get
    parent = get("cloudevent.traceparent") or get("cloudevent.traceid") or trace.parent
    event: dict[str, Any] = {
        name.decode(): msgspec.Raw(value),
        "datacontenttype": content_type or DEFAULT_DATA_CONTENT_TYPE,
        "id": get("cloudevent.id") or new_id(),
        "pubsubname": place.pubsub,
        "source": get("cloudevent.source") or place.app_id or DEFAULT_SOURCE,
        "specversion": SPEC_VERSION,
        "time": format_second(now_ms // 1000),
        "topic": place.topic,
        "traceid": parent,
        "traceparent": parent,
        "tracestate": get("cloudevent.tracestate") or trace.state,
        "type": get("cloudevent.type") or EVENT_TYPE,
    }
    if subject := get("cloudevent.subject"):
        event["subject"] = subject
    if expires_at_ms is not None:
        event["expiration"] = format_go_instant(expires_at_ms)
    return _encode(event)


def _data_field(data: bytes, content_type: str) -> tuple[bytes, bytes]:
    """The name of the field that has the data, and its value as JSON."""
    if is_json(content_type):
        try:
            # A raw value is not looked into: its text must be sound before it goes on.
            if not data.isascii():
                data.decode()
            return b"data", bytes(_decode_raw(data))
        except UNREADABLE:
            pass
    elif is_binary(content_type):
        return b"data_base64", b'"' + base64.b64encode(data) + b'"'
    return b"data", _encode(data.decode(errors="replace"))


def _complete(data: bytes, place: EventOrigin, trace: Trace, now_ms: int, expires_at_ms: int | None) -> bytes:
    """An application's own event, with the attributes that the runtime sets or fills in."""
    try:
        data.decode()
        given = _decode_object(data)
    except UNREADABLE:
        raise Invalid("data", "is not a CloudEvent: a JSON object is wanted") from None
    event: dict[str, Any] = dict(given)
    for name in ("id", "source", "type", "specversion"):
        if name in given and bytes(given[name])[:1] not in (b'"', b"n"):
            raise Invalid("data", f"is not a CloudEvent: {name} is not a string")
    missing = {
        "id": new_id(),
        "source": DEFAULT_SOURCE,
        "type": EVENT_TYPE,
        "specversion": SPEC_VERSION,
        "time": format_second(now_ms // 1000),
        "traceid": trace.parent,
        "traceparent": trace.parent,
        "tracestate": trace.state,
    }
    event |= {
        name: value
        for name, value in missing.items()
        if name not in given or bytes(given[name]) in (b"null", b'""')
    }
    event["topic"], event["pubsubname"] = place.topic, place.pubsub
    if expires_at_ms is not None:
        event["expiration"] = format_go_instant(expires_at_ms)
    return _encode(event)


def of_raw(data: bytes, topic: str, pubsub: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The event that a subscriber of raw payloads gets."""
    event: dict[str, Any] = {
        "data_base64": base64.b64encode(data).decode(),
        "datacontenttype": "application/octet-stream",
        "id": new_id(),
        "pubsubname": pubsub,
        "source": DEFAULT_SOURCE,
        "specversion": SPEC_VERSION,
        "topic": topic,
        "type": EVENT_TYPE,
    }
    for name in ("traceid", "traceparent", "tracestate"):
        if name in metadata:
            event[name] = metadata[name]
    if "traceparent" in metadata:
        event["traceid"] = metadata["traceparent"]
    return event


def has_expired(event: Mapping[str, Any], now_ms: int) -> bool:
    """Whether an event's `expiration` has passed; one that cannot be read is no expiration, as in Dapr."""
    expiration = event.get("expiration")
    if not isinstance(expiration, str):
        return False
    try:
        at_ms = rfc3339_ms(expiration)
    except ValueError:
        return False
    return at_ms is not None and now_ms > at_ms
