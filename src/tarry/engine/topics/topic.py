"""One of Tarry's own topics: where its entries are in the ledger, and which of them are not due yet.

An entry id is given when the publication is enqueued, and the entry is visible once its record is durable (R2).
Bodies stay in the ledger; here an entry costs eight bytes for its seq, and 4096 of them eight more for their size. Room
for them grows with them: there may be a hundred thousand topics with one entry each. All subscriptions share one set of
entries that wait for their due instant.
"""

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.limits import MAX_PRODUCERS
from tarry.core.policy import BacklogAction
from tarry.core.sets.savedset import SavedSet
from tarry.engine.records.producer_numbers import Sent
from tarry.engine.topics.sequences import Sequences
from tarry.ledger.record import FIRST_BATCH_SEQ
from tarry.registry.registry import Registry, TopicRow
from tarry.registry.table import Table

if TYPE_CHECKING:
    from tarry.engine.topics.subscription import Subscription

CHUNK: Final = 4096
"""Entries in one row of the registry."""

FIRST_ROOM: Final = 4
GROWTH: Final = 4
"""A new chunk has room for so many entries, and so many times more whenever it is full."""

SIZE_AT: Final = -1
"""Where in a chunk, behind the places of its entries, their size in bytes is: of all of them together."""


class Topic:
    """The entries of a topic, from `first` to `next`; those below `visible` are durable."""

    __slots__ = (
        "_chunks", "_dirty", "_heard", "_lowest_seq", "created_at_ms", "epoch", "first", "full", "incarnation",
        "last_late_ms", "max_late_ms", "name", "next", "oldest_ms", "partitions", "producers", "subscriptions", "visible",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str, created_at_ms: int, incarnation: int = 0) -> None:
        self.name = name
        self.created_at_ms = created_at_ms
        self.oldest_ms = created_at_ms
        """No entry was published before this instant: a bound, not the instant of the first one."""
        self.incarnation = incarnation
        """The seq of the record that made it: no other topic has it, nor the next one of this name."""
        self.partitions = 0
        self.epoch = -1
        """Rises with every producer that has the topic for itself, so that an earlier one is known as such."""
        self.first = 0
        self.next = 0
        self.visible = 0
        self.waiting = SavedSet()
        self.subscriptions: dict[str, Subscription] = {}
        self.producers: dict[str, Sequences] = {}
        self.full: BacklogAction | None = None
        """Why it takes no more entries, while its backlog is over its quota."""
        self.last_late_ms = 0
        self.max_late_ms = 0
        """How long after its due instant a delayed entry was ready: the last one, and the worst since the start."""
        self._chunks: dict[int, array[int]] = {}
        self._dirty: set[int] = set()
        self._heard: set[str] | None = None
        """Producers of which the registry does not know everything, if there are any."""
        self._lowest_seq = 0
        """No entry is at a lower seq; 0 if there is none: a bound that `needed_seqs` brings up to date."""

    def place(self, entry_id: int, seq: int, size_bytes: int = 0) -> None:
        """Say where an entry's record is, and how large; a second time, without its size, when it was carried forward."""
        number, at = divmod(entry_id, CHUNK)
        chunk = self._chunk(number, at + 1)
        chunk[at] = seq
        chunk[SIZE_AT] += size_bytes
        self._lowest_seq = self._lowest_seq or seq
        self._dirty.add(number)
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
            self._dirty.add(number)
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

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is there who may read what comes now."""
        return any(sub.consumers for sub in self.subscriptions.values())

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
            self._dirty.add(number)
        self.waiting.discard_many(self.waiting.between(self.first, to - 1))
        self.first = to

    def unneeded_below(self) -> int:
        """The first entry that some durable subscription has not acknowledged.

        A topic that nobody has subscribed to yet keeps what it has: a first subscriber may want it.
        """
        bounds = [sub.acked.below for sub in self.subscriptions.values() if sub.durable]
        return min(bounds) if bounds else self.first

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

    def needed_seqs(self, upto_seq: int, retained: bool) -> Iterator[NDArray[np.int64]]:
        """Seqs, up to one, of the entries that somebody still needs, or that are to be kept: one chunk after another.

        Other things may happen between two chunks; entries that come then have later seqs.
        """
        lowest_seq = upto_seq + 1
        for number in sorted(self._chunks):
            chunk = self._chunks.get(number)
            if chunk is None:
                continue
            # A copy: where it is looked at, the chunk cannot grow.
            places = np.array(chunk[:SIZE_AT], np.int64)
            ids = np.flatnonzero((places > 0) & (places <= upto_seq)) + number * CHUNK
            if len(ids):
                lowest_seq = min(lowest_seq, int(places[ids % CHUNK].min()))
            ids = ids[ids >= self.first]
            durable = [] if retained else [sub for sub in self.subscriptions.values() if sub.durable]
            if durable and len(ids):
                done = np.ones(len(ids), np.bool_)
                for sub in durable:
                    done &= sub.acked.contains_many(ids)
                ids = ids[~done]
            yield places[ids % CHUNK]
        self._lowest_seq = lowest_seq

    def holds(self, producer: str, sent: Sent) -> bool:
        """Whether a message of a producer is proved to be stored."""
        known = self.producers.get(producer)
        return known is not None and sent in known

    def heard_from(self, producer: str, sent: Sent) -> None:
        """Remember a stored message of a producer, for so many producers: the last one heard of is last in the order."""
        known = self.producers.pop(producer, None) or Sequences()
        known.add(sent)
        self.producers[producer] = known
        self._heard = self._heard or set()
        self._heard.add(producer)
        if len(self.producers) > MAX_PRODUCERS:
            silent = next(iter(self.producers))
            del self.producers[silent]
            self._heard.add(silent)

    def touch(self) -> None:
        """Have the topic's row written at the next flush, though it may hold nothing."""
        self._dirty.add(self.next // CHUNK)

    def save(self, registry: Registry) -> None:
        """Put what changed into the registry's tables."""
        if not self._dirty and not self.waiting.dirty:
            return
        registry.topics.put(
            (self.name,),
            TopicRow(
                self.first, self.next, self.partitions, self.created_at_ms, self.epoch, self.incarnation
            ),
        )
        for number in self._dirty:
            chunk = self._chunks.get(number)
            if chunk is None:
                registry.chunks.remove(self.name, number)
            else:
                registry.chunks.put((self.name, number), chunk.tobytes())
        self._dirty.clear()
        save_set(self.waiting, registry.waiting, self.name)
        for producer in self._heard or ():
            known = self.producers.get(producer)
            registry.producers.remove(self.name, producer)
            if known is None:
                registry.sequences.remove(self.name, producer)
            else:
                registry.sequences.put((self.name, producer), known.row())
        self._heard = None

    def load_chunk(self, number: int, data: bytes) -> None:
        """Take a chunk back from the registry."""
        if len(data) == 8 * CHUNK:
            # It was written before sizes were kept.
            data += bytes(8)
        self._chunks[number] = array("q", data)
        # Whatever it holds: `needed_seqs` finds out.
        self._lowest_seq = 1

    def erase(self, registry: Registry) -> None:
        """Remove every row of this topic, and let go of the places of its entries: somebody may hold on to it."""
        registry.topics.remove(self.name)
        for number in {*self._chunks, *self._dirty}:
            registry.chunks.remove(self.name, number)
        for number in {*self.waiting.numbers(), *self.waiting.dirty}:
            registry.waiting.remove(self.name, number)
        for producer in {*self.producers, *(self._heard or ())}:
            registry.producers.remove(self.name, producer)
            registry.sequences.remove(self.name, producer)
        for sub in self.subscriptions.values():
            sub.erase(registry)
        self._chunks.clear()
        self.producers.clear()


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


def incarnation_of(name: str) -> int:
    """The incarnation of a topic that an earlier version made, which kept none: beyond all seqs, by its name."""
    digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
    return FIRST_BATCH_SEQ | digest % FIRST_BATCH_SEQ


def save_set(bits: SavedSet, table: Table[bytes], *key: str) -> None:
    """Put the changed blocks of a set into a table of the registry."""
    for number in bits.dirty:
        block = bits.block(number)
        if block is None:
            table.remove(*key, number)
        else:
            table.put((*key, number), block)
    bits.dirty.clear()
