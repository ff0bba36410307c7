"""The traces that a producer's messages belong to: of one message, and of those of a batch."""

import zlib
from typing import Any

import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import with_checksum
from tarry.doors.pulsar.traces import callers_of

PARENTS = [f"00-{digit * 32}-b7ad6b7169203331-01" for digit in "12"]


def properties(*parents: str) -> list[wire.KeyValue]:
    return [
        wire.KeyValue(key="other", value="x"),
        *(wire.KeyValue(key="traceparent", value=parent) for parent in parents),
    ]


def batch(*parents: str) -> bytes:
    """The payload of a batch of one message for each, and one that has none."""
    singles = [properties(parent) for parent in parents] + [properties()]
    written = [wire.SingleMessageMetadata(properties=one, payload_size=3) for one in singles]
    return b"".join(one.ByteSize().to_bytes(4, "big") + one.SerializeToString() + b"abc" for one in written)


def found(payload: bytes, *, checked: bool = True, **fields: Any) -> tuple[str, ...]:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
    written = metadata.SerializeToString()
    plain = len(written).to_bytes(4, "big") + written + payload
    return callers_of(metadata, with_checksum(written, payload) if checked else plain)


def test_a_message_of_its_own() -> None:
    assert found(b"x") == ()
    assert found(b"x", properties=properties(PARENTS[0])) == (PARENTS[0],)


@pytest.mark.parametrize("checked", [True, False])
def test_the_messages_of_a_batch(checked: bool) -> None:
    assert found(batch(*PARENTS), checked=checked, num_messages_in_batch=3) == tuple(PARENTS)
    assert found(batch(), checked=checked, num_messages_in_batch=1) == ()


def test_what_cannot_be_read_is_no_error() -> None:
    whole = batch(*PARENTS)
    assert found(zlib.compress(whole), num_messages_in_batch=3, compression=wire.ZLIB) == ()
    keys = [wire.EncryptionKeys(key="k", value=b"v")]
    assert found(whole, num_messages_in_batch=3, encryption_keys=keys) == ()
    for payload in (b"", whole[:7], whole[:-5], b"\xff" * 40):
        assert found(payload, num_messages_in_batch=2_000_000_000) == ()
