"""The read-ahead: messages due soon are read and decoded before, so that this is not left to do at their due instant.

When ten thousand messages are due at one instant, reading them takes as long as firing them does. So messages due soon are
looked for now and then, and read a few at a time while nothing is due. It is speed alone: a message that was not read ahead,
because it was scheduled too late or there are too many, is read when it is due, with the same result.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import repeat
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.telemetry import faults
from tarry.core.tricks import TRICKS
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.due.due_batch import DueBatch, Prepare, dispatch_classes
from tarry.engine.due.horizon import Horizon
from tarry.ledger.read_record import ReadEntry, ReadPut, read_due

log = logging.getLogger(__name__)

AHEAD_MS: Final = 1_500
LOOK_EVERY_MS: Final = 500
"""A look finds messages scheduled at least half a second ahead, and there is a second to read a hundred thousand."""

SLICES: Final = 32
MAX_SLICE: Final = 256
"""Number of slices in which found messages are read, or more if they would be too large: one takes half a millisecond or two."""

PACE_MS: Final = 5
READ_WITHIN_MS: Final = 400
"""Between two slices there is time for due messages, but not so much that many are not read in time."""

MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 48 * 1024 * 1024
"""Maximum bytes of bodies read ahead; the objects that hold them take four or five times that."""

WHOLE: Final = 128
"""Slices as large as that are kept whole: with fewer, that costs more than it saves."""


class _Slice:
    """A batch that was read ahead, with its seqs in the order in which they are due, to find its rows by."""

    __slots__ = ("_bounds", "_place_of", "reads", "seqs")

    def __init__(self, seqs: NDArray[np.int64], reads: DueBatch) -> None:
        self.seqs = seqs
        self.reads = reads
        self._bounds = int(seqs.min()), int(seqs.max())
        self._place_of: dict[int, int] | None = None

    def __contains__(self, seq: int) -> bool:
        low, high = self._bounds
        return low <= seq <= high and bool((self.seqs == seq).any())

    def has_any(self, seqs: NDArray[np.int64]) -> bool:
        """Whether any of these is in it."""
        low, high = self._bounds
        near = seqs[(seqs >= low) & (seqs <= high)]
        return bool(len(near)) and bool(np.isin(near, self.seqs).any())

    @property
    def first_seq(self) -> int:
        """The seq of the first."""
        return int(self.seqs[0])

    def some(self, seqs: Iterable[int]) -> DueBatch:
        """A batch of the messages with these seqs."""
        if self._place_of is None:
            self._place_of = {seq: at for at, seq in enumerate(self.seqs.tolist())}
        return self.reads.at([self._place_of[seq] for seq in seqs])


class Readahead:
    """Reads and decodes bodies up to 1.5 s before their fire instant; a miss is read at the instant."""

    def __init__(
        self,
        bodies: Bodies,
        horizon: Horizon,
        sizes: BodySizes,
        aside: AbstractSet[int],
        prepares: Callable[[str], Collection[Prepare]],
    ) -> None:
        """`aside` has the seqs of records that are not read at all; `prepares` gives the doors that prepare a topic's entries."""
        self._bodies = bodies
        self._horizon = horizon
        self._sizes = sizes
        self._whole: dict[int, _Slice] = {}
        """By their first seqs: large slices of which nothing was taken yet. They are taken as a whole, if they can be."""
        self._ready: dict[int, _Slice] = {}
        """By seq: the slice in which a version was read, once part of that was taken."""
        self._bytes = 0
        self._wanted = np.empty(0, np.int64)
        """Seqs that were found and are not read yet."""
        self._refused: set[int] = set()
        """Seqs among which one could not be read ahead: they are read when they are due."""
        self._slice = 0
        """How many of them are read at once."""
        self._next_look_ms = 0
        self._next_read_ms = 0
        self._aside = aside
        self._prepares = prepares

    def __len__(self) -> int:
        return len(self._ready) + sum([len(one.seqs) for one in self._whole.values()])

    def take(self, seqs: NDArray[np.int64]) -> list[DueBatch]:
        """Take the messages that are due now, in this order. Messages that were read together are due together, if they are many."""
        parts: list[DueBatch] = []
        at = 0
        while at < len(seqs):
            one = self._whole.pop(int(seqs[at]), None)
            if one is None:
                stop = self._next_whole(seqs, at + 1)
                parts += self._take_each(seqs[at:stop])
            elif np.array_equal(one.seqs, seqs[at : at + len(one.seqs)]):
                stop = at + len(one.seqs)
                self._bytes -= one.reads.size_bytes
                parts.append(one.reads)
            else:
                self._divide([one])
                continue
            at = stop
        return parts

    def _next_whole(self, seqs: NDArray[np.int64], at: int) -> int:
        if self._whole:
            for seq in seqs[at:].tolist():
                if seq in self._whole:
                    return at
                at += 1
        return len(seqs)

    def _take_each(self, seqs: NDArray[np.int64]) -> Iterator[DueBatch]:
        # Where owners take turns, the first of a slice may not be the first that is taken.
        self._divide([one for one in self._whole.values() if one.has_any(seqs)])
        if not self._ready:
            yield self._read(seqs)
            return
        due = seqs.tolist()
        slices: list[_Slice | None] = list(map(self._ready.pop, due, repeat(None)))
        at = 0
        while at < len(due):
            one, stop = slices[at], at + 1
            while stop < len(due) and slices[stop] is one:
                stop += 1
            reads = self._read(seqs[at:stop]) if one is None else one.some(due[at:stop])
            if one is not None:
                self._bytes -= reads.size_bytes
            yield reads
            at = stop

    def _divide(self, slices: Iterable[_Slice]) -> None:
        """From now on these are taken one by one."""
        for one in slices:
            self._whole.pop(one.first_seq, None)
            self._ready.update(dict.fromkeys(one.seqs.tolist(), one))

    def forget(self, seq: int) -> None:
        """A version is dead."""
        self._divide([one for one in self._whole.values() if seq in one])
        slice_ = self._ready.pop(seq, None)
        if slice_ is not None:
            self._bytes -= slice_.some([seq]).size_bytes

    def turn(self, now_ms: int) -> int | None:
        """Read some messages due soon. Gives the instant at which to read more, if there are more."""
        if not TRICKS.read_ahead:
            return None
        if now_ms >= self._next_look_ms or self._next_look_ms - now_ms > LOOK_EVERY_MS:
            self._next_look_ms = now_ms + LOOK_EVERY_MS
            self._look(now_ms)
        if len(self._wanted) and (now_ms >= self._next_read_ms or self._next_read_ms - now_ms > PACE_MS):
            count = min(self._slice, self._sizes.together(self._wanted[: self._slice]))
            self._next_read_ms = now_ms + min(PACE_MS, READ_WITHIN_MS * count // len(self._wanted))
            some, self._wanted = self._wanted[:count], self._wanted[count:]
            # Some may have ended, or come due and be gone, since they were found.
            some = some[~self._horizon.dead.contains_many(some)]
            try:
                self._add(some)
            except Exception as error:  # noqa: BLE001 - it is speed alone: when they are due, the one it is about ends
                log.error("messages are not read ahead because of %s", faults.told(error))
                self._refused.update(some.tolist())
        return self._next_read_ms if len(self._wanted) else None

    def _look(self, now_ms: int) -> None:
        next_ms = self._horizon.wheel.next_fire_at_ms()
        if next_ms is None or next_ms > now_ms + AHEAD_MS or self._is_full():
            return
        due = self._horizon.wheel.entries((now_ms, 0), MAX_ENTRIES)
        seqs = due.seqs[due.fire_at_ms <= now_ms + AHEAD_MS]
        ready = [np.fromiter(self._ready, np.int64, len(self._ready))]
        ready += (one.seqs for one in self._whole.values())
        if self._refused or self._aside:
            self._refused &= set(seqs.tolist())
            ready.append(np.array([*self._refused, *self._aside], np.int64))
        seqs = seqs[~np.isin(seqs, np.concatenate(ready))]
        self._wanted = seqs[~self._bodies.absent(seqs)][: MAX_ENTRIES - len(self)]
        self._slice = min(MAX_SLICE, -(-len(self._wanted) // SLICES))

    def _is_full(self) -> bool:
        if len(self) < MAX_ENTRIES and self._bytes < MAX_BYTES:
            return False
        # Many that died together, as those of a batch or a topic do, ended without a word.
        dead = self._horizon.dead
        self._divide([one for one in self._whole.values() if dead.contains_many(one.seqs).any()])
        for seq in [seq for seq in self._ready if seq in dead]:
            self.forget(seq)
        return len(self) >= MAX_ENTRIES or self._bytes >= MAX_BYTES

    def _add(self, seqs: NDArray[np.int64]) -> None:
        reads = self._read(seqs)
        # What cannot be read is looked at again when it is due.
        kept = [at for at, one in enumerate(reads.read) if isinstance(one, ReadPut | ReadEntry)]
        if len(kept) < len(reads):
            seqs, reads = seqs[kept], reads.at(kept)
        if not len(reads):
            return
        self._prepare(reads)
        one = _Slice(seqs, reads)
        if len(reads) >= WHOLE:
            self._whole[one.first_seq] = one
        else:
            self._divide([one])
        self._bytes += reads.size_bytes
        if self._bytes >= MAX_BYTES:
            self._wanted = self._wanted[:0]

    def _prepare(self, reads: DueBatch) -> None:
        """Have doors prepare the entries of a slice, if all of its messages go to one topic."""
        if not TRICKS.prepared:
            return
        topics = {"" if alike is None else alike.destination for alike in reads.kinds}
        if len(topics) != 1:
            return
        for prepare in self._prepares(topics.pop()):
            reads.prepared_bytes += prepare(reads)

    def _read(self, seqs: NDArray[np.int64]) -> DueBatch:
        bodies = self._bodies.many(seqs)
        reads = DueBatch()
        try:
            reads.read += read_due(bodies)  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError):
            reads.read += [read_due([body])[0] if isinstance(body, bytes) else body for body in bodies]
        reads.bodies += [body if isinstance(body, bytes) else b"" for body in bodies]
        if set(map(type, reads.read)) == {ReadPut}:
            reads.alike += dispatch_classes(reads.read)  # type: ignore[arg-type]
        else:
            reads.alike += [
                dispatch_classes([one])[0] if isinstance(one, ReadPut) else None for one in reads.read
            ]
        reads.kinds.update(reads.alike)
        reads.size_bytes = sum(map(len, reads.bodies))
        return reads
