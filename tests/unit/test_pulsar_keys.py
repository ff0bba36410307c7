"""Key-shared subscriptions of the Pulsar door, without I/O: which key counts, and who gets it."""

from typing import Any

import pytest

from tarry.core.murmur import murmur3_32
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tests.unit.pulsar_kit import (
    Desk,
    Sub,
    filled,
    ids,
)


def sticky(*ranges: tuple[int, int]) -> wire.KeySharedMeta:
    return wire.KeySharedMeta(
        keySharedMode=wire.KeySharedMode.STICKY,
        hashRanges=[wire.IntRange(start=low, end=high) for low, high in ranges],
    )


def test_sticky_consumers_get_the_hash_slots_that_they_chose() -> None:
    desk = Desk()
    low, high = desk.client(), desk.client()
    low.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((0, 32767)))
    assert (
        high.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((32000, 40000)), permits=0).error.error
        == Code.ConsumerAssignError
    )
    assert high.subscribe(type_=Sub.Key_Shared, permits=0).error.error == Code.ConsumerAssignError
    high.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((32768, 60000)))
    writer = desk.client()
    writer.produce()
    expected: dict[str, list[bytes]] = {"low": [], "high": [], "nobody": []}
    for sequence in range(60):
        key = f"key-{sequence}"
        slot = murmur3_32(key.encode()) % 65536
        whose = "low" if slot < 32768 else "high" if slot <= 60000 else "nobody"
        expected[whose].append(key.encode())
        writer.send(sequence, key.encode(), partition_key=key)
    assert [payload for _, payload in low.messages()] == expected["low"]
    assert [payload for _, payload in high.messages()] == expected["high"]
    rest = desk.client()
    rest.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((60001, 65535)))
    assert [payload for _, payload in rest.messages()] == expected["nobody"]


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"partition_key": "az==", "partition_key_b64_encoded": True}, b"k"),
        ({"partition_key": "é", "partition_key_b64_encoded": True}, "é".encode()),
    ],
)
def test_which_key_counts(metadata: dict[str, Any], key: bytes) -> None:
    desk = Desk()
    slot = murmur3_32(key) % 65536
    client = desk.client()
    client.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((slot, slot)))
    filled(desk, 1, **metadata)
    assert len(client.messages()) == 1


@pytest.mark.parametrize("key", [b"\xff\xfe", b"k" * 5000])
def test_keys_that_are_no_short_text_keep_their_order(key: bytes) -> None:
    desk = Desk()
    client = desk.client()
    client.subscribe(type_=Sub.Key_Shared)
    filled(desk, 3, ordering_key=key)
    assert ids(client) == [0, 1, 2]


def test_keys_of_a_consumer_that_held_too_much_come_once_it_does_not() -> None:
    desk = Desk(max_unacked_messages=2)
    client = desk.client()
    client.subscribe(type_=Sub.Key_Shared)
    other = desk.client()
    writer = desk.client()
    writer.produce()
    for sequence in range(6):
        writer.send(sequence, b"x", partition_key="a" if sequence < 2 else "b")
    assert ids(client) == [0, 1]
    # Looking further parks them.
    other.subscribe(type_=Sub.Key_Shared, consumer_name="other")
    other.connection.lost()
    got: list[int] = []
    held = [0, 1]
    while held:
        client.ack(*held)
        held = ids(client)
        got += held
    assert got == [2, 3, 4, 5]
