"""Changes: what the records of a unit do to the state, as columns.

A unit is decided by its changes, whether it was just enqueued or is read at a start: `changes_of` finds them in its records.
Whoever lays out a unit of thousands knows them without its records, and gives them along (`Written`): a cache of what
`changes_of` would find. Records of one kind that follow each other are one change, so that deciding costs little for each.

Nothing here knows the state.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.limits import STRANDED_MS
from tarry.core.tenants.holder import Holder
from tarry.engine.records.versions import is_commanded
from tarry.ledger.frame import Unit, unit_of
from tarry.ledger.read_record import PutHead, decode_heads
from tarry.ledger.record import Entry, Key, Put, Record, encode


class SentNumbers(NamedTuple):
    """The numbers that one message or batch states: its first, its last, and how many messages it is."""

    first: int
    last: int
    messages: int = 1

    @property
    def is_dense(self) -> bool:
        """Whether every number from the first to the last is one of its messages."""
        return self.last - self.first + 1 == self.messages


def sent_by(first: int, last: int, messages: int) -> SentNumbers:
    """The numbers of an entry; one that does not state its first has one number."""
    return SentNumbers(last, last, messages) if first < 0 else SentNumbers(first, last, messages)


IntColumn = Sequence[int] | NDArray[np.int64]


class KeyedLines(Struct, frozen=True, gc=False):
    """Lines of one request with an idempotency key whose answers are kept in one page: first versions of one holder."""

    holder: Holder
    request: str
    """The key of the request."""
    page: int
    lines: bytes
    """Their places in the page."""
    places: NDArray[np.int64]
    """Their places in the unit."""
    answers: NDArray[Any]
    """Their answers but for the seqs, as the registry packs them (`tarry.registry.lines_row`)."""
    accepted_at_ms: int


class Versions(Struct, frozen=True, gc=False):
    """Versions that follow each other."""

    accepted: Mapping[Holder, int]
    """How many messages of each holder are accepted with them."""
    known: Sequence[tuple[int, Put]] = ()
    """Versions of which the state keeps more than a count, with their places in the unit."""
    keyed: Sequence[KeyedLines] = ()
    """First versions of which the state keeps the answers to their idempotency keys and no more than that."""


class NewEntries(Struct, frozen=True, gc=False):
    """Entries of one topic whose ids follow each other."""

    topic: str
    first_id: int
    places: IntColumn
    """The places of their records in the unit."""
    published_at_ms: int
    sizes: IntColumn
    """Bytes of their payloads, or of the versions that they fired."""
    waiting: IntColumn = ()
    """The ids of those that wait for their due instant."""
    sent: Sequence[tuple[str, SentNumbers]] = ()
    """Sequence numbers of producers that came with them."""

    def seqs(self, first_seq: int) -> NDArray[np.int64]:
        """The seqs of their records, in a unit that begins with a seq."""
        if isinstance(self.places, range):
            return np.arange(first_seq + self.places.start, first_seq + self.places.stop)
        return first_seq + np.asarray(self.places, np.int64)

    @property
    def last_id(self) -> int:
        """The id of the last entry."""
        return self.first_id + len(self.places) - 1


FiredVersion = tuple[PutHead, Key, int]
"""A version that was fired into a topic: its head, its key, and when."""


class FiredVersions(Struct, frozen=True):
    """Versions that new entries end as sent (R5)."""

    seqs: NDArray[np.int64]
    ended: Callable[[], Iterable[FiredVersion]]
    """All of them, one by one."""
    holders: Counter[Holder] | None = None
    """How many there are of each holder, if of none of them more than that is kept: no row, no group."""


class Single(Struct, frozen=True, gc=False):
    """A record that is decided by itself."""

    place: int
    """Its place in the unit."""
    record: Record


Change = Versions | NewEntries | FiredVersions | Single


class Written(Struct, frozen=True, gc=False):
    """A unit to be appended, with its changes."""

    unit: Unit
    changes: Sequence[Change]
    recent: Sequence[int] = ()
    """The places of versions that are likely to be commanded soon."""

    def __len__(self) -> int:
        return self.unit.records


def written(records: Sequence[Record]) -> Written:
    """Lay out records that are at hand one by one."""
    recent = tuple([place for place, record in enumerate(records) if is_commanded(record)])
    return Written(unit_of([encode(record) for record in records]), changes_of(records), recent)


def changes_of(records: Sequence[Record | None]) -> list[Change]:
    """The changes that the records of a unit make; None stands in the place of a record that is passed over."""
    if len(records) == 1 and type(put := records[0]) is Put:
        # Most units are one first version: it is found without a look for others.
        return [_version(put)]
    changes: list[Change] = []
    rows: Any = enumerate(records)
    for kind, run in groupby(rows, _kind_of):
        if kind is Put:
            changes.append(_versions(run))
        elif kind is Entry:
            changes += _entries(list(run))
        else:
            changes += [Single(place, record) for place, record in run if record is not None]
    return changes


def _kind_of(row: tuple[int, Record | None]) -> type[Put] | type[Entry] | None:
    record = row[1]
    if type(record) is Put:
        return Put
    return Entry if type(record) is Entry and record.carries is None and not record.cancelled else None


def _version(put: Put) -> Versions:
    # Also one that failed and is retried is accepted: no version waits that it takes the place of.
    accepted = {Holder(put.namespace, put.owner): 1} if put.kills is None else {}
    return Versions(accepted, ((0, put),) if _is_known(put) else ())


def _versions(run: Iterable[tuple[int, Put]]) -> Versions:
    rows = list(run)
    accepted = Counter([(put.namespace, put.owner) for _, put in rows if put.kills is None])
    return Versions(
        {Holder(*holder): count for holder, count in accepted.items()},
        tuple([(place, put) for place, put in rows if _is_known(put)]),
    )


def _is_known(put: Put) -> bool:
    return (
        put.listed
        or put.origin is not None
        or put.kills is not None
        or put.group is not None
        or put.idempotency_key is not None
        or put.name is not None
        or put.subject is not None
        or put.leads is not None
        or put.fire_at_ms == STRANDED_MS
    )


def _entries(run: list[tuple[int, Entry]]) -> Iterator[Change]:
    by_topic: dict[str, list[tuple[int, Entry]]] = {}
    for row in run:
        by_topic.setdefault(row[1].topic, []).append(row)
    for topic, rows in by_topic.items():
        start = 0
        for stop in range(1, len(rows) + 1):
            # A record that is passed over leaves a gap.
            if stop == len(rows) or rows[stop][1].entry_id != rows[stop - 1][1].entry_id + 1:
                yield _new_entries(topic, rows[start:stop])
                start = stop
    fired = [entry for _, entry in run if entry.fired is not None]
    if fired:
        yield _fired(fired)


def _new_entries(topic: str, rows: list[tuple[int, Entry]]) -> NewEntries:
    first = rows[0][1]
    return NewEntries(
        topic,
        first.entry_id,
        [place for place, _ in rows],
        first.published_at_ms,
        [len(entry.payload) if entry.fired is None else len(entry.put) for _, entry in rows],
        [entry.entry_id for _, entry in rows if entry.fire_at_ms],
        [sent for _, entry in rows for sent in sent_with(entry)],
    )


def sent_with(entry: Entry) -> Sequence[tuple[str, SentNumbers]]:
    """The producer of an entry, if it numbers its messages, and the sequence numbers of the entry."""
    if entry.producer is None or entry.producer_sequence < 0:
        return ()
    return ((entry.producer, sent_by(entry.producer_first, entry.producer_sequence, entry.messages)),)


def _fired(entries: list[Entry]) -> FiredVersions:
    heads = decode_heads([bytes(entry.put) for entry in entries])
    keys = [entry.fired for entry in entries if entry.fired is not None]
    instants = [entry.published_at_ms for entry in entries]
    plain = not any(head.listed or head.origin is not None or head.group is not None for head in heads)
    return FiredVersions(
        np.array([key.seq for key in keys], np.int64),
        lambda: zip(heads, keys, instants, strict=True),
        Counter(Holder(head.namespace, head.owner) for head in heads) if plain else None,
    )
