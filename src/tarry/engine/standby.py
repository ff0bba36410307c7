"""Messages that are due soon stand by: read and decoded ahead, so that this is not left to do at their due instant.

When ten thousand are due at one instant, reading them takes as long as firing them does. So what is due within the next
second is looked for now and then, and read a few at a time while nothing is due. It is speed alone: what does not stand
by, because it was scheduled too late or is too much, is read when it is due, with the same result.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.engine.bodies import Bodies
from tarry.engine.horizon import Horizon
from tarry.engine.sizes import Sizes
from tarry.ledger.read_record import ReadEntry, ReadPut, read_due

AHEAD_MS: Final = 1_000
LOOK_EVERY_MS: Final = 500
"""What was scheduled at least a second ahead is found in time by a look."""

SLICE: Final = 256
"""Read between two turns: about half a millisecond."""

MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 32 * 1024 * 1024
"""Of bodies; what they hold in memory is about three times that."""

Read = tuple[ReadPut | ReadEntry | Damage | None, bytes]
"""A version or a delayed entry with its body; `Damage` or None for one that cannot be read, or is not there."""


class Standby:
    """Reads what is due, for the most part before it is."""

    def __init__(self, bodies: Bodies, horizon: Horizon, sizes: Sizes) -> None:
        self._bodies = bodies
        self._horizon = horizon
        self._sizes = sizes
        self._ready: dict[int, Read] = {}
        self._bytes = 0
        self._wanted = np.empty(0, np.int64)
        """Seqs that were found and are not read yet."""
        self._next_look_ms = 0

    def __len__(self) -> int:
        return len(self._ready)

    def take(self, seqs: NDArray[np.int64]) -> list[Read]:
        """What is due now, in this order: they stand by no more."""
        if not self._ready:
            return self._read(seqs)
        pop = self._ready.pop
        found = [pop(seq, None) for seq in seqs.tolist()]
        self._bytes -= sum([len(read[1]) for read in found if read is not None])
        missing = [at for at, read in enumerate(found) if read is None]
        if missing:
            for at, read in zip(missing, self._read(seqs[missing]), strict=True):
                found[at] = read
        return found  # type: ignore[return-value]

    def forget(self, seq: int) -> None:
        """A version is dead."""
        read = self._ready.pop(seq, None)
        if read is not None:
            self._bytes -= len(read[1])

    def turn(self, now_ms: int) -> bool:
        """Read some of what is due soon. Answers whether there is more to read at once."""
        if now_ms >= self._next_look_ms or self._next_look_ms - now_ms > LOOK_EVERY_MS:
            self._next_look_ms = now_ms + LOOK_EVERY_MS
            self._look(now_ms)
        if len(self._wanted):
            count = min(SLICE, self._sizes.together(self._wanted[:SLICE]))
            some, self._wanted = self._wanted[:count], self._wanted[count:]
            # Some may have ended, or come due and be gone, since they were found.
            self._add(some[~self._horizon.dead.contains_many(some)])
        return len(self._wanted) > 0

    def _look(self, now_ms: int) -> None:
        next_ms = self._horizon.wheel.next_fire_at_ms()
        if next_ms is None or next_ms > now_ms + AHEAD_MS or self._is_full():
            return
        due = self._horizon.wheel.entries((now_ms, 0), MAX_ENTRIES - len(self._ready))
        seqs = due.seqs[due.fire_at_ms <= now_ms + AHEAD_MS]
        ready = np.fromiter(self._ready, np.int64, len(self._ready))
        seqs = seqs[~np.isin(seqs, ready)]
        self._wanted = seqs[~self._bodies.absent(seqs)]

    def _is_full(self) -> bool:
        if len(self._ready) < MAX_ENTRIES and self._bytes < MAX_BYTES:
            return False
        # Many that died together, as those of a batch or a topic do, ended without a word.
        for seq in [seq for seq in self._ready if seq in self._horizon.dead]:
            self.forget(seq)
        return len(self._ready) >= MAX_ENTRIES or self._bytes >= MAX_BYTES

    def _add(self, seqs: NDArray[np.int64]) -> None:
        for seq, read in zip(seqs.tolist(), self._read(seqs), strict=True):
            if self._bytes >= MAX_BYTES:
                self._wanted = self._wanted[:0]
                return
            # What cannot be read is looked at again when it is due.
            if isinstance(read[0], ReadPut | ReadEntry):
                self._ready[seq] = read
                self._bytes += len(read[1])

    def _read(self, seqs: NDArray[np.int64]) -> list[Read]:
        bodies = self._bodies.many(seqs)
        try:
            return list(zip(read_due(bodies), bodies, strict=True))  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError):
            return [_read_one(body) for body in bodies]


def _read_one(body: bytes | Damage | None) -> Read:
    if isinstance(body, bytes):
        return read_due([body])[0], body
    return body, b""
