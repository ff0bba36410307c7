"""All repeats, as the records say: each with its request and its progress.

Both are entries of the catalogue's records, under one name: what was asked for is written once, and how far it has come in
the same unit as the occurrences themselves, so that a crash neither loses nor doubles one.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from tarry.core.messages.repeat import Repeat, RepeatProgress
from tarry.core.tenants.holder import Holder
from tarry.ledger.record import Catalogued, Record

ASKED: Final = "repeat"
PROGRESS: Final = "repeat-progress"
SORTS: Final = (ASKED, PROGRESS)
"""The sorts of catalogue records that are about repeats."""

_encode = msgspec.json.encode
_asked = msgspec.json.Decoder(Repeat)
_progress = msgspec.json.Decoder(RepeatProgress)


class RepeatName(NamedTuple):
    """The name of a repeat in its namespace."""

    namespace: str
    """`tenant/namespace`."""
    name: str

    @property
    def full(self) -> str:
        """The name in records."""
        return f"{self[0]}/{self[1]}"

    @classmethod
    def parse(cls, full: str) -> "RepeatName":
        """Read the name in a record."""
        tenant, namespace, name = full.split("/", 2)
        return cls(f"{tenant}/{namespace}", name)


class HeldRepeat(Struct):
    """A repeat with its progress."""

    name: RepeatName
    repeat: Repeat
    progress: RepeatProgress

    @property
    def holder(self) -> Holder:
        """The holder under whom the repeat's messages are counted."""
        return Holder(self.name.namespace, self.repeat.owner)


class RepeatState:
    """All repeats by name."""

    sorts = SORTS

    def __init__(self) -> None:
        self.by_name: dict[RepeatName, HeldRepeat] = {}
        self._sorted: list[RepeatName] = []
        self.by_holder: Counter[Holder] = Counter()
        self.size_bytes = 0
        self.by_namespace: Counter[str] = Counter()
        self.bytes_by_namespace: Counter[str] = Counter()
        self.changed: dict[RepeatName, None] = {}
        """Repeats that records were about since somebody looked last."""

    def take(self, sort: str, name: str, value: bytes | None) -> None:
        """Take the request or the progress of a repeat; None ends the repeat."""
        self._take(sort, RepeatName.parse(name), value)

    def _take(self, sort: str, name: RepeatName, value: bytes | None) -> None:
        held = self.by_name.get(name)
        if sort == ASKED:
            if held is not None:
                self._count(held, -1)
                del self.by_name[name]
                del self._sorted[bisect_left(self._sorted, name)]
            if value is not None:
                insort(self._sorted, name)
                self.by_name[name] = HeldRepeat(name, _asked.decode(value), RepeatProgress(next_at_ms=None))
                self._count(self.by_name[name], 1)
        elif held is not None and value is not None:
            held.progress = _progress.decode(value)
        self.changed[name] = None

    def _count(self, held: HeldRepeat, by: int) -> None:
        namespace, size_bytes = held.name.namespace, held.repeat.size_bytes
        self.size_bytes += by * size_bytes
        self.by_namespace[namespace] += by
        self.bytes_by_namespace[namespace] += by * size_bytes
        if not self.by_namespace[namespace]:
            del self.by_namespace[namespace], self.bytes_by_namespace[namespace]
        self.by_holder[held.holder] += by
        if not self.by_holder[held.holder]:
            del self.by_holder[held.holder]

    def names(self, namespace: str | None, after: RepeatName | None, limit: int) -> list[RepeatName]:
        """The next names in order, of a namespace or of all."""
        low = RepeatName(namespace or "", "") if after is None else after
        at = bisect_right(self._sorted, low)
        found = self._sorted[at : at + limit]
        return [name for name in found if namespace in (None, name.namespace)]

    def ends_of(self, name: RepeatName) -> list[Record]:
        """The records that remove a repeat."""
        return [Catalogued(sort, name.full, None) for sort in SORTS]

    def ends_in(self, namespace: str) -> Iterator[Record]:
        """The records that remove all repeats of a namespace."""
        for name in self.names(namespace, None, len(self._sorted)):
            yield from self.ends_of(name)


def asked(name: RepeatName, repeat: Repeat) -> Catalogued:
    """The record of a repeat as it was asked for. The record of its progress follows in the same unit."""
    return Catalogued(ASKED, name.full, _encode(repeat))


def come_to(name: RepeatName, progress: RepeatProgress) -> Catalogued:
    """The record of how far a repeat has come."""
    return Catalogued(PROGRESS, name.full, _encode(progress))
