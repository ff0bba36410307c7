"""Messages that are due soon stand by: read and decoded ahead, so that this is not left to do at their due instant.

When ten thousand are due at one instant, reading them takes as long as firing them does. So what is due within the next
second is looked for now and then, and read a few at a time while nothing is due. It is speed alone: what does not stand
by, because it was scheduled too late or is too much, is read when it is due, with the same result.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.engine.alike import Alike, all_alike
from tarry.engine.bodies import Bodies
from tarry.engine.horizon import Horizon
from tarry.engine.sizes import Sizes
from tarry.ledger.read_record import ReadEntry, ReadPut, read_due

AHEAD_MS: Final = 1_000
LOOK_EVERY_MS: Final = 500
"""What was scheduled at least a second ahead is found in time by a look."""

SLICES: Final = 32
MAX_SLICE: Final = 256
"""What is found is read in so many slices, or more if they would be too large: one takes half a millisecond or two."""

PACE_MS: Final = 5
READ_WITHIN_MS: Final = 400
"""Between two slices there is time for what is due; but all is read before the next look."""

MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 32 * 1024 * 1024
"""Of bodies; what they hold in memory is about three times that."""

Read = ReadPut | ReadEntry | Damage | None
"""A version or a delayed entry; `Damage` or None for one that cannot be read, or is not there."""

One = tuple[Read, bytes, Alike | None]
"""One that was read, its body, and for a version with which others it is alike."""


class Reads(NamedTuple):
    """What was read, as columns: see `One`."""

    read: Sequence[Read]
    bodies: Sequence[bytes]
    alike: Sequence[Alike | None]


class Standby:
    """Reads what is due, for the most part before it is."""

    def __init__(self, bodies: Bodies, horizon: Horizon, sizes: Sizes) -> None:
        self._bodies = bodies
        self._horizon = horizon
        self._sizes = sizes
        self._ready: dict[int, One] = {}
        self._bytes = 0
        self._wanted = np.empty(0, np.int64)
        """Seqs that were found and are not read yet."""
        self._slice = 0
        """How many of them are read at once."""
        self._next_look_ms = 0
        self._next_read_ms = 0

    def __len__(self) -> int:
        return len(self._ready)

    def take(self, seqs: NDArray[np.int64]) -> Reads:
        """What is due now, in this order: it stands by no more."""
        if not self._ready:
            return self._read(seqs)
        found: list[One | None] = list(map(self._ready.pop, seqs.tolist(), repeat(None)))
        if not all(found):
            missing = [at for at, one in enumerate(found) if one is None]
            late = self._read(seqs[missing])
            self._bytes += sum(map(len, late.bodies))
            for at, one in zip(missing, zip(*late, strict=True), strict=True):
                found[at] = one
        reads = Reads(*zip(*found, strict=True))
        self._bytes -= sum(map(len, reads.bodies))
        return reads

    def forget(self, seq: int) -> None:
        """A version is dead."""
        read = self._ready.pop(seq, None)
        if read is not None:
            self._bytes -= len(read[1])

    def turn(self, now_ms: int) -> int | None:
        """Read some of what is due soon. Answers when there is more to read, if there is."""
        if now_ms >= self._next_look_ms or self._next_look_ms - now_ms > LOOK_EVERY_MS:
            self._next_look_ms = now_ms + LOOK_EVERY_MS
            self._look(now_ms)
        if len(self._wanted) and (now_ms >= self._next_read_ms or self._next_read_ms - now_ms > PACE_MS):
            count = min(self._slice, self._sizes.together(self._wanted[: self._slice]))
            self._next_read_ms = now_ms + min(PACE_MS, READ_WITHIN_MS * count // len(self._wanted))
            some, self._wanted = self._wanted[:count], self._wanted[count:]
            # Some may have ended, or come due and be gone, since they were found.
            self._add(some[~self._horizon.dead.contains_many(some)])
        return self._next_read_ms if len(self._wanted) else None

    def _look(self, now_ms: int) -> None:
        next_ms = self._horizon.wheel.next_fire_at_ms()
        if next_ms is None or next_ms > now_ms + AHEAD_MS or self._is_full():
            return
        due = self._horizon.wheel.entries((now_ms, 0), MAX_ENTRIES - len(self._ready))
        seqs = due.seqs[due.fire_at_ms <= now_ms + AHEAD_MS]
        ready = np.fromiter(self._ready, np.int64, len(self._ready))
        seqs = seqs[~np.isin(seqs, ready)]
        self._wanted = seqs[~self._bodies.absent(seqs)]
        self._slice = min(MAX_SLICE, -(-len(self._wanted) // SLICES))

    def _is_full(self) -> bool:
        if len(self._ready) < MAX_ENTRIES and self._bytes < MAX_BYTES:
            return False
        # Many that died together, as those of a batch or a topic do, ended without a word.
        for seq in [seq for seq in self._ready if seq in self._horizon.dead]:
            self.forget(seq)
        return len(self._ready) >= MAX_ENTRIES or self._bytes >= MAX_BYTES

    def _add(self, seqs: NDArray[np.int64]) -> None:
        for seq, one in zip(seqs.tolist(), zip(*self._read(seqs), strict=True), strict=True):
            if self._bytes >= MAX_BYTES:
                self._wanted = self._wanted[:0]
                return
            # What cannot be read is looked at again when it is due.
            if isinstance(one[0], ReadPut | ReadEntry):
                self._ready[seq] = one
                self._bytes += len(one[1])

    def _read(self, seqs: NDArray[np.int64]) -> Reads:
        bodies = self._bodies.many(seqs)
        try:
            read: Sequence[Read] = read_due(bodies)  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError):
            read = [read_due([body])[0] if isinstance(body, bytes) else body for body in bodies]
        whole = [body if isinstance(body, bytes) else b"" for body in bodies]
        if set(map(type, read)) == {ReadPut}:
            return Reads(read, whole, all_alike(read))  # type: ignore[arg-type]
        alike = [all_alike([one])[0] if isinstance(one, ReadPut) else None for one in read]
        return Reads(read, whole, alike)
