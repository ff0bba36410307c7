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

from tarry.ledger.crc import NUMBERS, followed_by, looked_up
from tarry.ledger.record import Kind, encode_value

_U64: Final = 0xCF
"""How msgpack begins an unsigned number of eight bytes; and, next, an array of two: a key."""
_TWO: Final = 0x92
_FIELDS: Final = [
    ("u64", "u1"), ("published_at_ms", ">u8"), ("u64_2", "u1"), ("entry_id", ">u8"),
    ("two", "u1"), ("u64_3", "u1"), ("fire_at_ms", ">u8"), ("u64_4", "u1"), ("seq", ">u8"),
]  # fmt: skip

_PLACES: Final = np.concatenate((np.arange(1, 9), np.arange(10, 18)))
"""Behind the prefix: of the instant, and of the entry id."""
_FILLED: Final = 18
_BETWEEN: Final = 9
"""Behind the prefix, where what is filled in ends; and how many bytes follow the instant, up to there."""

FEW_SIZES: Final = 8
"""Of how many sizes drafts may be for their CRCs to be prepared: what is needed for a size takes tens of microseconds to make."""


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

    __slots__ = ("_bodies", "_places", "crcs", "following", "sizes")

    def __init__(
        self, topic: str, fires: NDArray[np.int64], seqs: NDArray[np.int64], put_bodies: Sequence[bytes]
    ) -> None:
        prefix = _prefix(topic)
        bodies, self.sizes, self.crcs = _laid_out(prefix, 0, 0, fires, seqs, put_bodies)
        self._bodies = np.frombuffer(bytearray(bodies), np.uint8)
        self._places = np.cumsum(self.sizes, dtype=np.int64) - self.sizes + len(prefix)
        self.following = self.sizes.astype(np.int64) - len(prefix) - _FILLED
        """How many bytes there are behind the two numbers."""
        if len(few := np.unique(self.following)) <= FEW_SIZES:
            # Made now, they need not be made at the due instant.
            for size in few.tolist():
                followed_by(size)

    def __len__(self) -> int:
        return len(self.sizes)

    def fill(self, numbers: NDArray[np.uint8]) -> memoryview:
        """The bodies with both numbers of each, until it is filled again."""
        self._bodies[self._places[:, None] + _PLACES] = numbers
        return self._bodies.data


def filled(drafts: Sequence[Draft], first_ids: Sequence[int], published_at_ms: int) -> list[Fired]:
    """Drafts with their numbers: each is numbered from an id on. The CRCs are had for all at once."""
    counts = list(map(len, drafts))
    cuts = [0, *accumulate(counts)]
    ids = np.concatenate(
        [np.arange(first, first + count) for first, count in zip(first_ids, counts, strict=True)]
    )
    numbers = np.empty((len(ids), 2), ">u8")
    numbers[:, 0] = published_at_ms
    numbers[:, 1] = ids
    written = numbers.view(np.uint8)
    parts = [slice(start, stop) for start, stop in pairwise(cuts)]
    bodies = [draft.fill(written[part]) for draft, part in zip(drafts, parts, strict=True)]
    crcs = _crcs(drafts, ids, published_at_ms)
    if crcs is None:
        return [_summed(text, draft.sizes) for text, draft in zip(bodies, drafts, strict=True)]
    return [
        Fired(text, draft.sizes, crcs[part]) for text, draft, part in zip(bodies, drafts, parts, strict=True)
    ]


def _crcs(drafts: Sequence[Draft], ids: NDArray[np.int64], published_at_ms: int) -> NDArray[np.uint32] | None:
    """From those of the drafts, and what the numbers do to them; None if there are too many sizes for that."""
    sizes, which = np.unique(np.concatenate([draft.following for draft in drafts]), return_inverse=True)
    if len(sizes) > FEW_SIZES:
        return None
    blank = bytes(8 + _BETWEEN)
    instant = published_at_ms.to_bytes(8, "big") + bytes(_BETWEEN)
    ends = google_crc32c.value(instant) ^ google_crc32c.value(blank)
    tables = NUMBERS[: -(-int(ids.max()).bit_length() // 8)]
    differences = looked_up(tables, ids) ^ np.uint32(ends)
    following = np.concatenate([followed_by(size) for size in sizes.tolist()], axis=1)
    crcs = np.concatenate([draft.crcs for draft in drafts])
    crcs ^= looked_up(following, differences, which * 256 if len(sizes) > 1 else 0)
    return crcs


def _summed(bodies: memoryview, sizes: NDArray[np.uint32]) -> Fired:
    whole = bodies.tobytes()
    stops = np.cumsum(sizes).tolist()
    each = [whole[start:stop] for start, stop in pairwise((0, *stops))]
    return Fired(whole, sizes, np.fromiter(map(google_crc32c.value, each), np.uint32, len(each)))
