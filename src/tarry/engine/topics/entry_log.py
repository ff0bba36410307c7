"""The entries of a topic: where they are in the ledger, and which of them are not due yet.

An entry id is given when the publication is enqueued, and the entry is visible once its record is durable (R2).
Bodies stay in the ledger; here an entry costs eight bytes for its seq, and 4096 of them eight more for their size. Room
for them grows with them: there may be a hundred thousand topics with one entry each. All subscriptions share one set of
entries that wait for their due instant. Who reads them is no business of the log (`topic`).
"""

from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.sets.savedset import UNCHANGED, SavedSet
from tarry.registry.registry import Registry
from tarry.registry.table import Table

CHUNK: Final = 4096
"""Entries in one row of the registry."""

FIRST_ROOM: Final = 4
GROWTH: Final = 4
"""A new chunk has room for so many entries, and so many times more whenever it is full."""

SIZE_AT: Final = -1
"""Where in a chunk, behind the places of its entries, their size in bytes is: of all of them together."""


class EntryLog:
    """The entries of a topic, from `first` to `next`; those below `visible` are durable."""

    __slots__ = (
        "_chunks",
        "_dirty",
        "_lowest_seq",
        "first",
        "incarnation",
        "name",
        "next",
        "visible",
        "waiting",
    )

    def __init__(self, name: str, incarnation: int = 0) -> None:
        self.name = name
        self.incarnation = incarnation
        """The seq of the record that made the topic: no other topic has it, nor the next one of this name."""
        self.first = 0
        self.next = 0
        self.visible = 0
        self.waiting = SavedSet()
        self._chunks: dict[int, array[int]] = {}
        self._dirty = UNCHANGED
        self._lowest_seq = 0
        """No entry is at a lower seq; 0 if there is none: a bound that `needed_seqs` brings up to date."""

    def place(self, entry_id: int, seq: int, size_bytes: int = 0) -> None:
        """Say where an entry's record is, and how large; a second time, without its size, when it was carried forward."""
        number, at = divmod(entry_id, CHUNK)
        chunk = self._chunk(number, at + 1)
        chunk[at] = seq
        chunk[SIZE_AT] += size_bytes
        self._lowest_seq = self._lowest_seq or seq
        self._mark(number)
        if entry_id >= self.next:
            self.next = entry_id + 1

    def _chunk(self, number: int, entries: int) -> "array[int]":
        """A chunk with room for its first so many entries."""
        chunk = self._chunks.get(number)
        if chunk is None or len(chunk) <= entries:
            room = FIRST_ROOM
            while room < entries:
                room *= GROWTH
            grown = array("q", bytes(8 * (min(room, CHUNK) + 1)))
            if chunk is not None:
                grown[: len(chunk) - 1] = chunk[:SIZE_AT]
                grown[SIZE_AT] = chunk[SIZE_AT]
            chunk = self._chunks[number] = grown
        return chunk

    def place_many(self, first_id: int, seqs: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Say where new entries are whose ids follow each other, and how large they are."""
        placed, count = 0, len(seqs)
        while placed < count:
            number, at = divmod(first_id + placed, CHUNK)
            some = min(count - placed, CHUNK - at)
            chunk = self._chunk(number, at + some)
            chunk[SIZE_AT] += int(sizes[placed : placed + some].sum())
            np.frombuffer(chunk, np.int64)[at : at + some] = seqs[placed : placed + some]
            self._mark(number)
            placed += some
        self._lowest_seq = self._lowest_seq or int(seqs[0])
        self.next = max(self.next, first_id + count)

    def seqs(self, entry_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where entries are in the ledger; 0 for one that is gone."""
        places = np.zeros(len(entry_ids), np.int64)
        if not len(entry_ids):
            return places
        numbers = entry_ids // CHUNK
        first, last = int(numbers.min()), int(numbers.max())
        if first == last and first in self._chunks:
            # Nearly always: consumers read on from where they are.
            return _places(self._chunks[first], entry_ids % CHUNK)
        for number in np.unique(numbers).tolist():
            chunk = self._chunks.get(number)
            if chunk is not None:
                here = numbers == number
                places[here] = _places(chunk, entry_ids[here] % CHUNK)
        return places

    def seq(self, entry_id: int) -> int:
        """Where an entry is in the ledger; 0 if it is gone."""
        chunk = self._chunks.get(entry_id // CHUNK)
        at = entry_id % CHUNK
        return chunk[at] if chunk is not None and at < len(chunk) - 1 else 0

    def first_at(self, seq: int, start: int, stop: int) -> int:
        """The first entry from `start` on whose record is at a seq or later; `stop` if there is none before that."""
        while start < stop:
            number, at = divmod(start, CHUNK)
            end = min(stop, (number + 1) * CHUNK)
            chunk = self._chunks.get(number)
            if chunk is not None:
                places = np.frombuffer(chunk, np.int64)[:SIZE_AT][at : end - number * CHUNK]
                found = np.flatnonzero(places >= max(1, seq))
                if len(found):
                    return start + int(found[0])
            start = end
        return stop

    def waiting_seqs(self) -> NDArray[np.int64]:
        """Where the entries are that wait for their due instant."""
        return self.seqs(self.waiting.between(self.first, self.next))

    def trim(self, to: int) -> None:
        """Forget the entries below one: nobody needs them."""
        to = min(to, self.visible)
        if to <= self.first:
            return
        for number in range(self.first // CHUNK, to // CHUNK):
            self._chunks.pop(number, None)
        self._dirty = self._dirty.union(range(self.first // CHUNK, to // CHUNK))
        self.waiting.discard_many(self.waiting.between(self.first, to - 1))
        self.first = to

    def mean_bytes(self, start: int, stop: int) -> float:
        """The size of an entry between two, on average: over the chunks that they are in."""
        size = entries = 0
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            chunk = self._chunks.get(number)
            if chunk is not None:
                size += chunk[SIZE_AT]
                entries += min(self.next, (number + 1) * CHUNK) - number * CHUNK
        return size / entries if entries else 0.0

    def may_have_upto(self, seq: int) -> bool:
        """Whether the record of an entry may have at most this seq: most of a hundred thousand topics have none that old."""
        return 0 < self._lowest_seq <= seq

    def upto(self, seq: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Entries whose records are at most at a seq, with the seqs of these: one chunk after another.

        Other things may happen between two chunks; entries that come then have later seqs.
        """
        lowest_seq = seq + 1
        for number in sorted(self._chunks):
            chunk = self._chunks.get(number)
            if chunk is None:
                continue
            # A copy: where it is looked at, the chunk cannot grow.
            places = np.array(chunk[:SIZE_AT], np.int64)
            ids = np.flatnonzero((places > 0) & (places <= seq)) + number * CHUNK
            if len(ids):
                lowest_seq = min(lowest_seq, int(places[ids % CHUNK].min()))
            ids = ids[ids >= self.first]
            yield ids, places[ids % CHUNK]
        self._lowest_seq = lowest_seq

    def _mark(self, chunk: int) -> None:
        if chunk not in self._dirty:
            self._dirty |= {chunk}

    def touch(self) -> None:
        """Have the topic's row written at the next flush, though it may hold nothing."""
        self._mark(self.next // CHUNK)

    @property
    def changed(self) -> bool:
        """Whether the registry lacks anything of the entries."""
        return bool(self._dirty or self.waiting.dirty)

    def save_entries(self, registry: Registry) -> None:
        """Put the chunks that changed, and the set of waiting entries, into the registry's tables."""
        for number in self._dirty:
            chunk = self._chunks.get(number)
            if chunk is None:
                registry.chunks.remove(self.name, number)
            else:
                registry.chunks.put((self.name, number), chunk.tobytes())
        self._dirty = UNCHANGED
        save_set(self.waiting, registry.waiting, self.name)

    def load_chunk(self, number: int, data: bytes) -> None:
        """Take a chunk back from the registry."""
        if len(data) == 8 * CHUNK:
            # It was written before sizes were kept.
            data += bytes(8)
        self._chunks[number] = array("q", data)
        # Whatever it holds: `needed_seqs` finds out.
        self._lowest_seq = 1

    def erase_entries(self, registry: Registry) -> None:
        """Remove every row of the entries, and let go of their places: somebody may hold on to the topic."""
        for number in {*self._chunks, *self._dirty}:
            registry.chunks.remove(self.name, number)
        for number in {*self.waiting.numbers(), *self.waiting.dirty}:
            registry.waiting.remove(self.name, number)
        self._chunks.clear()


def _places(chunk: "array[int]", at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where entries are, by their places in a chunk; 0 beyond those that it has room for."""
    places = np.frombuffer(chunk, np.int64)
    room = len(places) - 1
    if not len(at) or int(at.max()) < room:
        return places[at]
    found = np.zeros(len(at), np.int64)
    inside = at < room
    found[inside] = places[at[inside]]
    return found


def save_set(bits: SavedSet, table: Table[bytes], *key: str) -> None:
    """Put the changed blocks of a set into a table of the registry."""
    for number in bits.dirty:
        block = bits.block(number)
        if block is None:
            table.remove(*key, number)
        else:
            table.put((*key, number), block)
    bits.saved()
