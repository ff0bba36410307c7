"""A burst: due messages for Tarry's own topics, gathered to be fired in one unit of the ledger (R5).

When ten thousand messages are due at one instant this is the hot path, so that it works on columns: each step is one
loop over all messages of a topic, or none.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.messages.ids import Ids
from tarry.core.tenants.holder import Holder
from tarry.engine.due.due_batch import DispatchClass, DueBatch, joined
from tarry.engine.records.changes import Change, FiredVersion, FiredVersions, NewEntries, Written
from tarry.engine.records.versions import lateness_of
from tarry.engine.topics.entry_batch import EntryBatch
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.ledger.fired import added_bytes, unit_of_fired
from tarry.ledger.frame import ROW_BYTES, Unit, joined_units
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import Key

_ENTRY_BYTES: Final = 64
"""Bytes that an entry adds to the version that it fires, its topic's name apart."""


class Burst:
    """Due messages by topic, in batches with their keys: as they were read together (`extend`), or one by one (`of`).

    Made by `Firing` for the batch of one turn, and split into several where one unit of the ledger is too small. Read by `Firing`,
    which has its unit appended, and by the report of what was sent. Dies when its unit is durable, or could not be enqueued.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.by_topic: dict[str, list[DueBatch]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._batches()))

    def _batches(self) -> Iterator[DueBatch]:
        """All batches, in the order of the unit."""
        return chain.from_iterable(self.by_topic.values())

    def of(self, topic: str) -> DueBatch:
        """The batch for a topic to which messages are added one by one."""
        batches = self.by_topic.setdefault(topic, [])
        if not batches:
            batches.append(DueBatch())
        return batches[-1]

    def extend(self, topic: str, batches: Sequence[DueBatch]) -> None:
        """Take batches whose rows are all messages for one topic."""
        self.by_topic.setdefault(topic, []).extend(batches)

    def items(self) -> Iterator[tuple[ReadPut, bytes, Key]]:
        """Every message with its body and the key of the version that ends, in the order of the unit."""
        for batch in self._batches():
            puts: Any = batch.read
            yield from zip(puts, batch.bodies, map(Key, batch.fires, batch.seqs), strict=True)

    def seqs(self) -> NDArray[np.int64]:
        """The seqs of the versions that end."""
        return _column([batch.seqs for batch in self._batches()])

    def kinds(self) -> Counter[DispatchClass]:
        """How many of the messages are alike."""
        kinds: Counter[Any] = Counter()
        for batch in self._batches():
            kinds.update(batch.kinds)
        return kinds

    def floor(self) -> Key:
        """A key that is not above any in it."""
        return Key(int(_column([batch.fires for batch in self._batches()]).min()), 0)

    def parts(self, max_bytes: int) -> "list[Burst]":
        """Split into bursts that each fit one unit of the ledger. Nearly always `[self]`."""
        # A topic that got nothing in the end must not be made by it: no record would say so.
        self.by_topic = {topic: batches for topic, batches in self.by_topic.items() if any(map(len, batches))}
        extra_bytes = ROW_BYTES + _ENTRY_BYTES + max(len(topic.encode()) for topic in self.by_topic)
        size_bytes = sum(batch.size_bytes for batch in self._batches())
        if size_bytes + extra_bytes * len(self) <= max_bytes:
            return [self]
        parts = [Burst(self.now_ms)]
        room = max_bytes
        for topic, batches in self.by_topic.items():
            whole, start = joined(batches), 0
            for at, body in enumerate(whole.bodies):
                size_bytes = len(body) + extra_bytes
                if size_bytes > room and room < max_bytes:
                    if at > start:
                        parts[-1].extend(topic, [whole.at(range(start, at))])
                    parts.append(Burst(self.now_ms))
                    start, room = at, max_bytes
                room -= size_bytes
            parts[-1].extend(topic, [whole.at(range(start, len(whole)))])
        return parts

    def written(self, next_id: Callable[[str], int]) -> Written:
        """The entries that fire them, topic after topic, with the next ids of each; and the changes of that unit."""
        units: list[Unit] = []
        changes: list[Change] = []
        start = 0
        for topic, batches in self.by_topic.items():
            first_id = next_id(topic)
            unit = self._unit(topic, first_id, batches)
            units.append(unit)
            sizes = unit.fixed["size"].astype(np.int64) - added_bytes(topic)
            changes.append(
                NewEntries(topic, first_id, range(start, start + unit.records), self.now_ms, sizes)
            )
            start += unit.records
        changes.append(FiredVersions(self.seqs(), self._ended, self._holders()))
        return Written(joined_units(units), changes)

    def _unit(self, topic: str, first_id: int, batches: Sequence[DueBatch]) -> Unit:
        """The entries that fire the messages for a topic, numbered from one on."""
        entry_id = first_id
        for batch in batches:
            batch.fire(entry_id, self.now_ms)
            entry_id += len(batch)
        fires, seqs = _column([one.fires for one in batches]), _column([one.seqs for one in batches])
        bodies = [body for batch in batches for body in batch.bodies]
        return unit_of_fired(topic, first_id, self.now_ms, fires, seqs, bodies)

    def _ended(self) -> Iterator[FiredVersion]:
        return ((put, key, self.now_ms) for put, _, key in self.items())

    def _holders(self) -> Counter[Holder] | None:
        """How many messages of each holder there are, if nothing else has to be known of any message."""
        holders: Counter[Holder] = Counter()
        for alike, count in self.kinds().items():
            if alike.known:
                return None
            holders[Holder(alike.namespace, alike.owner)] += count
        return holders

    def keep_recent(self, recent: RecentEntries, ids: Ids, new: NewEntries, first_seq: int) -> None:
        """Have the entries of a topic at hand as consumers get them, until they are taken."""
        batches = self.by_topic[new.topic]
        held_bytes = sum([batch.size_bytes + batch.prepared_bytes for batch in batches])
        entries = EntryBatch([(batch, slice(0, len(batch))) for batch in batches], ids)
        recent.add_batch(first_seq + int(new.places[0]), entries, held_bytes)


def _column(parts: "list[array[int]]") -> NDArray[np.int64]:
    return np.concatenate([np.frombuffer(part, np.int64) for part in parts])


def lateness(heads: Sequence[PutHead], now_ms: int) -> Counter[tuple[str, int]]:
    """How many messages of which door are how late at an instant."""
    return Counter((head.door, lateness_of(head, now_ms)) for head in heads)
