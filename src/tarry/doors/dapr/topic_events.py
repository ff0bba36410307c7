"""Messages for applications as gRPC has them: a CloudEvent in the fields of `TopicEventRequest`. Pure."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from dapr.proto.runtime.v1 import appcallback_pb2
from google.protobuf.struct_pb2 import Struct

from tarry.doors.dapr.channel import AppMessage, Status
from tarry.doors.dapr.cloudevents import is_cloud_event, is_json

_OWN_FIELDS: Final = frozenset(
    ("id", "source", "type", "specversion", "datacontenttype", "data", "data_base64")
)
_STATUSES: Final = {
    appcallback_pb2.TopicEventResponse.SUCCESS: Status.SUCCESS,
    appcallback_pb2.TopicEventResponse.RETRY: Status.RETRY,
    appcallback_pb2.TopicEventResponse.DROP: Status.DROP,
}


def status_of(number: int) -> Status:
    """The status that an application's number stands for; an unknown one stands for another attempt."""
    return _STATUSES.get(number, Status.RETRY)  # type: ignore[call-overload, no-any-return]


def topic_event(arrival: AppMessage) -> appcallback_pb2.TopicEventRequest:
    """One message."""
    event = arrival.event
    return appcallback_pb2.TopicEventRequest(
        id=_text(event, "id"),
        source=_text(event, "source"),
        type=_text(event, "type"),
        spec_version=_text(event, "specversion"),
        data_content_type=_text(event, "datacontenttype"),
        data=data_of(event),
        topic=arrival.topic,
        pubsub_name=arrival.pubsub,
        path=arrival.path,
        extensions=_extensions(event),
    )


def bulk_event(arrivals: Sequence[AppMessage]) -> appcallback_pb2.TopicEventBulkRequest:
    """Several messages for one path."""
    first = arrivals[0]
    return appcallback_pb2.TopicEventBulkRequest(
        id=first.entry_id,
        entries=[_entry(one) for one in arrivals],
        metadata={"pubsubName": first.pubsub},
        topic=first.topic,
        pubsub_name=first.pubsub,
        type="com.dapr.event.sent.bulk",
        path=first.path,
    )


def _entry(arrival: AppMessage) -> appcallback_pb2.TopicEventBulkRequestEntry:
    entry = appcallback_pb2.TopicEventBulkRequestEntry(
        entry_id=arrival.entry_id, content_type=arrival.content_type or "", metadata=arrival.metadata
    )
    if arrival.raw:
        entry.bytes = arrival.payload
        return entry
    event = arrival.event
    entry.cloud_event.CopyFrom(
        appcallback_pb2.TopicEventCERequest(
            id=_text(event, "id"),
            source=_text(event, "source"),
            type=_text(event, "type"),
            spec_version=_text(event, "specversion"),
            data_content_type=_text(event, "datacontenttype"),
            data=data_of(event),
            extensions=_extensions(event),
        )
    )
    return entry


def data_of(event: Mapping[str, Any]) -> bytes:
    """The bytes of an event's data."""
    encoded = event.get("data_base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded)
        except ValueError:
            return encoded.encode()
    data = event.get("data")
    if data is None:
        return b""
    type_ = _text(event, "datacontenttype")
    if isinstance(data, str) and not is_json(type_) and not is_cloud_event(type_):
        return data.encode()
    return msgspec.json.encode(data)


def _extensions(event: Mapping[str, Any]) -> Struct:
    extensions = Struct()
    extensions.update({name: value for name, value in event.items() if name not in _OWN_FIELDS})
    return extensions


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""
