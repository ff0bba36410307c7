"""Entries that fire due messages into one topic, as columns; and drafts of such entries.

When ten thousand messages are due at one instant, writing these is the hot loop. They differ only in their entry id, the version
that they end, and that version's body, which is copied as it is. All but the ids and the instant of publication is known before
they are due. So who reads them ahead has drafts made, and when they are due two numbers are filled in.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tarry.ledger.crc import looked_up, number_followed_by
from tarry.ledger.record import Kind, encode_value

_U64: Final = 0xCF
"""How msgpack begins an unsigned number of eight bytes; and, next, an array of two: a key."""
_TWO: Final = 0x92
_FIELDS: Final = [
    ("u64", "u1"), ("published_at_ms", ">u8"), ("u64_2", "u1"), ("entry_id", ">u8"),
    ("two", "u1"), ("u64_3", "u1"), ("fire_at_ms", ">u8"), ("u64_4", "u1"), ("seq", ">u8"),
]  # fmt: skip

_HEAD_BYTES: Final = np.dtype(_FIELDS).itemsize
_INSTANT: Final = 1
_ID: Final = 10
_FILLED: Final = 18
"""Behind the prefix: where the instant and the entry id are, and where what is filled in ends."""

FEW_SIZES: Final = 8
"""Maximum number of sizes of drafts whose CRCs are prepared: the tables of a size take tens of microseconds to make."""


class Fired(NamedTuple):
    """Entries, as the ledger has them."""

    bodies: bytes | memoryview
    """One after another."""
    sizes: NDArray[np.uint32]
    crcs: NDArray[np.uint32]


def fired(
    topic: str,
    first_id: int,
    published_at_ms: int,
    fires: NDArray[np.int64],
    seqs: NDArray[np.int64],
    put_bodies: Sequence[bytes],
) -> Fired:
    """Entries, numbered from one on, that end the versions of these keys with these bodies."""
    ids = np.arange(first_id, first_id + len(put_bodies))
    return _laid_out(_prefix(topic), published_at_ms, ids, fires, seqs, put_bodies)


def _prefix(topic: str) -> bytes:
    # An Entry is a msgpack array; here of its tag and the first six fields, the rest have defaults.
    return b"\x97" + encode_value(int(Kind.ENTRY)) + encode_value(topic) + encode_value(0)


def added_bytes(topic: str) -> int:
    """Bytes that the body of an entry adds to that of the version which it fires."""
    return len(_prefix(topic)) + _HEAD_BYTES


def _laid_out(
    prefix: bytes,
    published_at_ms: int,
    ids: "NDArray[np.int64] | int",
    fires: NDArray[np.int64],
    seqs: NDArray[np.int64],
    put_bodies: Sequence[bytes],
) -> Fired:
    count = len(put_bodies)
    heads = np.empty(count, [("prefix", f"V{len(prefix)}"), *_FIELDS])
    heads["prefix"] = np.void(prefix)
    heads["u64"] = heads["u64_2"] = heads["u64_3"] = heads["u64_4"] = _U64
    heads["published_at_ms"] = published_at_ms
    heads["entry_id"] = ids
    heads["two"] = _TWO
    heads["fire_at_ms"] = fires
    heads["seq"] = seqs
    bodies = list(map(add, heads.view(f"V{heads.itemsize}").tolist(), put_bodies))
    sizes = np.fromiter(map(len, bodies), np.uint32, count)
    return Fired(b"".join(bodies), sizes, np.fromiter(map(google_crc32c.value, bodies), np.uint32, count))


class Draft:
    """Entries of a topic in which two numbers are 0: their ids, and the instant of their publication."""

    __slots__ = ("_bodies", "_ids", "_instants", "_numbers", "crcs", "different", "following", "sizes")

    def __init__(
        self, topic: str, fires: NDArray[np.int64], seqs: NDArray[np.int64], put_bodies: Sequence[bytes]
    ) -> None:
        prefix = _prefix(topic)
        bodies, self.sizes, self.crcs = _laid_out(prefix, 0, 0, fires, seqs, put_bodies)
        self._bodies = bytearray(bodies)
        # A number of eight bytes at each place of the bodies.
        self._numbers = np.ndarray(len(bodies) - 7, ">u8", self._bodies, strides=(1,))
        behind_prefix = np.cumsum(self.sizes, dtype=np.int64) - self.sizes + len(prefix)
        self._instants = behind_prefix + _INSTANT
        self._ids = behind_prefix + _ID
        self.following = self.sizes.astype(np.int64) - len(prefix) - _FILLED
        """How many bytes there are behind the two numbers."""
        self.different = np.unique(self.following).tolist()
        if len(self.different) <= FEW_SIZES:
            # Made now, they need not be made at the due instant.
            for size in self.different:
                number_followed_by(size)

    def __len__(self) -> int:
        return len(self.sizes)

    def fill(self, ids: NDArray[np.int64], published_at_ms: int) -> memoryview:
        """The bodies with both numbers of each, until it is filled again."""
        self._numbers[self._instants] = published_at_ms
        self._numbers[self._ids] = ids
        return memoryview(self._bodies)


def filled(drafts: Sequence[Draft], first_ids: Sequence[int], published_at_ms: int) -> list[Fired]:
    """Drafts with their numbers: each is numbered from an id on. The CRCs are had for all at once."""
    counts = list(map(len, drafts))
    cuts = [0, *accumulate(counts)]
    ids = np.concatenate(
        [np.arange(first, first + count) for first, count in zip(first_ids, counts, strict=True)]
    )
    parts = [slice(start, stop) for start, stop in pairwise(cuts)]
    bodies = [draft.fill(ids[part], published_at_ms) for draft, part in zip(drafts, parts, strict=True)]
    crcs = _crcs(drafts, ids, published_at_ms)
    if crcs is None:
        return [_summed(text, draft.sizes) for text, draft in zip(bodies, drafts, strict=True)]
    return [
        Fired(text, draft.sizes, crcs[part]) for text, draft, part in zip(bodies, drafts, parts, strict=True)
    ]


def _crcs(drafts: Sequence[Draft], ids: NDArray[np.int64], published_at_ms: int) -> NDArray[np.uint32] | None:
    """From those of the drafts, and what the numbers do to them; None if there are too many sizes for that."""
    sizes, which = _sizes(drafts)
    if len(sizes) > FEW_SIZES:
        return None
    changes = np.array([_change_of(published_at_ms, size) for size in sizes], np.uint32)
    tables = np.concatenate([number_followed_by(size) for size in sizes], axis=1)
    crcs = np.concatenate([draft.crcs for draft in drafts])
    crcs ^= changes[which]
    crcs ^= looked_up(tables[: -(-int(ids.max()).bit_length() // 8)], ids, which * 256)
    return crcs


def _sizes(drafts: Sequence[Draft]) -> "tuple[list[int], NDArray[np.intp] | int]":
    """How many bytes follow the numbers: which sizes there are, and which of them is that of each."""
    different = set[int]().union(*(draft.different for draft in drafts))
    if len(different) == 1:
        return list(different), 0
    sizes, which = np.unique(np.concatenate([draft.following for draft in drafts]), return_inverse=True)
    return sizes.tolist(), which


def _change_of(published_at_ms: int, following: int) -> int:
    """The effect of the instant on a CRC, where the id and so many bytes follow."""
    more = bytes(_ID - _INSTANT + following)
    without = google_crc32c.value(bytes(8) + more)
    return int(google_crc32c.value(published_at_ms.to_bytes(8, "big") + more) ^ without)


def _summed(bodies: memoryview, sizes: NDArray[np.uint32]) -> Fired:
    whole = bodies.tobytes()
    stops = np.cumsum(sizes).tolist()
    each = [whole[start:stop] for start, stop in pairwise((0, *stops))]
    return Fired(whole, sizes, np.fromiter(map(google_crc32c.value, each), np.uint32, len(each)))
