"""A burst: due messages for Tarry's own topics, gathered to be fired in one unit of the ledger (R5).

When ten thousand messages are due at one instant this is the hot path, so that it works on columns: each step is one
loop over all messages of a topic, or none.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tarry.core.ids import Ids
from tarry.engine.consumer import Received
from tarry.engine.topic_records import TopicRecords
from tarry.engine.versions import lateness_of
from tarry.ledger.frame import FIXED, ROW_BYTES, Unit
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import FiredEntries, Key, Kind

_ENTRY_BYTES: Final = 64
"""What an entry adds to the version that it fires, its topic's name apart."""


class Lot:
    """Due messages for one topic, as columns of one length."""

    __slots__ = ("bodies", "fires", "puts", "seqs")

    def __init__(self) -> None:
        self.puts: list[ReadPut] = []
        self.fires: list[int] = []
        self.seqs: list[int] = []
        self.bodies: list[bytes] = []

    def add(self, put: ReadPut, fire_at_ms: int, seq: int, body: bytes) -> None:
        """Take one more."""
        self.puts.append(put)
        self.fires.append(fire_at_ms)
        self.seqs.append(seq)
        self.bodies.append(body)

    def extend(
        self, puts: Sequence[ReadPut], fires: Sequence[int], seqs: Sequence[int], bodies: Sequence[bytes]
    ) -> None:
        """Take more."""
        self.puts.extend(puts)
        self.fires.extend(fires)
        self.seqs.extend(seqs)
        self.bodies.extend(bodies)

    def between(self, start: int, stop: int) -> "Lot":
        """Some of them."""
        some, part = Lot(), slice(start, stop)
        some.extend(self.puts[part], self.fires[part], self.seqs[part], self.bodies[part])
        return some

    def keys(self) -> Iterator[Key]:
        """Their keys."""
        return map(Key._make, zip(self.fires, self.seqs, strict=True))

    def received(self, first_id: int, at_ms: int, ids: Ids) -> list[Received]:
        """The entries that fire them, numbered from one on, as consumers get them."""
        keys = zip(self.fires, self.seqs, strict=True)
        return [
            Received(
                entry_id, 0, put.payload, put.headers, put.key, at_ms, put.due_at_ms, put.origin or key, ids
            )
            for entry_id, (put, key) in enumerate(zip(self.puts, keys, strict=True), first_id)
        ]  # fmt: skip


class Burst:
    """Due messages by topic."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.by_topic: dict[str, Lot] = {}

    def __len__(self) -> int:
        return sum(len(lot.seqs) for lot in self.by_topic.values())

    def of(self, topic: str) -> Lot:
        """The messages for one topic, to add to."""
        lot = self.by_topic.get(topic)
        if lot is None:
            lot = self.by_topic[topic] = Lot()
        return lot

    def puts(self) -> list[ReadPut]:
        """Every message, in the order of the unit."""
        return list(chain.from_iterable(lot.puts for lot in self.by_topic.values()))

    def keys(self) -> list[Key]:
        """The keys of the versions that end."""
        return list(chain.from_iterable(lot.keys() for lot in self.by_topic.values()))

    def seqs(self) -> list[int]:
        """The seqs of the versions that end."""
        return list(chain.from_iterable(lot.seqs for lot in self.by_topic.values()))

    def floor(self) -> Key:
        """A key that is not above any in it."""
        return Key(min(min(lot.fires) for lot in self.by_topic.values()), 0)

    def parts(self, max_bytes: int) -> "list[Burst]":
        """The same as bursts that each fit one unit of the ledger: nearly always this one alone."""
        # A topic that got nothing in the end must not be made by it: no record would say so.
        self.by_topic = {topic: lot for topic, lot in self.by_topic.items() if lot.seqs}
        extra_bytes = ROW_BYTES + _ENTRY_BYTES + max(len(topic.encode()) for topic in self.by_topic)
        size_bytes = sum(sum(map(len, lot.bodies)) for lot in self.by_topic.values())
        if size_bytes + extra_bytes * len(self) <= max_bytes:
            return [self]
        parts = [Burst(self.now_ms)]
        room = max_bytes
        for topic, lot in self.by_topic.items():
            start = 0
            for at, body in enumerate(lot.bodies):
                size_bytes = len(body) + extra_bytes
                if size_bytes > room and room < max_bytes:
                    if at > start:
                        parts[-1].by_topic[topic] = lot.between(start, at)
                    parts.append(Burst(self.now_ms))
                    start, room = at, max_bytes
                room -= size_bytes
            parts[-1].by_topic[topic] = lot.between(start, len(lot.bodies))
        return parts

    def bodies(self, records: TopicRecords) -> list[bytes]:
        """The bodies of the entries that fire them, topic after topic, with the next entry ids of each."""
        bodies: list[bytes] = []
        for topic, lot in self.by_topic.items():
            entries = FiredEntries(topic, self.now_ms)
            bodies += entries.bodies(records.next_id(topic), lot.fires, lot.seqs, lot.bodies)
        return bodies

    def unit(self, bodies: list[bytes], seqs: NDArray[np.int64]) -> Unit:
        """The records with these bodies, which end these versions, as columns."""
        count = len(bodies)
        table = np.zeros(count, FIXED)
        table["kind"] = Kind.ENTRY
        table["size"] = np.fromiter(map(len, bodies), np.uint32, count)
        table["crc"] = np.fromiter(map(google_crc32c.value, bodies), np.uint32, count)
        table["kills_seq"] = seqs
        table["kills_fire_at_ms"] = list(chain.from_iterable(lot.fires for lot in self.by_topic.values()))
        return Unit(count, table.tobytes(), b"".join(bodies))


def lateness(heads: Sequence[PutHead], now_ms: int) -> Counter[tuple[str, int]]:
    """How many messages of which door are how late at an instant."""
    # Most were accepted before their due instant: for them no call is made.
    return Counter(
        [
            (head.door, now_ms - due_at_ms)
            if (due_at_ms := head.due_at_ms) is not None and due_at_ms >= head.accepted_at_ms
            else (head.door, lateness_of(head, now_ms))
            for head in heads
        ]
    )
