"""Entries that fire due messages into one topic, laid out as columns.

When ten thousand messages are due at one instant, writing these is the hot loop. They differ only in their entry id, the version
that they end, and that version's body, which is copied as it is.
"""

from collections.abc import Sequence
from operator import add
from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tarry.ledger.frame import Unit, unit_of_columns
from tarry.ledger.record import Kind, encode_value

_U64: Final = 0xCF
"""How msgpack begins an unsigned number of eight bytes; and, next, an array of two: a key."""
_TWO: Final = 0x92
_FIELDS: Final = [
    ("u64", "u1"), ("published_at_ms", ">u8"), ("u64_2", "u1"), ("entry_id", ">u8"),
    ("two", "u1"), ("u64_3", "u1"), ("fire_at_ms", ">u8"), ("u64_4", "u1"), ("seq", ">u8"),
]  # fmt: skip


_HEAD_BYTES: Final = np.dtype(_FIELDS).itemsize


def _prefix(topic: str) -> bytes:
    # An Entry is a msgpack array; here of its tag and the first six fields, the rest have defaults.
    return b"\x97" + encode_value(int(Kind.ENTRY)) + encode_value(topic) + encode_value(0)


def added_bytes(topic: str) -> int:
    """Bytes that the body of an entry adds to that of the version which it fires."""
    return len(_prefix(topic)) + _HEAD_BYTES


def unit_of_fired(
    topic: str,
    first_id: int,
    published_at_ms: int,
    fires: NDArray[np.int64],
    seqs: NDArray[np.int64],
    put_bodies: Sequence[bytes],
) -> Unit:
    """Entries, numbered from one on, that end the versions of these keys with these bodies."""
    count = len(put_bodies)
    prefix = _prefix(topic)
    heads = np.empty(count, [("prefix", f"V{len(prefix)}"), *_FIELDS])
    heads["prefix"] = np.void(prefix)
    heads["u64"] = heads["u64_2"] = heads["u64_3"] = heads["u64_4"] = _U64
    heads["published_at_ms"] = published_at_ms
    heads["entry_id"] = np.arange(first_id, first_id + count)
    heads["two"] = _TWO
    heads["fire_at_ms"] = fires
    heads["seq"] = seqs
    bodies = list(map(add, heads.view(f"V{heads.itemsize}").tolist(), put_bodies))
    sizes = np.fromiter(map(len, put_bodies), np.uint32, count) + heads.itemsize
    crcs = np.fromiter(map(google_crc32c.value, bodies), np.uint32, count)
    return unit_of_columns(Kind.ENTRY, sizes, crcs, b"".join(bodies), kills_seq=seqs, kills_fire_at_ms=fires)
