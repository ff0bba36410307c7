"""A burst: due messages for Tarry's own topics, gathered to be fired in one unit of the ledger (R5).

When ten thousand messages are due at one instant this is the hot path, so that it works on lists and columns: one
loop over the messages, one over their bodies, and the rest by topic.
"""

from collections.abc import Iterator
from typing import Final

import google_crc32c
import numpy as np

from tarry.engine.topic_records import TopicRecords
from tarry.ledger.frame import FIXED, ROW_BYTES, Unit
from tarry.ledger.record import FiredEntries, Key, Kind, PutHead

Fired = tuple[PutHead, int, int, bytes]
"""A due message: its head, its fire instant and seq, and its body."""


_ENTRY_BYTES: Final = 64
"""What an entry adds to the version that it fires, its topic's name apart."""


class Burst:
    """Due messages by topic."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.by_topic: dict[str, list[Fired]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def of(self, topic: str) -> list[Fired]:
        """The messages for one topic, to add to."""
        return self.by_topic.setdefault(topic, [])

    def fired(self) -> Iterator[Fired]:
        """Every message, in the order of the unit."""
        for messages in self.by_topic.values():
            yield from messages

    def seqs(self) -> list[int]:
        """The seqs of the versions that end."""
        return [seq for _, _, seq, _ in self.fired()]

    def lowest(self) -> Key:
        """The lowest key in it."""
        return Key(*min((fire_at_ms, seq) for _, fire_at_ms, seq, _ in self.fired()))

    def parts(self, max_bytes: int) -> "list[Burst]":
        """The same as bursts that each fit one unit of the ledger: nearly always this one alone."""
        extra_bytes = ROW_BYTES + _ENTRY_BYTES + max(len(topic.encode()) for topic in self.by_topic)
        if sum([len(body) for _, _, _, body in self.fired()]) + extra_bytes * len(self) <= max_bytes:
            return [self]
        parts = [Burst(self.now_ms)]
        room = max_bytes
        for topic, messages in self.by_topic.items():
            for message in messages:
                size_bytes = len(message[3]) + extra_bytes
                if size_bytes > room and len(parts[-1]):
                    parts.append(Burst(self.now_ms))
                    room = max_bytes
                room -= size_bytes
                parts[-1].of(topic).append(message)
        return parts

    def bodies(self, records: TopicRecords) -> list[bytes]:
        """The bodies of the entries that fire them, topic after topic, with the next entry ids of each."""
        bodies: list[bytes] = []
        for topic, messages in self.by_topic.items():
            encode = FiredEntries(topic, self.now_ms).body
            first_id = records.next_id(topic)
            bodies += [
                encode(entry_id, fire_at_ms, seq, body)
                for entry_id, (_, fire_at_ms, seq, body) in enumerate(messages, first_id)
            ]
        return bodies

    def unit(self, bodies: list[bytes]) -> Unit:
        """The records with these bodies, as columns."""
        count = len(bodies)
        table = np.zeros(count, FIXED)
        table["kind"] = Kind.ENTRY
        table["size"] = np.fromiter(map(len, bodies), np.uint32, count)
        table["crc"] = np.fromiter(map(google_crc32c.value, bodies), np.uint32, count)
        table["kills_seq"] = np.fromiter((seq for _, _, seq, _ in self.fired()), np.int64, count)
        table["kills_fire_at_ms"] = np.fromiter((fire for _, fire, _, _ in self.fired()), np.int64, count)
        return Unit(count, table.tobytes(), b"".join(bodies))
