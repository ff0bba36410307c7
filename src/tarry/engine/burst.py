"""A burst: due messages for Tarry's own topics, gathered to be fired in one unit of the ledger (R5).

When ten thousand messages are due at one instant this is the hot path, so that it works on columns: each step is one
loop over all messages of a topic, or none.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.ids import Ids
from tarry.engine.alike import Alike, all_alike
from tarry.engine.sheaf import Sheaf
from tarry.engine.standby import Reads
from tarry.engine.topic_records import TopicRecords
from tarry.engine.versions import lateness_of
from tarry.ledger.fired import Draft, Fired, filled, fired
from tarry.ledger.frame import FIXED, ROW_BYTES, Unit
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import Key, Kind

_ENTRY_BYTES: Final = 64
"""What an entry adds to the version that it fires, its topic's name apart."""


class Lot:
    """Due messages for one topic, as columns of one length."""

    __slots__ = ("bodies", "drafts", "fires", "kinds", "puts", "seqs", "shown", "size_bytes")

    def __init__(self) -> None:
        self.puts: list[ReadPut] = []
        self.bodies: list[bytes] = []
        self.fires = array("q")
        self.seqs = array("q")
        self.kinds: Counter[Alike] = Counter()
        """How many of them are alike."""
        self.size_bytes = 0
        """Of their bodies."""
        self.shown: list[bytes] = []
        """See `Reads.shown`."""
        self.drafts: dict[int, Draft] = {}
        """See `Reads.drafts`."""

    def add(self, put: ReadPut, body: bytes, alike: Alike, key: Key) -> None:
        """Take one more."""
        self.puts.append(put)
        self.bodies.append(body)
        self.fires.append(key.fire_at_ms)
        self.seqs.append(key.seq)
        self.kinds[alike] += 1
        self.size_bytes += len(body)

    def extend(self, reads: Reads, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> None:
        """Take versions that were read, all of them for this topic."""
        self.drafts |= {len(self) + at: draft for at, draft in reads.drafts.items()}
        self.puts += reads.read  # type: ignore[arg-type]
        self.bodies += reads.bodies
        self.fires.frombytes(fires.tobytes())
        self.seqs.frombytes(seqs.tobytes())
        self.kinds.update(reads.kinds)  # type: ignore[arg-type]
        self.size_bytes += reads.size_bytes
        self.shown += reads.shown

    def __len__(self) -> int:
        return len(self.seqs)

    def between(self, start: int, stop: int) -> "Lot":
        """Some of them."""
        some, part = Lot(), slice(start, stop)
        some.puts, some.bodies = self.puts[part], self.bodies[part]
        some.fires, some.seqs = self.fires[part], self.seqs[part]
        some.kinds = Counter(all_alike(some.puts))
        some.size_bytes = sum(map(len, some.bodies))
        some.shown = self.shown[part] if len(self.shown) == len(self) else []
        return some

    def keys(self) -> Iterator[Key]:
        """Their keys."""
        return map(Key, self.fires, self.seqs)

    def fired(self, topic: str, first_id: int, at_ms: int) -> list[Fired]:
        """The entries that fire them, numbered from one on, as the ledger has them."""
        starts = sorted(self.drafts)
        drafts = [self.drafts[start] for start in starts]
        parts = filled(drafts, [first_id + start for start in starts], at_ms) if drafts else []
        if sum(map(len, drafts)) == len(self):
            return parts
        # Some were not drafted.
        fires, seqs = _column([self.fires]), _column([self.seqs])
        stops = [start + len(draft) for start, draft in zip(starts, drafts, strict=True)]
        found = dict(zip(starts, parts, strict=True))
        for start, stop in zip((0, *stops), (*starts, len(self)), strict=True):
            if start < stop:
                part = slice(start, stop)
                ids = first_id + start
                found[start] = fired(topic, ids, at_ms, fires[part], seqs[part], self.bodies[part])
        return [found[start] for start in sorted(found)]

    def sheaf(self, first_id: int, at_ms: int, ids: Ids) -> Sheaf:
        """The entries that fire them, numbered from one on, as consumers get them."""
        return Sheaf(
            range(first_id, first_id + len(self)),
            array("q", [at_ms]) * len(self),
            self.puts,
            self.fires,
            self.seqs,
            ids,
            self.shown if len(self.shown) == len(self) else (),
        )


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
            yield from zip(lot.puts, lot.keys(), strict=True)

    def seqs(self) -> NDArray[np.int64]:
        """The seqs of the versions that end."""
        return _column([lot.seqs for lot in self.by_topic.values()])

    def fires(self) -> NDArray[np.int64]:
        """Their fire instants."""
        return _column([lot.fires for lot in self.by_topic.values()])

    def kinds(self) -> Counter[Alike]:
        """How many of the messages are alike."""
        return sum((lot.kinds for lot in self.by_topic.values()), Counter())

    def floor(self) -> Key:
        """A key that is not above any in it."""
        return Key(int(self.fires().min()), 0)

    def parts(self, max_bytes: int) -> "list[Burst]":
        """The same as bursts that each fit one unit of the ledger: nearly always this one alone."""
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
            for at, body in enumerate(lot.bodies):
                size_bytes = len(body) + extra_bytes
                if size_bytes > room and room < max_bytes:
                    if at > start:
                        parts[-1].by_topic[topic] = lot.between(start, at)
                    parts.append(Burst(self.now_ms))
                    start, room = at, max_bytes
                room -= size_bytes
            parts[-1].by_topic[topic] = lot.between(start, len(lot))
        return parts

    def unit(self, records: TopicRecords) -> Unit:
        """The records of the entries that fire them, topic after topic, with the next entry ids of each."""
        parts = [
            part
            for topic, lot in self.by_topic.items()
            for part in lot.fired(topic, records.next_id(topic), self.now_ms)
        ]
        table = np.zeros(len(self), FIXED)
        table["kind"] = Kind.ENTRY
        table["size"] = np.concatenate([part.sizes for part in parts])
        table["crc"] = np.concatenate([part.crcs for part in parts])
        table["kills_seq"] = self.seqs()
        table["kills_fire_at_ms"] = self.fires()
        return Unit(len(self), table.tobytes(), b"".join([part.bodies for part in parts]))


def _column(parts: "list[array[int]]") -> NDArray[np.int64]:
    return np.concatenate([np.frombuffer(part, np.int64) for part in parts])


def lateness(heads: Sequence[PutHead], now_ms: int) -> Counter[tuple[str, int]]:
    """How many messages of which door are how late at an instant."""
    return Counter((head.door, lateness_of(head, now_ms)) for head in heads)
