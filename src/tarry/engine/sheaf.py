"""A sheaf: the entries that bursts of due messages became, as columns.

To everybody it is a sequence of entries, each of which is made when it is asked for. Who has to do with all of them at
once, as a door that shows ten thousand, takes the columns instead, which costs a fraction.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from tarry.core.ids import Ids
from tarry.engine.consumer import Received
from tarry.ledger.read_record import ReadPut


class Sheaf(Sequence[Received]):
    """Entries that follow one another in a topic. Each is one message, and none has a time to live."""

    __slots__ = ("_fires", "_ids", "_seqs", "entry_ids", "published_at_ms", "puts", "shown")

    def __init__(
        self,
        entry_ids: range,
        published_at_ms: "array[int]",
        puts: list[ReadPut],
        fires: "array[int]",
        seqs: "array[int]",
        ids: Ids,
        shown: Sequence[bytes] = (),
    ) -> None:
        self.entry_ids = entry_ids
        self.published_at_ms = published_at_ms
        self.puts = puts
        """The versions that they fired."""
        self.shown = shown
        """What a door has prepared of each, or nothing."""
        self._fires = fires
        self._seqs = seqs
        self._ids = ids

    def __len__(self) -> int:
        return len(self.entry_ids)

    def __iter__(self) -> Iterator[Received]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, at: int) -> Received: ...

    @overload
    def __getitem__(self, at: slice) -> "Sheaf": ...

    def __getitem__(self, at: int | slice) -> "Received | Sheaf":
        if isinstance(at, slice):
            return Sheaf(
                self.entry_ids[at],
                self.published_at_ms[at],
                self.puts[at],
                self._fires[at],
                self._seqs[at],
                self._ids,
                self.shown[at],
            )
        put = self.puts[at]
        origin = put.origin or (self._fires[at], self._seqs[at])
        return Received(
            self.entry_ids[at], 0, put.payload, put.headers, put.key, self.published_at_ms[at], put.due_at_ms,
            origin, self._ids,
        )  # fmt: skip

    def __add__(self, more: "Sheaf") -> "Sheaf":
        """These, and others that follow them in the topic."""
        return Sheaf(
            range(self.entry_ids.start, more.entry_ids.stop),
            self.published_at_ms + more.published_at_ms,
            self.puts + more.puts,
            self._fires + more._fires,
            self._seqs + more._seqs,
            self._ids,
            [*self.shown, *more.shown] if self.shown and more.shown else (),
        )


def ids_of(entries: Sequence[Received]) -> Sequence[int]:
    """The ids of entries."""
    return entries.entry_ids if isinstance(entries, Sheaf) else [entry.entry_id for entry in entries]


def messages_in(entries: Sequence[Received]) -> int:
    """How many messages of clients' they are."""
    return len(entries) if isinstance(entries, Sheaf) else sum([entry.messages for entry in entries])


def payload_bytes(entries: Sequence[Received]) -> int:
    """The size of their payloads."""
    if isinstance(entries, Sheaf):
        return sum([len(put.payload) for put in entries.puts])
    return sum([len(entry.payload) for entry in entries])
