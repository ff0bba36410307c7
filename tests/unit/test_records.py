"""Records: what is encoded decodes the same, and the quick ways give what the plain ways give."""

from typing import Any

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tarry.core.messages.message import Message
from tarry.engine.admission.columns import columns_of
from tarry.engine.admission.destinations import Destinations, OwnerLimits
from tarry.engine.admission.planner import Planner
from tarry.engine.records.changes import changes_of
from tarry.engine.records.versions import dead_letter, dead_letter_topic, end_of, end_unread, new_version
from tarry.ledger.frame import ROW, Unit
from tarry.ledger.lanes import lane_of
from tarry.ledger.read_record import ReadEntry, ReadPut, decode_head, decode_heads, read_due
from tarry.ledger.record import (
    NO_PUT,
    Ack,
    Claim,
    Encoded,
    Entry,
    Finalise,
    Key,
    Kind,
    Mark,
    PolicySet,
    Put,
    Record,
    Seek,
    Subscribe,
    TopicSet,
    Unsubscribe,
    decode,
    decode_put,
    encode,
)
from tarry.testing.world import World


def rows_of(unit: Unit) -> list[Encoded]:
    """The records of a unit, by its layout alone."""
    found, at = [], 0
    for kind, _, lane, size, crc, *times in ROW.iter_unpack(unit.table):
        found.append(Encoded._make([kind, lane, crc, *times, unit.bodies[at : at + size]]))
        at += size
    assert (len(found), at) == (unit.records, len(unit.bodies))
    return found


