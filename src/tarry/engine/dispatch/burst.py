"""A burst: due messages for Tarry's own topics, gathered to be fired in one unit of the ledger (R5).

When ten thousand messages are due at one instant this is the hot path, so that it works on columns: each step is one
loop over all messages of a topic, or none.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.holder import Holder
from tarry.core.ids import Ids
from tarry.engine.due.decoded_batch import DecodedBatch, joined
from tarry.engine.due.dispatch_class import DispatchClass
from tarry.engine.records.changes import Change, FiredVersion, FiredVersions, NewEntries, Written
from tarry.engine.records.versions import lateness_of
from tarry.engine.topics.entry_batch import EntryBatch, EntrySpan
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.ledger.fired import added_bytes, unit_of_fired
from tarry.ledger.frame import ROW_BYTES, Unit, joined_units
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import Key

_ENTRY_BYTES: Final = 64
"""Bytes that an entry adds to the version that it fires, its topic's name apart."""


class LotPart(NamedTuple):
    """Messages that were read together, with the keys of their versions."""

    reads: DecodedBatch
    fires: "array[int]"
    seqs: "array[int]"


class Lot:
    """Due messages for one topic, in parts as they were read: either whole ones (`extend`), or one by one (`add`)."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[LotPart] = []

    def add(self, put: ReadPut, body: bytes, alike: DispatchClass, key: Key) -> None:
        """Take one more."""
        if not self.parts:
            self.parts.append(LotPart(DecodedBatch(), array("q"), array("q")))
        part = self.parts[-1]
        part.reads.add(put, body, alike)
        part.fires.append(key.fire_at_ms)
        part.seqs.append(key.seq)

    def extend(self, reads: DecodedBatch, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> None:
        """Take versions that were read together, all of them for this topic."""
        self.parts.append(LotPart(reads, array("q", fires.tobytes()), array("q", seqs.tobytes())))

    def __len__(self) -> int:
        return sum([len(part.seqs) for part in self.parts])

    @property
    def size_bytes(self) -> int:
        """Bytes of the bodies."""
        return sum([part.reads.size_bytes for part in self.parts])

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies, and of what doors have prepared."""
        return self.size_bytes + sum([part.reads.prepared_bytes for part in self.parts])

    def between(self, start: int, stop: int) -> "Lot":
        """A lot of the messages from one position to another."""
        some = Lot()
        reads = joined(part.reads for part in self.parts).at(range(start, stop))
        some.extend(
            reads,
            _column([part.fires for part in self.parts])[start:stop],
            _column([part.seqs for part in self.parts])[start:stop],
        )
        return some

    def items(self) -> Iterator[tuple[ReadPut, bytes, Key]]:
        """Every message with its body and the key of the version that ends."""
        for part in self.parts:
            puts: Any = part.reads.read
            yield from zip(puts, part.reads.bodies, map(Key, part.fires, part.seqs), strict=True)

    def _firsts(self, first: int) -> list[int]:
        return list(accumulate([len(part.seqs) for part in self.parts[:-1]], initial=first))

    def unit(self, topic: str, first_id: int, at_ms: int) -> Unit:
        """The entries that fire them, numbered from one on."""
        fires = _column([part.fires for part in self.parts])
        seqs = _column([part.seqs for part in self.parts])
        bodies = [body for part in self.parts for body in part.reads.bodies]
        return unit_of_fired(topic, first_id, at_ms, fires, seqs, bodies)

    def entry_batch(self, first_id: int, at_ms: int, ids: Ids) -> EntryBatch:
        """The entries that fire them, numbered from one on, as consumers get them."""
        spans: list[EntrySpan] = []
        for (reads, fires, seqs), first in zip(self.parts, self._firsts(first_id), strict=True):
            ids_of_these = range(first, first + len(seqs))
            spans.append(EntrySpan(ids_of_these, slice(0, len(seqs)), at_ms, reads, fires, seqs))
        return EntryBatch(spans, ids)


