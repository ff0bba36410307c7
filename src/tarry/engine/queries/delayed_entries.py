"""Delayed entries of topics: list them, look at one, cancel it, give it another due instant.

An entry has its id and its place in publish order from the beginning; only when it is due can change. So a rescheduled
entry is the same entry in a new record that kills the old one, and a cancelled one is a record without content (R4): shared
and key-shared subscriptions never get it, and every subscription is done with it. Exclusive and failover ones, which ignore
delays, may have got it before.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from tarry.core import admission
from tarry.core.errors import Conflict, Invalid, NotFound, TarryError
from tarry.core.names import parse_topic
from tarry.engine.answer import Answer
from tarry.engine.queries.paging import check_limit
from tarry.engine.topics.topic import Topic
from tarry.ledger.record import Entry, Key, decode_entry

if TYPE_CHECKING:
    from tarry.engine.journal import Journal

T = TypeVar("T")

LOOK_AT: Final = 5_000
"""Entries looked at for one page."""

READ_AT_ONCE: Final = 256
"""So few entries are read to find the one that is due next; of more, the wheel is looked through."""
LOOKS: Final = 10


class DelayedEntry(Struct, frozen=True):
    """A delayed entry as it is now."""

    entry_id: int
    due_at_ms: int
    published_at_ms: int
    key: str | None
    producer: str | None
    door: str
    messages: int
    payload: bytes
    headers: dict[str, str]


class DelayedPage(Struct, frozen=True):
    """Delayed entries in publish order; `next` is where the following page starts, None at the end."""

    entries: list[DelayedEntry]
    next: int | None


class DelayedEntries:
    """Looks at entries that wait, and changes when they are due.

    What is told of an entry, a refusal too, may follow from a command that is not durable yet: it is told once that is.
    """

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal

    def list(
        self, topic: str, *, key: str | None = None, start: int = 0, limit: int = 100
    ) -> Answer[DelayedPage]:
        """A page of what waits in a topic, of one key or all. It may be short, or empty, and still have a next page."""
        return self._told(lambda: self._page(topic, key, start, limit))

    def get(self, topic: str, entry_id: int) -> Answer[DelayedEntry]:
        """One that waits; fails with `NotFound`, or with `Conflict` for one that is due already."""
        return self._told(lambda: _view(self._find(self._journal.topics.find(topic), entry_id)[1]))

    def cancel(self, topic: str, entry_id: int) -> Answer[DelayedEntry]:
        """See that nobody gets an entry: every subscription is done with it."""
        return self._written(lambda: self._cancelled(topic, entry_id))

    def reschedule(self, topic: str, entry_id: int, due_at_ms: int) -> Answer[DelayedEntry]:
        """Give an entry another due instant, within the policy's longest delay."""
        return self._written(lambda: self._moved(topic, entry_id, due_at_ms))

    def _told(self, look: Callable[[], T]) -> Answer[T]:
        """Answer with the result of a look, or with its error, once the records that it saw are durable."""
        answer: Answer[T] = Answer()
        try:
            found = look()
            told = answer.unless_error(lambda: found)
        except TarryError as error:
            told = answer.unless_error(partial(_refuse, error))
        self._journal.when_durable(self._journal.ledger.next_seq - 1, told)
        return answer

    def _page(self, topic: str, key: str | None, start: int, limit: int) -> DelayedPage:
        if start < 0:
            raise Invalid("start", "is negative")
        check_limit(limit)
        self._journal.check_disk()
        found = self._journal.topics.find(topic)
        waiting = found.waiting.between(max(start, found.first), found.visible)
        ids = waiting[: LOOK_AT if key is not None else limit]
        ids = ids[: self._journal.sizes.together(found.seqs(ids))]
        entries: list[DelayedEntry] = []
        for entry_id, body in zip(ids.tolist(), self._journal.entry_bodies(found.seqs(ids)), strict=True):
            if len(entries) == limit:
                return DelayedPage(entries, entry_id)
            entry = None if body is None else decode_entry(body)
            if entry is not None and (key is None or entry.key == key):
                entries.append(_view(entry))
        return DelayedPage(entries, int(waiting[len(ids)]) if len(waiting) > len(ids) else None)

    def _cancelled(self, topic: str, entry_id: int) -> tuple[Entry, DelayedEntry]:
        old, entry = self._find(self._journal.topics.find(topic), entry_id)
        gone = msgspec.structs.replace(
            entry, fire_at_ms=0, payload=b"", headers={}, carries=old, cancelled=True
        )
        return gone, _view(entry)

    def _moved(self, topic: str, entry_id: int, due_at_ms: int) -> tuple[Entry, DelayedEntry]:
        found = self._journal.topics.find(topic)
        old, entry = self._find(found, entry_id)
        if due_at_ms < 0:
            raise Invalid("due_at_ms", "is negative")
        policy = self._journal.policies.effective(found.name, parse_topic(found.name).namespace_name)
        now_ms = self._journal.clock.now_ms()
        admission.check_delay(due_at_ms - now_ms, policy)
        _, fire_at_ms = admission.instants(due_at_ms, now_ms, self._journal.floor_ms, policy)
        moved = msgspec.structs.replace(entry, fire_at_ms=fire_at_ms, due_at_ms=due_at_ms, carries=old)
        return moved, _view(moved)

    def next_due_at_ms(self, topic: Topic) -> int | None:
        """When the next entry of a topic is due; None if none waits, or if too many of other topics are due before it."""
        if len(topic.waiting) <= READ_AT_ONCE:
            bodies = self._journal.entry_bodies(topic.waiting_seqs())
            return min(
                (_view(decode_entry(body)).due_at_ms for body in bodies if body is not None), default=None
            )
        waiting = np.sort(topic.waiting_seqs())
        low = Key(0, 0)
        for _ in range(LOOKS):
            due = self._journal.horizon.entries(low, LOOK_AT)
            found = np.flatnonzero(np.isin(due.seqs, waiting))
            if len(found):
                return int(due.fire_at_ms[found[0]])
            if len(due.seqs) < LOOK_AT:
                break
            low = Key(int(due.fire_at_ms[-1]), int(due.seqs[-1]) + 1)
        return None

    def _find(self, topic: Topic, entry_id: int) -> tuple[Key, Entry]:
        self._journal.check_disk()
        if not topic.first <= entry_id < topic.visible or not topic.seq(entry_id):
            raise NotFound(f"there is no entry {entry_id} in {topic.name}")
        if entry_id not in topic.waiting:
            raise Conflict(f"entry {entry_id} of {topic.name} does not wait: it is due", "due")
        seq = topic.seq(entry_id)
        body = self._journal.entry_bodies(np.array([seq], np.int64))[0]
        if body is None:
            raise NotFound(f"entry {entry_id} of {topic.name} cannot be read")
        entry = decode_entry(body)
        return Key(entry.fire_at_ms, seq), entry

    def _written(self, make: Callable[[], tuple[Entry, DelayedEntry]]) -> Answer[DelayedEntry]:
        """Write the record that is made, and tell what is shown of it; or tell why there is none."""
        try:
            record, view = make()
            answer: Answer[DelayedEntry] = Answer()
            self._journal.append([record], answer.unless_error(lambda: view), essential=record.cancelled)
            return answer
        except TarryError as error:
            return self._told(partial(_refuse, error))


def _refuse(error: TarryError) -> NoReturn:
    raise error


def _view(entry: Entry) -> DelayedEntry:
    due_at_ms = entry.fire_at_ms if entry.due_at_ms is None else entry.due_at_ms
    return DelayedEntry(
        entry.entry_id, due_at_ms, entry.published_at_ms, entry.key, entry.producer, entry.door, entry.messages,
        entry.payload, entry.headers,
    )  # fmt: skip