def put(**changes: Any) -> Put:
    plain = Put(
        2000, 1999, 1000, "public/default", "persistent://public/default/t", "k", "ann", "http", "g", 50,
        None, 0, False, b"payload", {"a": "b"}, 1000, 999,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


RECORDS: list[Record] = [
    put(),
    put(due_at_ms=None, key=None, group=None, ttl_ms=None, delay_ms=None, headers={}, payload=b""),
    put(
        origin=Key(1, 2), kills=Key(3, 4), attempts=7, listed=True, idempotency_key="i", fingerprint=b"f" * 16
    ),
    put(fire_at_ms=(1 << 47) - 1, payload=bytes(70_000), headers={str(n): "x" for n in range(64)}),
    end_of(put(), Key(2000, 9), "failed", 3000, "no", "ref", 4),
    end_unread(Key(2000, 9), 3000, "damaged"),
    Entry("t", 0, 5, 6, Key(2000, 9), msgspec.Raw(encode(put()).body)),
    Entry("t", 77, 5, 6, None, NO_PUT, b"body", {"h": "v"}, "key", "producer", 12, 76, "ann", "http", 9),
    Entry("t", 77, 5, 6, None, NO_PUT, b"body", carries=Key(77, 3)),
    Claim(9, "g", "ann", 5),
    Ack("t", "s", 5, [7, 9, 1 << 40]),
    Subscribe("t", "s", "shared", 4, {"max_redeliveries": "3"}),
    Unsubscribe("t", "s"),
    Seek("t", "s", 99),
    PolicySet("topic", "t", {"tick_ms": 5, "accept_per_second": 0.5, "delayed_delivery": False}),
    PolicySet("topic", "t", None),
    Mark(Key(5, 0), 6),
    TopicSet("t", True, 0),
    TopicSet("t", False, 4, 7),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_reads_back(record: Record) -> None:
    encoded = encode(record)
    assert decode(encoded.body) == record
    assert encoded.crc == google_crc32c.value(encoded.body)
    assert encoded.kind == Kind[type(record).__name__.removesuffix("Set").upper()]


def test_the_fixed_part_says_when_and_what_dies() -> None:
    version = encode(put(kills=Key(30, 4)))
    assert (version.fire_at_ms, version.kills_seq, version.kills_fire_at_ms) == (2000, 4, 30)
    assert version.lane == lane_of("public/default", "ann", "http")
    end = encode(end_of(put(), Key(2000, 9), "sent", 1, None))
    assert (end.fire_at_ms, end.kills_seq, end.kills_fire_at_ms) == (0, 9, 2000)
    fired = encode(Entry("t", 0, 5, 6, Key(2000, 9), msgspec.Raw(encode(put()).body)))
    assert (fired.kills_seq, fired.kills_fire_at_ms) == (9, 2000)
    carried = encode(Entry("t", 77, 5, 6, None, NO_PUT, carries=Key(77, 3)))
    assert (carried.fire_at_ms, carried.kills_seq, carried.kills_fire_at_ms) == (77, 3, 77)


def test_the_head_of_a_put_is_its_beginning() -> None:
    version = put(origin=Key(1, 2), listed=True, attempts=3)
    head = decode_head(encode(version).body)
    for name in head.__struct_fields__:
        assert getattr(head, name) == getattr(version, name)
    bodies = [encode(version).body, encode(put()).body]
    assert decode_heads(bodies) == [decode_head(body) for body in bodies]
    assert decode_heads([]) == []


def test_heads_of_anything_else_are_refused() -> None:
    entry = encode(Entry("t", 77, 5, 6, None, NO_PUT)).body
    with pytest.raises(msgspec.ValidationError):
        decode_heads([encode(put()).body, entry])


def test_what_may_become_due_is_read_in_one_call() -> None:
    version = put(origin=Key(1, 2), ttl_ms=9)
    entry = Entry("t", 77, 5, 6, None, NO_PUT, b"late", {"a": "b"}, due_at_ms=70)
    read_put, read = read_due([encode(version).body, encode(entry).body])
    assert isinstance(read_put, ReadPut)
    for name in read_put.__struct_fields__:
        assert getattr(read_put, name) == getattr(version, name)
    assert isinstance(read, ReadEntry)
    assert (read.entry_id, read.payload, read.due_at_ms, read.put) == (6, b"late", 70, None)
    with pytest.raises(msgspec.ValidationError):
        read_due([encode(end_of(put(), Key(2000, 9), "sent", 1, None)).body])


def test_a_new_version_is_whole_and_kills_the_old_one() -> None:
    old = put(idempotency_key="once")
    new = new_version(old, Key(2000, 9), 5000, attempts=2)
    assert (new.fire_at_ms, new.kills, new.origin, new.attempts) == (5000, Key(2000, 9), Key(2000, 9), 2)
    # The key belongs to the request, not to each version: a replay must not see a second one.
    assert new.idempotency_key is None
    assert (new.payload, new.headers, new.due_at_ms) == (old.payload, old.headers, old.due_at_ms)
    newer = new_version(new, Key(5000, 12), 6000)
    assert (newer.kills, newer.origin) == (Key(5000, 12), Key(2000, 9))


def test_an_end_tells_all_about_the_message_but_its_body() -> None:
    end = end_of(put(origin=Key(1, 2)), Key(2000, 9), "sent", 3000, None, "ref", 4)
    assert (end.kills, end.origin, end.outcome, end.reference, end.attempts) == (
        Key(2000, 9), Key(1, 2), "sent", "ref", 4,
    )  # fmt: skip
    for name in (
        "due_at_ms",
        "accepted_at_ms",
        "namespace",
        "destination",
        "key",
        "owner",
        "door",
        "group",
        "listed",
    ):
        assert getattr(end, name) == getattr(put(), name)


def test_a_dead_letter_holds_the_message_and_why() -> None:
    topic = dead_letter_topic("acme/eu", "dead-letters")
    letter = dead_letter(put(), "1f", topic, 7, 3000, "no route", 3)
    assert (letter.topic, letter.entry_id, letter.payload, letter.key) == (
        "persistent://acme/eu/dead-letters", 7, b"payload", "k",
    )  # fmt: skip
    assert letter.headers == {
        "a": "b",
        "tarry-id": "1f",
        "tarry-destination": "persistent://public/default/t",
        "tarry-reason": "no route",
        "tarry-attempts": "3",
    }
    assert letter.fired is None


def test_bodies_from_columns_decode_as_what_they_say() -> None:
    """A row of Arrow is stored as the same record that a single message is."""
    batch = pa.record_batch(
        {
            "destination": pa.array(["t", "u", "t"]),
            "payload": pa.array([b"", b"x" * 70_000, b"z"], pa.binary()),
            "due_at_ms": pa.array([5000, 6000, 7000]),
            "key": pa.array([None, "k" * 300, "é"]),
            "owner": pa.array(["ann", None, "é" * 40]),
            "ttl_ms": pa.array([None, 1, 1 << 40]),
            "headers": pa.array([None, [("a", "b")], []], pa.map_(pa.string(), pa.string())),
        }
    )
    world = World()
    state = world.engine_state
    planner = Planner(world.journal, state, Destinations(state, {}), OwnerLimits(state.pending))
    defaults = Message(destination="", owner="bob", door="http")
    (plan,), errors = planner.plan(columns_of(batch, defaults), defaults, 1000)
    assert not errors
    unit = plan.written.unit
    records = rows_of(unit)
    assert unit.fixed["size"].tolist() == [len(encoded.body) for encoded in records]
    for row, encoded in enumerate(records):
        version = decode_put(encoded.body)
        again = encode(version)
        assert (again.kind, again.lane, again.fire_at_ms) == (encoded.kind, encoded.lane, encoded.fire_at_ms)
        assert encoded.crc == google_crc32c.value(encoded.body)
        assert version.due_at_ms == (5000, 6000, 7000)[row]
        assert version.payload == (b"", b"x" * 70_000, b"z")[row]
        assert version.key == (None, "k" * 300, "é")[row]
        assert version.owner == ("ann", "bob", "é" * 40)[row]
        assert version.ttl_ms == (None, 1, 1 << 40)[row]
        assert version.headers == ({}, {"a": "b"}, {})[row]
        assert version.destination == f"persistent://public/default/{'tut'[row]}"
        assert (version.accepted_at_ms, version.delay_ms) == (1000, (4000, 5000, 6000)[row])
        assert decode_head(encoded.body).owner == version.owner
    assert plan.written.changes == changes_of([decode_put(encoded.body) for encoded in records])
    np.testing.assert_array_equal(plan.rows, [0, 1, 2])


def test_an_older_body_still_decodes() -> None:
    """Fields are only ever added at the end with a default: a body without the last ones is a version too."""
    whole = msgspec.msgpack.decode(encode(put()).body)
    assert decode_put(msgspec.msgpack.encode(whole[:18])) == put()
    # And a newer one, with a field that is not known here.
    assert decode_put(msgspec.msgpack.encode([*whole, "new"])) == put()


def test_a_finalise_names_its_outcome() -> None:
    assert {encode(Finalise(Key(1, 1), Key(1, 1), outcome, 1, None, None, 0, 1, 1, "", "", None, "", "", None, False)).kind
            for outcome in ("sent", "cancelled", "failed")} == {Kind.FINALISE}  # fmt: skip
