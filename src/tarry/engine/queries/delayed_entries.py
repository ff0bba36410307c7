"""Delayed entries by topic and entry id, in publish order: a view of messages that wait in one topic.

Commands on them are those on messages: here an entry is looked up by its place, and `Commands` does the rest.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tarry.core.errors import Conflict, Invalid, NotFound, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessageView
from tarry.core.messages.shapes import DelayedFacts
from tarry.engine.answer import Answer
from tarry.engine.due.horizon import Horizon
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands
from tarry.engine.queries.paging import check_limit
from tarry.engine.records.delayed_entry import due_of
from tarry.engine.topics.entry_reader import EntryReader
from tarry.engine.topics.topic import Topic
from tarry.engine.topics.topics import Topics
from tarry.ledger.record import Entry, Key, decode_entry

T = TypeVar("T")

LOOK_AT: Final = 5_000
"""Entries looked at for one page."""

READ_AT_ONCE: Final = 256
"""So few entries are read to find the one that is due next; of more, the wheel is looked through."""
LOOKS: Final = 10


class DelayedEntry(DelayedFacts, frozen=True, kw_only=True):
    """A delayed entry as it is now."""

    payload: bytes


class DelayedPage(Struct, frozen=True):
    """Delayed entries in publish order; `next` is where the following page starts, None at the end."""

    entries: list[DelayedEntry]
    next: int | None


class DelayedEntries:
    """Looks at entries that wait, and has them commanded.

    What is told of an entry, a refusal too, may follow from a command that is not durable yet: it is told once that is.
    """

    def __init__(
        self,
        journal: Journal,
        topics: Topics,
        reader: EntryReader,
        horizon: Horizon,
        ids: Ids,
        commands: Commands,
    ) -> None:
        self._journal = journal
        self._topics = topics
        self._reader = reader
        self._horizon = horizon
        self._ids = ids
        self._commands = commands

    def list(
        self, topic: str, *, key: str | None = None, start: int = 0, limit: int = 100
    ) -> Answer[DelayedPage]:
        """A page of delayed entries that wait in a topic, of one key or all. It may be short, or empty, and still have a next page."""
        return self._told(lambda: self._page(topic, key, start, limit))

    def get(self, topic: str, entry_id: int) -> Answer[DelayedEntry]:
        """One that waits; fails with `NotFound`, or with `Conflict` for one that is due already."""
        return self._told(lambda: self._view(*self._find(self._topics.find(topic), entry_id)))

    def cancel(self, topic: str, entry_id: int) -> Answer[DelayedEntry]:
        """See that nobody gets an entry: every subscription is done with it."""
        return self._commanded(topic, entry_id, self._commands.cancel)

    def reschedule(self, topic: str, entry_id: int, due_at_ms: int) -> Answer[DelayedEntry]:
        """Give an entry another due instant, within the policy's longest delay."""
        return self._commanded(topic, entry_id, partial(self._commands.restart, due_at_ms=due_at_ms))

    def _commanded(
        self, topic: str, entry_id: int, command: Callable[[str], Answer[MessageView]]
    ) -> Answer[DelayedEntry]:
        """Command the message that an entry is, and show the entry as it then is."""
        try:
            entry = self._view(*self._find(self._topics.find(topic), entry_id))
        except TarryError as error:
            return self._told(partial(_refuse, error))
        return command(entry.id).map(
            lambda view: entry if view.due_at_ms is None else replace(entry, due_at_ms=view.due_at_ms)
        )

    def _told(self, look: Callable[[], T]) -> Answer[T]:
        """Answer with the result of a look, or with its error, once the records that it saw are durable."""
        try:
            found = look()
        except TarryError as error:
            return self._journal.once_durable(partial(_refuse, error))
        return self._journal.once_durable(lambda: found)

    def _page(self, topic: str, key: str | None, start: int, limit: int) -> DelayedPage:
        if start < 0:
            raise Invalid("start", "is negative; give 0 or more")
        check_limit(limit)
        self._journal.check_shown()
        found = self._topics.find(topic)
        waiting = found.waiting.between(max(start, found.first), found.visible)
        ids = waiting[: LOOK_AT if key is not None else limit]
        ids = ids[: self._reader.together(found.seqs(ids))]
        entries: list[DelayedEntry] = []
        seqs = found.seqs(ids)
        bodies = self._reader.bodies(seqs)
        for entry_id, seq, body in zip(ids.tolist(), seqs.tolist(), bodies, strict=True):
            if len(entries) == limit:
                return DelayedPage(entries, entry_id)
            entry = None if body is None else decode_entry(body)
            if entry is not None and (key is None or entry.key == key):
                entries.append(self._view(Key(entry.fire_at_ms, seq), entry))
        return DelayedPage(entries, int(waiting[len(ids)]) if len(waiting) > len(ids) else None)

    def next_due_at_ms(self, topic: Topic) -> int | None:
        """When the next entry of a topic is due; None if none waits, or if too many of other topics are due before it."""
        if len(topic.waiting) <= READ_AT_ONCE:
            bodies = self._reader.bodies(topic.waiting_seqs())
            return min((due_of(decode_entry(body)) for body in bodies if body is not None), default=None)
        waiting = np.sort(topic.waiting_seqs())
        low = Key(0, 0)
        for _ in range(LOOKS):
            due = self._horizon.entries(low, LOOK_AT)
            found = np.flatnonzero(np.isin(due.seqs, waiting))
            if len(found):
                return int(due.fire_at_ms[found[0]])
            if len(due.seqs) < LOOK_AT:
                break
            low = Key(int(due.fire_at_ms[-1]), int(due.seqs[-1]) + 1)
        return None

    def _find(self, topic: Topic, entry_id: int) -> tuple[Key, Entry]:
        self._journal.check_shown()
        if not topic.first <= entry_id < topic.visible or not topic.seq(entry_id):
            raise NotFound(f"there is no entry {entry_id} in {topic.name}")
        if entry_id not in topic.waiting:
            raise Conflict(f"entry {entry_id} of {topic.name} does not wait: it is due", "due")
        seq = topic.seq(entry_id)
        body = self._reader.bodies(np.array([seq], np.int64))[0]
        if body is None:
            raise NotFound(f"entry {entry_id} of {topic.name} cannot be read")
        entry = decode_entry(body)
        return Key(entry.fire_at_ms, seq), entry

    def _view(self, key: Key, entry: Entry) -> DelayedEntry:
        origin = entry.origin or key
        return DelayedEntry(
            entry_id=entry.entry_id,
            id=self._ids.make(origin.seq, origin.fire_at_ms),
            due_at_ms=due_of(entry),
            published_at_ms=entry.published_at_ms,
            key=entry.key,
            producer=entry.producer,
            door=entry.door,
            messages=entry.messages,
            headers=entry.headers,
            payload=entry.payload,
        )


def _refuse(error: TarryError) -> NoReturn:
    raise error
