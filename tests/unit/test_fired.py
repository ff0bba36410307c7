"""Entries that fire due messages: written as columns, and drafted ahead, they are what the plain encoder would have written."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tarry.ledger.crc import followed_by, looked_up, number_followed_by
from tarry.ledger.fired import FEW_SIZES, Draft, Fired, filled, fired
from tarry.ledger.read_record import read_entry
from tarry.ledger.record import Entry, Key, Put, decode, encode

TOPIC = "persistent://a/b/c"
NOW_MS = 1_794_740_400_123


def put(payload: bytes = b"payload") -> bytes:
    version = Put(
        2000, 1999, 1000, "a/b", TOPIC, "k", "ann", "http", None, None, Key(5, 6), 0, False, payload, {"a": "b"}, 1000, 999,
    )  # fmt: skip
    return encode(version).body


def split(entries: Fired) -> list[bytes]:
    """The bodies one by one, each of which has the CRC that is said."""
    bodies = bytes(entries.bodies)
    stops = np.cumsum(entries.sizes).tolist()
    each = [bodies[stop - size : stop] for stop, size in zip(stops, entries.sizes.tolist(), strict=True)]
    assert stops[-1] == len(bodies)
    assert [value(one) for one in each] == entries.crcs.tolist()
    return each


def keys(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(2000, 2000 + count), np.arange(70_000, 70_000 + count)


def drafted(bodies: Sequence[bytes]) -> Draft:
    return Draft(TOPIC, *keys(len(bodies)), bodies)


@pytest.mark.parametrize(("entry_id", "seq"), [(0, 1), (1 << 40, (1 << 48) - 1)])
def test_what_is_written_as_columns_is_read_as_if_it_were_written_plainly(entry_id: int, seq: int) -> None:
    (quick,) = split(fired(TOPIC, entry_id, 123, np.array([2000]), np.array([seq]), [put()]))
    assert decode(quick) == Entry(TOPIC, 0, 123, entry_id, Key(2000, seq), msgspec.Raw(put()))
    read = read_entry(quick)
    assert (read.entry_id, read.fired) == (entry_id, Key(2000, seq))
    assert read.put is not None
    assert (read.put.payload, read.put.headers, read.put.origin) == (b"payload", {"a": "b"}, Key(5, 6))


def test_entries_are_numbered_from_the_first_on() -> None:
    entries = [
        decode(one) for one in split(fired(TOPIC, 9, NOW_MS, *keys(3), [put(b"x" * n) for n in range(3)]))
    ]
    assert entries == [
        Entry(TOPIC, 0, NOW_MS, 9 + n, Key(2000 + n, 70_000 + n), msgspec.Raw(put(b"x" * n)))
        for n in range(3)
    ]


sizes_of_payloads = st.one_of(
    st.lists(st.sampled_from((0, 3, 4_000)), min_size=1, max_size=40),
    st.lists(st.integers(0, 5_000), min_size=1, max_size=40),
)


@given(sizes_of_payloads, st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_a_draft_that_is_filled_in_is_what_would_have_been_written(
    sizes: list[int], first_id: int, at_ms: int
) -> None:
    bodies = [put(bytes([n]) * size) for n, size in enumerate(sizes)]
    (entries,) = filled([drafted(bodies)], [first_id], at_ms)
    assert split(entries) == split(fired(TOPIC, first_id, at_ms, *keys(len(sizes)), bodies))


@pytest.mark.parametrize("sizes", [1, FEW_SIZES, FEW_SIZES + 1])
def test_a_draft_may_be_filled_in_again(sizes: int) -> None:
    """Where there was no room in the ledger, the next try has other numbers."""
    bodies = [put(b"x" * n) for n in range(sizes)] * 40
    draft = drafted(bodies)
    for first_id, at_ms in ((250, NOW_MS), (65_530, NOW_MS + 70), (0, 0)):
        (entries,) = filled([draft], [first_id], at_ms)
        assert split(entries) == split(fired(TOPIC, first_id, at_ms, *keys(len(bodies)), bodies))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 1), (1, FEW_SIZES, FEW_SIZES)])
def test_several_drafts_are_filled_in_at_once(sizes: tuple[int, ...]) -> None:
    """Each has few sizes, all together may have many."""
    lots = [[put(b"x" * (n + 10 * at)) for n in range(count)] for at, count in enumerate(sizes)]
    first_ids = [7, 90_000, 3]
    found = filled([drafted(bodies) for bodies in lots], first_ids, NOW_MS)
    assert len(found) == 3
    for entries, bodies, first_id in zip(found, lots, first_ids, strict=True):
        assert split(entries) == split(fired(TOPIC, first_id, NOW_MS, *keys(len(bodies)), bodies))


# CRCs


@given(st.binary(max_size=40), st.integers(0, (1 << 64) - 1), st.binary(max_size=700))
def test_what_a_number_does_to_a_crc(before: bytes, number: int, after: bytes) -> None:
    numbers = np.array([number], np.uint64)
    difference = looked_up(number_followed_by(len(after)), numbers)
    blank, whole = before + bytes(8) + after, before + number.to_bytes(8, "big") + after
    assert value(blank) ^ int(difference[0]) == value(whole)


def test_tables_that_stand_side_by_side() -> None:
    numbers = np.array([7, 1 << 30, 7], np.uint32)
    both = np.concatenate((followed_by(1), followed_by(2)), axis=1)
    found = looked_up(both, numbers, np.array([0, 256, 256]))
    assert found[:1] == looked_up(followed_by(1), numbers[:1])
    assert found[1:].tolist() == looked_up(followed_by(2), numbers[1:]).tolist()
