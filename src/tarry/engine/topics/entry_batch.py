"""A batch of entries: what bursts of due messages became, as columns.

To everybody it is a sequence of entries, each of which is made when it is asked for. Who has to do with all of them at
once, as a door that shows ten thousand, takes the columns instead, which costs a fraction.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from tarry.core.ids import Ids
from tarry.engine.due.decoded_batch import DecodedBatch
from tarry.engine.topics.received import Received
from tarry.ledger.read_record import ReadPut


class EntrySpan(NamedTuple):
    """Entries that follow one another in a topic: of messages that were read together, fired at one instant.

    The columns are of all that were read together, so that a part of a span costs what the whole does.
    """

    entry_ids: range
    places: slice
    """Where these are in the columns."""
    published_at_ms: int
    batch: DecodedBatch
    """The versions that they fired, read together."""
    fires: "array[int]"
    seqs: "array[int]"
    """The keys of these versions."""

    @property
    def puts(self) -> Sequence[ReadPut]:
        """The versions, of all that were read together."""
        puts: Sequence[Any] = self.batch.read
        return puts

    def between(self, start: int, stop: int) -> "EntrySpan":
        """A span of the entries from one position to another."""
        first = self.places.start
        return self._replace(entry_ids=self.entry_ids[start:stop], places=slice(first + start, first + stop))

    def entry(self, number: int, ids: Ids) -> Received:
        """One of them as a consumer gets it."""
        at = self.places.start + number
        put = self.puts[at]
        origin = put.origin or (self.fires[at], self.seqs[at])
        return Received(
            self.entry_ids[number], 0, put.payload, put.headers, put.key, self.published_at_ms, put.due_at_ms,
            origin, ids,
        )  # fmt: skip


class EntryBatch(Sequence[Received]):
    """Entries that follow one another in a topic. Each is one message, and none has a time to live."""

    __slots__ = ("_ids", "entry_ids", "spans")

    def __init__(self, spans: list[EntrySpan], ids: Ids) -> None:
        self.spans = spans
        self.entry_ids = range(spans[0].entry_ids.start, spans[-1].entry_ids.stop) if spans else range(0)
        self._ids = ids

    def __len__(self) -> int:
        return len(self.entry_ids)

    def __iter__(self) -> Iterator[Received]:
        for span in self.spans:
            for number in range(len(span.entry_ids)):
                yield span.entry(number, self._ids)

    @overload
    def __getitem__(self, at: int) -> Received: ...

    @overload
    def __getitem__(self, at: slice) -> "EntryBatch": ...

    def __getitem__(self, at: int | slice) -> "Received | EntryBatch":
        if isinstance(at, slice):
            return EntryBatch(list(self._cut(self.entry_ids[at])), self._ids)
        entry_id = self.entry_ids[at]
        span = next(one for one in self.spans if entry_id < one.entry_ids.stop)
        return span.entry(entry_id - span.entry_ids.start, self._ids)

    def _cut(self, wanted: range) -> Iterator[EntrySpan]:
        for span in self.spans:
            here = span.entry_ids
            start, stop = max(wanted.start, here.start), min(wanted.stop, here.stop)
            if start < stop:
                whole = start == here.start and stop == here.stop
                yield span if whole else span.between(start - here.start, stop - here.start)

    def __add__(self, more: "EntryBatch") -> "EntryBatch":
        """These, and others that follow them in the topic."""
        return EntryBatch(self.spans + more.spans, self._ids)


def ids_of(entries: Sequence[Received]) -> Sequence[int]:
    """The ids of entries."""
    return entries.entry_ids if isinstance(entries, EntryBatch) else [entry.entry_id for entry in entries]


def messages_in(entries: Sequence[Received]) -> int:
    """How many messages of clients' they are."""
    return len(entries) if isinstance(entries, EntryBatch) else sum([entry.messages for entry in entries])


def about_bytes(entries: Sequence[Received]) -> int:
    """How large they are, about: of a batch without a look at each."""
    if isinstance(entries, EntryBatch):
        return sum([one.batch.size_bytes * len(one.entry_ids) // len(one.batch) for one in entries.spans])
    return sum([len(entry.payload) for entry in entries])
