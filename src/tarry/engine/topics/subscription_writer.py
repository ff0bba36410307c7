"""Records of subscriptions: acknowledgements, seeks, and dead letters of entries that came too often."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tarry.core.errors import TarryError, TooLarge, Unavailable
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed
from tarry.engine.journal.journal import Journal
from tarry.engine.topics.entries import Received
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.entry_reader import EntryReader
from tarry.ledger.record import NO_PUT, Ack, Entry, Record, Seek, TopicSet

log = logging.getLogger(__name__)

WORD_BITS: Final = 64
"""Messages of a batch in one word of an acknowledgement."""


class SubscriptionWriter:
    """Writes the records by which subscriptions change."""

    def __init__(
        self, journal: Journal, reader: EntryReader, clock: Clock, find: Callable[[str], EntryLog | None]
    ) -> None:
        """`find` gives a topic by its full name, if it is there."""
        self._journal = journal
        self._reader = reader
        self._clock = clock
        self._find = find

    def ack(
        self,
        topic: EntryLog,
        name: str,
        entry_ids: list[int],
        below: int,
        partial: list[tuple[int, list[int]]],
    ) -> Answer[None]:
        """Write an acknowledgement of a subscription, by its name."""
        return self._write(Ack(topic.name, name, below, entry_ids, partial), essential=True)

    def seek(self, topic: EntryLog, name: str, to: int) -> Answer[None]:
        """Have a subscription, by its name, go to an entry."""
        return self._write(Seek(topic.name, name, to))

    def _write(self, record: Record, *, essential: bool = False) -> Answer[None]:
        try:
            return self._journal.write([record], lambda: None, essential=essential)
        except TarryError as error:
            return failed(error)

    def bits_of(self, topic: EntryLog, entry_id: int, left: list[int]) -> list[int]:
        """The bits that are an entry's messages: a client may send more of them, and all would be kept."""
        if len(left) <= 1:
            return left
        entry = self._reader.entry(topic, entry_id)
        return left[: 1 if entry is None else -(-entry.messages // WORD_BITS)]

    def dead_letters(
        self,
        topic: EntryLog,
        name: str,
        properties: Mapping[str, str],
        entries: Sequence[Received],
        gone: list[int],
    ) -> list[int]:
        """Entries that came too often: each into the dead-letter topic and acknowledged, in one unit.

        Those that are `gone` are acknowledged alone. Gives back those for which there is no space now.
        """
        target = properties.get("dead_letter_topic", f"{topic.name}-{name}-DLQ")
        left: list[int] = []
        if gone:
            try:
                self._journal.append([Ack(topic.name, name, 0, gone)], lambda _: None, essential=True)
            except Unavailable:
                left += gone
        for received in entries:
            try:
                records = self._dead_letter(topic, name, target, received)
                self._journal.append(records, lambda _: None, essential=True)
            except Unavailable:
                left.append(received.entry_id)
            except TooLarge as error:
                # It comes once more instead: what cannot be kept elsewhere is not given up.
                log.error("entry %d of %s cannot be a dead letter: %s", received.entry_id, topic.name, error)
                left.append(received.entry_id)
        return left

    def _dead_letter(self, topic: EntryLog, name: str, target: str, received: Received) -> list[Record]:
        headers = {
            **received.headers, "tarry-origin-topic": topic.name, "tarry-origin-entry": str(received.entry_id),
        }  # fmt: skip
        home = self._find(target)
        entry = Entry(
            target, 0, self._clock.now_ms(), home.next if home else 0, None, NO_PUT, received.payload, headers,
            received.key, door=received.door, messages=received.messages,
        )  # fmt: skip
        made: list[Record] = [] if home else [TopicSet(target, False, 0)]
        return [Ack(topic.name, name, 0, [received.entry_id]), *made, entry]
