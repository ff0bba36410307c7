"""The traces that messages belong to, in the property in which OpenTelemetry's clients put them.

The messages of a batch have their properties in the payload, each before its own. They are read where that is neither compressed nor
encrypted; delayed messages are never sent in batches.
"""

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from tarry.core.telemetry.tracing import TRACEPARENT
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import payload_of


def callers_of(metadata: wire.MessageMetadata, message: bytes) -> tuple[str, ...]:
    """The trace contexts of a message as it was sent, or of those that are in it."""
    if not metadata.HasField("num_messages_in_batch"):
        return tuple(_parents(metadata.properties))
    if metadata.compression != wire.NONE or metadata.encryption_keys:
        return ()
    try:
        return tuple(
            parent
            for single in _singles(payload_of(message), metadata.num_messages_in_batch)
            for parent in _parents(single.properties)
        )
    except DecodeError:
        # What a batch holds is between its producer and its consumers.
        return ()


def _parents(properties: Iterable[wire.KeyValue]) -> Iterator[str]:
    return (str(one.value) for one in properties if one.key == TRACEPARENT)


def _singles(payload: bytes, count: int) -> Iterator[wire.SingleMessageMetadata]:
    """The metadata before each message of a batch: a size, and as many bytes."""
    at = 0
    for _ in range(count):
        start = at + 4
        stop = start + int.from_bytes(payload[at:start], "big")
        if not start < stop <= len(payload):
            raise DecodeError("the batch ends before its last message")
        single = wire.SingleMessageMetadata.FromString(payload[start:stop])
        yield single
        at = stop + max(0, single.payload_size)
