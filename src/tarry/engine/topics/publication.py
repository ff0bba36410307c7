"""A publication: new entries of one topic, gathered to be one unit of the ledger.

The same decisions and effects as those of single records, without an object and a call for each: this is the hot path of a
door whose clients send without waiting.
"""

from typing import TYPE_CHECKING

import google_crc32c
import msgspec
import numpy as np

from tarry.core.names import namespace_of
from tarry.core.timers.lanes import lane_of
from tarry.engine.topics.entries import NewEntry, entry_record, published_entry
from tarry.engine.topics.sequences import Sequences
from tarry.engine.topics.topic import Topic
from tarry.ledger.frame import FIXED, Unit
from tarry.ledger.record import Kind, encode_body

if TYPE_CHECKING:
    from tarry.engine.journal import Journal


class Publication:
    """Entries that follow each other in a topic."""

    def __init__(self, topic: str, first_id: int, now_ms: int, trace: bytes | None = None) -> None:
        self._topic = topic
        self._namespace = namespace_of(topic)
        self._trace = trace
        self._first_id = first_id
        self._now_ms = now_ms
        self._entries: list[NewEntry] = []
        self._bodies: list[bytes] = []
        self._fires: list[int] = []
        self._lanes: list[int] = []
        self.home: Topic | None = None
        """The topic that has the entries, once they are enqueued."""
        self._sent: dict[str, Sequences] = {}
        """Sequence numbers that each producer has sent with it."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def lowest_ms(self) -> int:
        """The first instant at which one of them is due; 0 if none waits."""
        return min((fire_at_ms for fire_at_ms in self._fires if fire_at_ms), default=0)

    def add(self, entry: NewEntry, fire_at_ms: int) -> int:
        """Take one more; gives its entry id."""
        entry_id = self._first_id + len(self._bodies)
        self._entries.append(entry)
        record = entry_record(entry, self._topic, fire_at_ms, self._now_ms, entry_id)
        if self._trace is not None and fire_at_ms:
            record = msgspec.structs.replace(record, trace=self._trace)
        self._bodies.append(encode_body(record))
        self._fires.append(fire_at_ms)
        self._lanes.append(lane_of(self._namespace, entry.owner, entry.door))
        self._size_bytes += len(entry.payload)
        if entry.producer is not None and entry.producer_sequence >= 0:
            self._sent.setdefault(entry.producer, Sequences()).add(entry.sent)
        return entry_id

    def holds(self, entry: NewEntry) -> bool:
        """Whether the same message of the same producer is in it."""
        sent = self._sent.get(entry.producer or "")
        return sent is not None and entry.sent in sent

    def unit(self) -> Unit:
        """The records, as columns."""
        bodies = self._bodies
        count = len(bodies)
        table = np.zeros(count, FIXED)
        table["kind"] = Kind.ENTRY
        table["lane"] = self._lanes
        table["size"] = list(map(len, bodies))
        table["crc"] = list(map(google_crc32c.value, bodies))
        table["fire_at_ms"] = self._fires
        return Unit(count, table.tobytes(), b"".join(bodies))

    def decide(self, journal: "Journal", first_seq: int) -> None:
        """Let the entries change the state: they are enqueued."""
        bodies, records = self._bodies, journal.topics.records
        journal.bodies.enqueued.update(zip(range(first_seq, first_seq + len(bodies)), bodies, strict=True))
        journal.sizes.add_many(first_seq, np.fromiter(map(len, bodies), np.int64, len(bodies)))
        sizes = {self._topic: (len(bodies), self._size_bytes)}
        ((topic, _),) = records.place_many(first_seq, sizes, self._now_ms)
        self.home = topic
        waits = np.flatnonzero(np.array(self._fires, np.int64))
        if len(waits):
            topic.waiting.add_many(waits + self._first_id)
            records.delayed[topic] = None
            journal.counters["accepted"] += len(waits)
        for entry in self._entries if self._sent else ():
            if entry.producer is not None and entry.producer_sequence >= 0:
                topic.heard_from(entry.producer, entry.sent)

    def effect(self, journal: "Journal", first_seq: int) -> None:
        """Let consumers see the entries, and the wheel those that wait: they are durable."""
        seqs = range(first_seq, first_seq + len(self._bodies))
        topic = self.home
        assert topic is not None, "entries are decided before they take effect"
        if topic.has_consumers:
            # Those that wait are fresh when they are ready.
            now = [at for at, fire_at_ms in enumerate(self._fires) if not fire_at_ms]
            journal.recent_entries.add(
                [seqs[at] for at in now],
                [published_entry(self._entries[at], self._first_id + at, self._now_ms) for at in now],
            )
        for seq in seqs:
            journal.bodies.enqueued.pop(seq, None)
        journal.topics.records.appended(topic, self._first_id + len(self._bodies) - 1)
        fires = np.array(self._fires, np.int64)
        waits = np.flatnonzero(fires)
        if len(waits):
            lanes = np.array(self._lanes, np.uint16)
            journal.horizon.add_many(fires[waits], waits + first_seq, lanes[waits])
