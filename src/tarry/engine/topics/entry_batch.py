"""A batch of entries: what bursts of due messages became, as columns.

To everybody it is a sequence of entries, each of which is made when it is asked for. Who has to do with all of them at
once, as a door that shows ten thousand, takes the columns instead, which costs a fraction.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

from tarry.core.messages.ids import Ids
from tarry.engine.due.due_batch import DueBatch
from tarry.engine.topics.entries import Received


class EntryBatch(Sequence[Received]):
    """Entries that follow one another in a topic: rows of due batches that were fired. Each is one message, and none has a time to live.

    Made out of a `Burst` when its unit is durable, and cut and joined by `RecentEntries`. Read by subscriptions, which give it to
    consumers as it is or entry by entry, and by doors that write columns. Dies when `RecentEntries` has let go of it and the last
    consumer was shown it.
    """

    __slots__ = ("_ids", "entry_ids", "rows")

    def __init__(self, rows: list[tuple[DueBatch, slice]], ids: Ids) -> None:
        self.rows = rows
        """The rows of each batch. Its columns are of all that were read together, so that a part of it costs what the whole does."""
        self.entry_ids = range(0)
        if rows:
            (first, its), (last, others) = rows[0], rows[-1]
            self.entry_ids = range(first.entry_ids(its).start, last.entry_ids(others).stop)
        self._ids = ids

    def __len__(self) -> int:
        return len(self.entry_ids)

    def __iter__(self) -> Iterator[Received]:
        for batch, rows in self.rows:
            for row in range(rows.start, rows.stop):
                yield self._entry(batch, row)

    @overload
    def __getitem__(self, at: int) -> Received: ...

    @overload
    def __getitem__(self, at: slice) -> "EntryBatch": ...

    def __getitem__(self, at: int | slice) -> "Received | EntryBatch":
        if isinstance(at, slice):
            return EntryBatch(list(self._cut(self.entry_ids[at])), self._ids)
        entry_id = self.entry_ids[at]
        batch = next(batch for batch, rows in self.rows if entry_id < batch.first_entry_id + rows.stop)
        return self._entry(batch, entry_id - batch.first_entry_id)

    def _entry(self, batch: DueBatch, row: int) -> Received:
        put: Any = batch.read[row]
        origin = put.origin or (batch.fires[row], batch.seqs[row])
        return Received(
            batch.first_entry_id + row, 0, put.payload, put.headers, put.key, batch.fired_at_ms, put.due_at_ms,
            origin, self._ids,
        )  # fmt: skip

    def _cut(self, wanted: range) -> Iterator[tuple[DueBatch, slice]]:
        for batch, rows in self.rows:
            first = batch.first_entry_id
            start, stop = max(wanted.start - first, rows.start), min(wanted.stop - first, rows.stop)
            if start < stop:
                yield batch, slice(start, stop)

    def __add__(self, more: "EntryBatch") -> "EntryBatch":
        """These, and others that follow them in the topic."""
        return EntryBatch(self.rows + more.rows, self._ids)


def ids_of(entries: Sequence[Received]) -> Sequence[int]:
    """The ids of entries."""
    return entries.entry_ids if isinstance(entries, EntryBatch) else [entry.entry_id for entry in entries]


def messages_in(entries: Sequence[Received]) -> int:
    """How many messages of clients' they are."""
    return len(entries) if isinstance(entries, EntryBatch) else sum([entry.messages for entry in entries])


def about_bytes(entries: Sequence[Received]) -> int:
    """How large they are, about: of a batch without a look at each."""
    if isinstance(entries, EntryBatch):
        return sum(
            [batch.size_bytes * (rows.stop - rows.start) // len(batch) for batch, rows in entries.rows]
        )
    return sum([len(entry.payload) for entry in entries])
