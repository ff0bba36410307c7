"""Counts of coming messages: how many are due in each stretch of time, by door, however many wait.

Nothing is read but numbers. The wheel and the tail are arrays of instants, seqs and lanes; the index says of its files how
much is in them (`tarry.index.census`). On the engine's thread no more is done than to say which arrays these are and who
is dead; counting is done on the reading thread, in steps, so that what is due next is read in between.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import Invalid
from tarry.core.timers.run import Due
from tarry.engine.answer import Answer, failed
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.lanes import DOORS, doors_of

MAX_BUCKETS: Final = 1_000
STEP_ENTRIES: Final = 1 << 20
PIECE_ENTRIES: Final = 1 << 14
"""Entries that are counted in one step, and in one call: NumPy keeps the interpreter for the time of some of its calls."""
STEP_FILES: Final = 32
"""Files of the index that are looked at in one step."""

TimeWindow = tuple[int, int, int]


class Upcoming(Struct, frozen=True, kw_only=True):
    """How many messages are due between instants, by door."""

    from_ms: int
    to_ms: int
    edges_ms: list[int]
    """Where the buckets begin, and where the last one ends."""
    doors: dict[str, list[int]]
    """By door, a count for each bucket; doors of which nothing is due are left out."""
    total: int
    last_at_ms: int
    """The last instant at which anything at all is due; 0 if nothing is."""
    estimated: int
    """How many of them are in the index alone, where they are counted by file and row group."""


class Counting:
    """Counts messages to come; equal questions share one count while it is under way."""

    def __init__(self, state: EngineState, horizon: Horizon, reading: Offload) -> None:
        self._state = state
        self._horizon = horizon
        self._reading = reading
        self._under_way: dict[TimeWindow, Answer[Upcoming]] = {}

    def count(self, from_ms: int, to_ms: int, buckets: int) -> Answer[Upcoming]:
        """How many messages are due from one instant until before another, in so many buckets."""
        if not 1 <= buckets <= MAX_BUCKETS:
            return failed(Invalid("buckets", f"is not between 1 and {MAX_BUCKETS}"))
        if not 0 <= from_ms <= to_ms - buckets:
            return failed(Invalid("to_ms", "is not after from_ms by a millisecond for each bucket"))
        window = from_ms, to_ms, buckets
        found = self._under_way.get(window)
        if found is None:
            found = self._under_way[window] = Answer()
            found.then(lambda _: self._forget(window))
            _Count(self._state, self._horizon, self._reading, window, found).step()
        return found

    def due_soon(self, door: str, until_ms: int) -> int:
        """How many messages of a door in the wheel are due before an instant, for who gets ready for them."""
        number, count = DOORS.index(door), 0
        first_ms = self._horizon.wheel.next_fire_at_ms()
        if first_ms is None or first_ms >= until_ms:
            return 0
        for part in _pieces(self._horizon.wheel.parts(0, until_ms)):
            of_door = part.at(doors_of(part.lanes) == number)
            count += len(of_door.seqs) - int(self._state.dead.contains_many(of_door.seqs).sum())
        return count

    def _forget(self, window: TimeWindow) -> None:
        del self._under_way[window]


class _Count:
    """One count under way: what waited at one moment, looked at in steps."""

    def __init__(
        self,
        state: EngineState,
        horizon: Horizon,
        reading: Offload,
        window: TimeWindow,
        answer: Answer[Upcoming],
    ) -> None:
        from_ms, to_ms, buckets = window
        self._dead = state.dead.frozen()
        self._reading = reading
        self._answer = answer
        self._edges = from_ms + (to_ms - from_ms) * np.arange(buckets + 1, dtype=np.int64) // buckets
        self._counts = np.zeros((buckets, len(DOORS)))
        self._estimated = 0.0
        self._last_at_ms = max(
            horizon.wheel.last_fire_at_ms(), horizon.tail.last_fire_at_ms(), horizon.view.last_fire_at_ms()
        )
        self._parts = _pieces([*horizon.wheel.parts(from_ms, to_ms), *horizon.tail.parts(from_ms, to_ms)])
        cancelled = [
            (batch.first_seq, batch.last_seq)
            for batch in state.batches.by_name.values()
            if batch.cancelled_at_ms is not None
        ]
        self._files = horizon.view.tallies(horizon.at.fire_at_ms, self._edges, cancelled)

    def step(self) -> None:
        """Count some more; then again, or the answer."""
        done = False

        def work() -> None:
            nonlocal done
            done = not self._count_entries() and not self._count_files()

        def then(error: Exception | None) -> None:
            if error is not None:
                # Also an error that nobody expected is only that of who asked.
                self._answer.fail(error)
            elif done:
                self._answer.settle(self._result())
            else:
                self.step()

        self._reading(work, then)

    def _count_entries(self) -> bool:
        """Count some of the wheel and the tail; whether there were any left."""
        looked_at = 0
        for part in self._parts:
            _add(self._counts, part.at(~self._dead.contains_many(part.seqs)), self._edges)
            looked_at += len(part.seqs)
            if looked_at >= STEP_ENTRIES:
                break
        return looked_at > 0

    def _count_files(self) -> bool:
        """Count some files of the index; whether there may be more."""
        found = list(islice(self._files, STEP_FILES))
        for counts in found:
            self._counts += counts
            self._estimated += float(counts.sum())
        return len(found) == STEP_FILES

    def _result(self) -> Upcoming:
        counts = np.rint(self._counts).astype(np.int64)
        by_door = {
            door: counts[:, number].tolist() for number, door in enumerate(DOORS) if counts[:, number].any()
        }
        edges = self._edges.tolist()
        return Upcoming(
            from_ms=edges[0], to_ms=edges[-1], edges_ms=edges, doors=by_door, total=int(counts.sum()),
            last_at_ms=self._last_at_ms, estimated=round(self._estimated),
        )  # fmt: skip


def _pieces(parts: list[Due]) -> Iterator[Due]:
    """The range in parts that are each counted in one call."""
    for part in parts:
        for start in range(0, len(part.seqs), PIECE_ENTRIES):
            yield part.at(slice(start, start + PIECE_ENTRIES))


def _add(counts: NDArray[np.float64], part: Due, edges: NDArray[np.int64]) -> None:
    """Count the entries of a part, which are in order and between the first and the last edge."""
    doors = doors_of(part.lanes)
    cuts = part.fire_at_ms.searchsorted(edges)
    buckets = np.repeat(np.arange(len(counts)), np.diff(cuts))
    if len(buckets):
        flat = np.bincount(buckets * len(DOORS) + doors, minlength=counts.size)
        counts += flat.reshape(counts.shape)
