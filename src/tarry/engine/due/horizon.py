"""The horizon: waiting versions by due time, in the wheel below it and in the un-indexed tail at or above it (R8).

Versions that are in the index only, at or above the horizon, cost nothing here. The horizon advances ahead of
the clock and brings in what comes next: from the pinned view of the index, read in a worker, and from the tail. Dispatch
never passes it.

A version is in exactly one of these: the wheel (its key is below the horizon), the tail (its seq is above the view's
cursor), the view. So a view is exchanged for a newer one only in one turn with the part of the tail that the newer one
has, and never while a load from the older one is under way.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import TarryError
from tarry.core.sets.deadset import DeadSet
from tarry.core.timers.run import Due
from tarry.core.timers.timer_queue import TimerQueue
from tarry.index.index import NOTHING, Index, IndexMoved, IndexView, LoadedRows, NoView, StagedBatch
from tarry.ledger.record import NO_KEY, Key
from tarry.ledger.watermark import Watermark

log = logging.getLogger(__name__)

T = TypeVar("T")

Offload = Callable[[Callable[[], Any], Callable[[Exception | None], None]], None]
"""Run the first on another thread, then the second on the engine's, with the error if there was one."""

STEP: Final = 200_000
"""Entries brought in at once: a few milliseconds of work, however many are due in one instant."""

FOLLOW_EVERY_MS: Final = 2_000
"""How often it is looked for a newer version of the index."""

TROUBLE_EVERY_MS: Final = 1_000
"""How often an index that cannot be read is tried again."""


VERSIONS: Final = "versions"
KEYS: Final = "keys"
"""The name of the reads of keys: whether there is a newer version of the index, and which messages are due next."""