class Burst:
    """Due messages by topic."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.by_topic: dict[str, Lot] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def of(self, topic: str) -> Lot:
        """The messages for one topic, to add to."""
        lot = self.by_topic.get(topic)
        if lot is None:
            lot = self.by_topic[topic] = Lot()
        return lot

    def items(self) -> Iterator[tuple[ReadPut, Key]]:
        """Every message with the key of the version that ends, in the order of the unit."""
        for lot in self.by_topic.values():
            for put, _, key in lot.items():
                yield put, key

    def seqs(self) -> NDArray[np.int64]:
        """The seqs of the versions that end."""
        return _column([part.seqs for lot in self.by_topic.values() for part in lot.parts])

    def fires(self) -> NDArray[np.int64]:
        """Their fire instants."""
        return _column([part.fires for lot in self.by_topic.values() for part in lot.parts])

    def kinds(self) -> Counter[DispatchClass]:
        """How many of the messages are alike."""
        kinds: Counter[Any] = Counter()
        for lot in self.by_topic.values():
            for part in lot.parts:
                kinds.update(part.reads.kinds)
        return kinds

    def floor(self) -> Key:
        """A key that is not above any in it."""
        return Key(int(self.fires().min()), 0)

    def parts(self, max_bytes: int) -> "list[Burst]":
        """Split into bursts that each fit one unit of the ledger. Nearly always this one alone."""
        # A topic that got nothing in the end must not be made by it: no record would say so.
        self.by_topic = {topic: lot for topic, lot in self.by_topic.items() if len(lot)}
        extra_bytes = ROW_BYTES + _ENTRY_BYTES + max(len(topic.encode()) for topic in self.by_topic)
        size_bytes = sum(lot.size_bytes for lot in self.by_topic.values())
        if size_bytes + extra_bytes * len(self) <= max_bytes:
            return [self]
        parts = [Burst(self.now_ms)]
        room = max_bytes
        for topic, lot in self.by_topic.items():
            start = 0
            for at, (_, body, _) in enumerate(lot.items()):
                size_bytes = len(body) + extra_bytes
                if size_bytes > room and room < max_bytes:
                    if at > start:
                        parts[-1].by_topic[topic] = lot.between(start, at)
                    parts.append(Burst(self.now_ms))
                    start, room = at, max_bytes
                room -= size_bytes
            parts[-1].by_topic[topic] = lot.between(start, len(lot))
        return parts

    def written(self, next_id: Callable[[str], int]) -> Written:
        """The entries that fire them, topic after topic, with the next ids of each; and the changes of that unit."""
        units: list[Unit] = []
        changes: list[Change] = []
        start = 0
        for topic, lot in self.by_topic.items():
            first_id = next_id(topic)
            unit = lot.unit(topic, first_id, self.now_ms)
            units.append(unit)
            sizes = unit.fixed["size"].astype(np.int64) - added_bytes(topic)
            changes.append(NewEntries(topic, first_id, range(start, start + len(lot)), self.now_ms, sizes))
            start += len(lot)
        changes.append(FiredVersions(self.seqs(), self._ended, self._holders()))
        return Written(joined_units(units), changes)

    def _ended(self) -> Iterator[FiredVersion]:
        return ((put, key, self.now_ms) for put, key in self.items())

    def _holders(self) -> Counter[Holder] | None:
        """How many messages of each holder there are, if there is nothing else to know about any of them."""
        holders: Counter[Holder] = Counter()
        for alike, count in self.kinds().items():
            if alike.known:
                return None
            holders[Holder(alike.namespace, alike.owner)] += count
        return holders

    def keep_recent(self, recent: RecentEntries, ids: Ids, new: NewEntries, first_seq: int) -> None:
        """Have the entries of a topic at hand as consumers get them, until they are taken."""
        lot = self.by_topic[new.topic]
        batch = lot.entry_batch(new.first_id, self.now_ms, ids)
        recent.add_batch(first_seq + int(new.places[0]), batch, lot.held_bytes)


def _column(parts: "list[array[int]]") -> NDArray[np.int64]:
    return np.concatenate([np.frombuffer(part, np.int64) for part in parts])


def lateness(heads: Sequence[PutHead], now_ms: int) -> Counter[tuple[str, int]]:
    """How many messages of which door are how late at an instant."""
    return Counter((head.door, lateness_of(head, now_ms)) for head in heads)
