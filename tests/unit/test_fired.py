"""Entries that fire due messages: written as columns, they are what the plain encoder would have written."""

from collections.abc import Sequence

import msgspec
import numpy as np
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from tarry.ledger.fired import unit_of_fired
from tarry.ledger.frame import FIXED, Unit, joined_units, unit_of
from tarry.ledger.read_record import read_entry
from tarry.ledger.record import Entry, Key, Put, encode

TOPIC = "persistent://a/b/c"
NOW_MS = 1_794_740_400_123


def put(payload: bytes = b"payload") -> bytes:
    version = Put(
        2000, 1999, 1000, "a/b", TOPIC, "k", "ann", "http", None, None, Key(5, 6), 0, False, payload, {"a": "b"}, 1000, 999,
    )  # fmt: skip
    return encode(version).body


def fired(first_id: int, at_ms: int, keys: Sequence[Key], bodies: Sequence[bytes]) -> Unit:
    fires, seqs = np.array(keys, np.int64).T
    return unit_of_fired(TOPIC, first_id, at_ms, fires, seqs, bodies)


def split(unit: Unit) -> list[bytes]:
    """The bodies one by one, each of which has the CRC that is said."""
    table = np.frombuffer(unit.table, FIXED)
    stops = np.cumsum(table["size"]).tolist()
    each = [unit.bodies[stop - size : stop] for stop, size in zip(stops, table["size"].tolist(), strict=True)]
    assert (len(each), stops[-1]) == (unit.records, len(unit.bodies))
    assert [value(one) for one in each] == table["crc"].tolist()
    return each


@given(
    st.lists(st.integers(0, 5_000), min_size=1, max_size=40),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 62),
    st.integers(1, 1 << 48),
)
def test_what_is_written_as_columns_is_read_as_if_it_were_written_plainly(
    sizes: list[int], first_id: int, at_ms: int, first_seq: int
) -> None:
    bodies = [put(bytes([n]) * size) for n, size in enumerate(sizes)]
    keys = [Key(2000 + n, first_seq + n) for n in range(len(sizes))]
    unit = fired(first_id, at_ms, keys, bodies)
    expected = [
        Entry(TOPIC, 0, at_ms, first_id + n, key, msgspec.Raw(body))
        for n, (key, body) in enumerate(zip(keys, bodies, strict=True))
    ]
    assert [msgspec.msgpack.decode(one) for one in split(unit)] == [
        msgspec.msgpack.decode(encode(entry).body)[:7] for entry in expected
    ]
    plain = np.frombuffer(unit_of(list(map(encode, expected))).table, FIXED)
    for field in ("kind", "flags", "fire_at_ms", "kills_seq", "kills_fire_at_ms"):
        assert np.frombuffer(unit.table, FIXED)[field].tolist() == plain[field].tolist()


def test_an_entry_is_read_with_the_version_that_it_fired() -> None:
    (body,) = split(fired(9, NOW_MS, [Key(2000, 70_000)], [put()]))
    read = read_entry(body)
    assert (read.entry_id, read.published_at_ms, read.fired) == (9, NOW_MS, Key(2000, 70_000))
    assert read.put is not None
    assert (read.put.payload, read.put.headers, read.put.origin) == (b"payload", {"a": "b"}, Key(5, 6))


def test_units_are_joined_in_their_order() -> None:
    one = fired(1, NOW_MS, [Key(2000, 7), Key(2000, 8)], [put(b"1"), put(b"22")])
    two = fired(5, NOW_MS, [Key(2001, 9)], [put(b"333")])
    assert joined_units([one]) is one
    assert split(joined_units([one, two])) == [*split(one), *split(two)]