class Horizon:
    """The wheel, the tail, the view, and the key between them."""

    def __init__(
        self,
        index: Index,
        offload: Offload,
        dead: DeadSet,
        lead_ms: int,
        wheel_entries: int = 4_000_000,
        check: Callable[[IndexView], None] = lambda _: None,
        unindexed: Callable[[int], Sequence[StagedBatch]] = lambda _: (),
    ) -> None:
        """`check` raises `Unavailable` for a view that must not be taken.

        `unindexed` gives the batches that have taken effect and that a view with this cursor does not hold.
        """
        self.wheel = TimerQueue()
        self.tail = TimerQueue()
        self.at = NO_KEY
        self._passed = Watermark()
        """The watermark at the beginning. The index may hold versions below one of its ceilings, and no word of their end."""
        self.index = index
        self.view: IndexView = NoView()
        """The view that is read: the newest version, and with it the staged files of batches that it does not hold."""
        self.on_earlier: Callable[[int], None] | None = None
        """Called when something was added that is due before everything else. The driver, which sets its alarm then, comes after
        the engine that it drives."""
        self.blocked = False
        """Messages are in the index alone, and no version of it could be read yet: nobody can say which are due next."""
        self._check = check
        self._unindexed = unindexed
        self._newest: IndexView = self.view
        self._offload = offload
        self.dead = dead
        self._lead_ms = lead_ms
        self._wheel_entries = wheel_entries
        self._behind = False
        """Whether the last step stopped short of the lead."""
        self._under_way: set[str] = set()
        """Names of the reads that are under way."""
        self._moved = False
        """A file of the view is gone: a newer one is looked for before anything else is read."""
        self._troubles: dict[str, str] = {}
        """Reasons of the reads that failed the last time, by their names."""
        self._again_at_ms = 0
        """After trouble: when the index is tried again."""
        self._followed_ms = -FOLLOW_EVERY_MS
        self.joining: list[StagedBatch] = []
        """Batches whose messages below the horizon are to be brought into the wheel."""
        self._joined = NO_KEY
        """The key up to which that was done with the first of them."""

    # Adding

    def add(self, fire_at_ms: int, seq: int, lane: int) -> None:
        """Add a durable version (R2): into the wheel if its key is below the horizon, else the tail."""
        if (fire_at_ms, seq) < self.at:
            self.wheel.add(fire_at_ms, seq, lane)
            self._tell_earlier(fire_at_ms)
        else:
            self.tail.add(fire_at_ms, seq, lane)

    def add_many(
        self, fire_at_ms: NDArray[np.int64], seqs: NDArray[np.int64], lanes: NDArray[np.uint16]
    ) -> None:
        """Add many durable versions."""
        near = (fire_at_ms < self.at.fire_at_ms) | ((fire_at_ms == self.at.fire_at_ms) & (seqs < self.at.seq))
        if near.any():
            self.wheel.add_many(fire_at_ms[near], seqs[near], lanes[near])
            self._tell_earlier(int(fire_at_ms[near].min()))
        far = ~near
        if far.any():
            self.tail.add_many(fire_at_ms[far], seqs[far], lanes[far])

    def add_batch(self, batch: StagedBatch) -> None:
        """A batch was adopted, durably: its files are part of the tail, and its versions due soon enter the wheel (R10)."""
        self.joining.append(batch)
        # Its first messages may be due before the last ones are in the wheel: their bodies are read from the view.
        if batch.adopt_seq > self.view.cursor:
            self.view = self.view.with_batches([batch])
        self.wake()

    def postpone(self, until_ms: int, seq: int, lane: int) -> None:
        """Try an entry of the wheel again later; its key and record stay as they are."""
        self.wheel.add(until_ms, seq, lane)
        self._tell_earlier(until_ms)

    # Advancing

    def begin(self, passed: Watermark, now_ms: int) -> None:
        """Begin at the watermark; the newest version of the index was looked for just now."""
        self.at = passed.key
        self._passed = passed
        self._followed_ms = now_ms

    def advance(self, now_ms: int) -> None:
        """Take the next step, if one is due: join a batch, follow the index, or bring in the versions that are due next."""
        if VERSIONS not in self._under_way and abs(now_ms - self._followed_ms) >= FOLLOW_EVERY_MS:
            self._follow(now_ms)
        if self._may_load(now_ms):
            if self.joining:
                self._join(now_ms)
            else:
                self._bring_in_more(now_ms)

    def _may_load(self, now_ms: int) -> bool:
        waits = 0 < self._again_at_ms - now_ms <= TROUBLE_EVERY_MS
        return not (self._loading or waits or self.blocked or self._moved)

    @property
    def _loading(self) -> bool:
        """Whether something is being read from the view: one thing at a time, and the view stays meanwhile."""
        return bool(self._under_way - {VERSIONS})

    def _bring_in_more(self, now_ms: int) -> None:
        # Half a lead at a time, so that the step is taken now and then, and not at each tick.
        ahead_ms = self.at.fire_at_ms - now_ms
        if ahead_ms > self._lead_ms // 2 and not self._behind:
            return
        # Full of what is not due yet: the rest follows as it goes out.
        if ahead_ms > 0 and len(self.wheel) >= self._wheel_entries:
            return
        low, goal = self.at, Key(now_ms + self._lead_ms, 0)
        if goal <= low:
            return
        if not self.view.may_hold(low, goal):
            self._bring_in(LoadedRows(NOTHING, goal), goal)
            return
        view = self.view
        self._read(
            KEYS, lambda: view.load(low, goal, STEP), lambda loaded: self._bring_in(loaded, goal), now_ms
        )

    def _bring_in(self, loaded: LoadedRows, goal: Key) -> None:
        """In one turn: add the loaded versions without the dead, and the tail's part, and set the new horizon (R8)."""
        upto = loaded.upto
        cut = self.tail.nth_key(STEP)
        if cut is not None:
            upto = min(upto, Key(*cut))
        self._behind = upto < goal
        fire, seqs, _ = loaded.due
        self._into_wheel(loaded.due.at(~self._passed.passed(fire, seqs)), upto)
        near = self.tail.take_below(*upto)
        if len(near.seqs):
            self.wheel.add_many(*near)
        self.at = max(self.at, upto)
        if self._behind or len(loaded.due.seqs):
            self.wake()

    def _into_wheel(self, due: Due, upto: Key) -> None:
        fire, seqs, _ = due
        if len(seqs):
            alive = (fire < upto.fire_at_ms) | ((fire == upto.fire_at_ms) & (seqs < upto.seq))
            alive &= ~self.dead.contains_many(seqs)
            self.wheel.add_many(*due.at(alive))

    def _join(self, now_ms: int) -> None:
        """Bring the versions of a new batch that are due soon into the wheel, in pieces. Nothing else moves the horizon meanwhile."""
        batch, low, at = self.joining[0], self._joined, self.at
        files = self.index.staged([batch])

        def joined(loaded: LoadedRows) -> None:
            self._into_wheel(loaded.due, loaded.upto)
            self._joined = loaded.upto
            if loaded.upto >= at:
                self.joining.pop(0)
                self._joined = NO_KEY
            self.wake()

        self._read("a batch", lambda: files.load(low, at, STEP), joined, now_ms)

    # The index

    def _follow(self, now_ms: int) -> None:
        self._followed_ms = now_ms
        self._read(VERSIONS, self.index.newest, self._take, now_ms)

    def look(self, then: Callable[[IndexView | None], None]) -> None:
        """See what the newest version is at this moment; None if nobody can say."""
        if VERSIONS in self._under_way:
            then(None)
            return
        self._under_way.add(VERSIONS)
        newest: list[IndexView] = []

        def done(error: Exception | None) -> None:
            self._under_way.discard(VERSIONS)
            then(None if error is not None else newest[0])

        self._offload(lambda: newest.append(self.index.newest()), done)

    def follow_soon(self) -> None:
        """A file is gone: a newer version is there."""
        self._followed_ms = -FOLLOW_EVERY_MS
        self.wake()

    def _take(self, newest: IndexView) -> None:
        moved, self._moved = self._moved, False
        if newest is self._newest:
            if moved:
                gone = "a file of the index is gone, and no newer version has replaced it"
                self.report(KEYS, gone, self._followed_ms)
        elif not self._loading:
            # While something is read from the older view it stays; the newer one is found again.
            self._check(newest)
            self.take(newest)

    def take(self, newest: IndexView) -> None:
        """Read from a newer view from now on, and let go of the part of the tail that it has (R8)."""
        self._newest = newest
        self.blocked = False
        self.tail.drop_seqs_upto(newest.cursor)
        self.view = newest.with_batches(self._unindexed(newest.cursor))

    @property
    def trouble(self) -> str | None:
        """Why the horizon cannot advance, while it cannot: what the index holds is late, and nothing passes it."""
        late = [text for what, text in self._troubles.items() if what != VERSIONS or self.blocked]
        return late[0] if late else None

    @property
    def followed(self) -> bool:
        """Whether the newest version of the index is known, as far as anybody can tell."""
        return VERSIONS not in self._troubles

    def report(self, what: str, trouble: str, now_ms: int) -> None:
        """Something cannot be read; it is tried again."""
        if self._troubles.get(what) != trouble:
            log.error("the index cannot be read: %s", trouble)
        self._troubles[what] = trouble
        if what != VERSIONS:
            # Versions are looked for again in their own time.
            self._again_at_ms = now_ms + TROUBLE_EVERY_MS

    def _read(self, what: str, work: Callable[[], T], then: Callable[[T], None], now_ms: int) -> None:
        """Read from the index on another thread, and go on here."""
        self._under_way.add(what)
        read: list[T] = []

        def done(error: Exception | None) -> None:
            self._under_way.discard(what)
            try:
                if error is not None:
                    raise error
                then(read[0])
                self._troubles.pop(what, None)
            except IndexMoved:
                self._moved = True
                self.follow_soon()
            except (TarryError, OSError) as trouble:
                self.report(what, str(trouble), now_ms)

        self._offload(lambda: read.append(work()), done)

    def read(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Read from the view on another thread; the caller tells about trouble itself."""
        self._offload(work, done)

    def wake(self) -> None:
        """Have the next turn come at once."""
        self._tell_earlier(0)

    def _tell_earlier(self, fire_at_ms: int) -> None:
        if self.on_earlier is not None:
            self.on_earlier(fire_at_ms)

    # Taking and looking

    def pop_due(self, now_ms: int, limit: int) -> Due:
        """Take due keys from the wheel, in their order. Keys that are not below the horizon are not in it."""
        return self.wheel.pop_due(now_ms, limit)

    def next_fire_at_ms(self) -> int | None:
        """When the next entry of the wheel is due."""
        return self.wheel.next_fire_at_ms()

    def entries(self, low: Key, limit: int) -> Due:
        """Entries of the wheel and the tail from a key on, in order, without taking them: for listing."""
        return merged([part.entries(low, limit) for part in (self.wheel, self.tail)], limit)

    def sweep(self) -> Iterator[int]:
        """Give back the memory of dead entries, in steps of a few milliseconds; yields how many each dropped."""

        def alive(seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
            return ~self.dead.contains_many(seqs)

        # The tail first: entries move from it into the wheel, and never back.
        yield from self.tail.filter_stepwise(alive)
        yield from self.wheel.filter_stepwise(alive)

    def lowest_joining_ms(self) -> int | None:
        """The instant before which no message fires of batches that are being brought into the wheel."""
        return min([batch.floor_ms for batch in self.joining], default=None)

    def __len__(self) -> int:
        return len(self.wheel) + len(self.tail)


def merged(parts: Sequence[Due], limit: int) -> Due:
    """The first entries of all the parts, in the order of keys."""
    fires, seqs, lanes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((seqs, fires))[:limit]
    return Due(fires[order], seqs[order], lanes[order])
