"""A burst: due messages for Tarry's own topics, gathered to be fired in one unit of the ledger (R5).

When ten thousand messages are due at one instant this is the hot path, so that it works on lists and columns: one
loop over the messages, one over their bodies, and the rest by topic.
"""

from collections.abc import Iterator
from itertools import repeat

import google_crc32c

from tarry.engine.topic_records import TopicRecords
from tarry.ledger.record import Encoded, FiredEntries, Key, PutHead

Fired = tuple[PutHead, int, int, bytes]
"""A due message: its head, its fire instant and seq, and its body."""


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

    def unit(self, records: TopicRecords) -> list[Encoded]:
        """The records that fire them, topic after topic, with the next entry ids of each."""
        unit: list[Encoded] = []
        for topic, messages in self.by_topic.items():
            encode = FiredEntries(topic, self.now_ms).body
            first_id = records.next_id(topic)
            bodies = [
                encode(entry_id, fire_at_ms, seq, body)
                for entry_id, (_, fire_at_ms, seq, body) in enumerate(messages, first_id)
            ]
            columns = zip(
                repeat(3), repeat(0), map(google_crc32c.value, bodies), repeat(0),
                (seq for _, _, seq, _ in messages), (fire for _, fire, _, _ in messages), bodies,
            )  # fmt: skip
            unit += map(Encoded._make, columns)
        return unit
