"""A publication: new entries of one topic, gathered to be one unit of the ledger.

Its change is known without its records, which are encoded as they come: this is the hot path of a door whose clients send
without waiting.
"""

import google_crc32c
import msgspec

from tarry.core.names import namespace_of
from tarry.engine.records.changes import NewEntries, SentNumbers, Written
from tarry.engine.topics.entries import NewEntry, entry_record, published_entry
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.topics.sequences import Sequences
from tarry.ledger.frame import unit_of_columns
from tarry.ledger.lanes import lane_of
from tarry.ledger.record import Kind, encode_body


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
        self._numbers: list[tuple[str, SentNumbers]] = []
        """Sequence numbers that came with the entries, each with its producer."""
        self._sent: dict[str, Sequences] = {}
        """By producer: these numbers, to know one that comes again."""

    def __len__(self) -> int:
        return len(self._bodies)

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
        if entry.producer is not None and entry.producer_sequence >= 0:
            self._numbers.append((entry.producer, entry.sent))
            self._sent.setdefault(entry.producer, Sequences()).add(entry.sent)
        return entry_id

    def holds(self, entry: NewEntry) -> bool:
        """Whether the same message of the same producer is in it."""
        sent = self._sent.get(entry.producer or "")
        return sent is not None and entry.sent in sent

    def written(self) -> Written:
        """The entries as a unit, with its changes."""
        bodies = self._bodies
        unit = unit_of_columns(
            Kind.ENTRY, list(map(len, bodies)), list(map(google_crc32c.value, bodies)), b"".join(bodies),
            lane=self._lanes, fire_at_ms=self._fires,
        )  # fmt: skip
        new = NewEntries(
            self._topic, self._first_id, range(len(bodies)), self._now_ms,
            [len(entry.payload) for entry in self._entries],
            [self._first_id + at for at, fire_at_ms in enumerate(self._fires) if fire_at_ms],
            self._numbers,
        )  # fmt: skip
        return Written(unit, [new])

    def keep_recent(self, recent: RecentEntries, first_seq: int) -> None:
        """Have the entries at hand as consumers get them; those that wait are, when they are ready."""
        now = [at for at, fire_at_ms in enumerate(self._fires) if not fire_at_ms]
        recent.add(
            [first_seq + at for at in now],
            [published_entry(self._entries[at], self._first_id + at, self._now_ms) for at in now],
        )
