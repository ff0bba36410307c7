"""Recovery: arriving at the state of the ledger's head.

The registry gives what it has reached, the ledger the rest. Of what waits, the index has everything up to its cursor, so that
only the ledger above it is read, keys alone, into the tail. What the index cannot be trusted with is refused here.

    begin     what the registry and the index have
    follow    some more of the ledger; a server that stands by does this all the time, and so has little left to do when
              the ledger becomes its own
    run       whatever of this was not done, and what can only be said at the head: what waits, and what may have been sent
"""

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Unavailable
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.due.horizon import VERSIONS, Horizon
from tarry.engine.isolation import FAULTS
from tarry.engine.journal.journal import Journal
from tarry.engine.records.changes import changes_of
from tarry.engine.state.aside import explained
from tarry.engine.state.engine_state import EngineState
from tarry.index.index import IndexView
from tarry.ledger.ledger import Ledger
from tarry.ledger.read_record import read_entry
from tarry.ledger.record import Key, Kind, decode, decode_many
from tarry.ledger.replay import Frame
from tarry.registry.registry import Relied

READ_TOGETHER: Final = 1_000
FOLLOW_RECORDS: Final = 10_000
"""Records of one step of following: some tens of milliseconds of work."""
DROP_DEAD_KEYS: Final = 1_000_000

WaitingKeys = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint16], NDArray[np.bool_]]
"""Fire instants, seqs and lanes of what waits, and which of them are delayed entries."""


class AheadOfLedger(Unavailable):
    """The index has read more than there is: two backups were mixed."""


class Recovery:
    """Brings a new state to the head of its ledger."""

    def __init__(
        self,
        state: EngineState,
        ledger: Ledger,
        horizon: Horizon,
        bodies: Bodies,
        sizes: BodySizes,
        journal: Journal,
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._horizon = horizon
        self._bodies = bodies
        self._sizes = sizes
        self._journal = journal
        self._begun = False
        self._applied: int | None = None
        """The seq up to which the registry had everything, once that was loaded."""
        self._cursor = 0
        """The seq up to which the index has everything that waits."""
        self._next_seq = 0
        """The seq that is read next."""
        self._waiting: list[WaitingKeys] = []
        self._waiting_keys = 0
        self._drop_dead_above = DROP_DEAD_KEYS

    def run(self, set_aside: Collection[int], now_ms: int) -> None:
        """Arrive at the state of the ledger, without the records at some seqs."""
        state, horizon = self._state, self._horizon
        view = self._newest(now_ms) if self._begun else self._begin(set_aside, now_ms)
        for frame in self._ledger.frames(self._next_seq):
            self._take(frame)
        self._ready_overdue(self._wait())
        state.topics.replayed()
        self._journal.effective_seq = self._ledger.durable_seq
        state.recovered(self._ledger.durable_seq, now_ms)
        horizon.begin(state.passed, now_ms)
        if view is not None:
            horizon.take(view)
        horizon.advance(now_ms)

    def follow(self, set_aside: Collection[int], now_ms: int) -> bool:
        """Take some more of the ledger; whether there is more."""
        if not self._begun:
            try:
                self._begin(set_aside, now_ms)
            except AheadOfLedger:
                # The index of all servers has what the owner's ledger has; this copy of it is a moment behind.
                return False
        records = 0
        for frame in self._ledger.frames(self._next_seq):
            self._take(frame)
            records += frame.count
            if records >= FOLLOW_RECORDS:
                break
        self._journal.effective_seq = self._next_seq - 1
        return self._next_seq <= self._ledger.durable_seq

    def _begin(self, set_aside: Collection[int], now_ms: int) -> IndexView | None:
        if self._applied is None:
            self._applied = self._load()
        self._state.aside.seqs.update(set_aside)
        view = self._newest(now_ms)
        self._cursor = 0 if view is None else view.cursor
        if view is not None and self._cursor and self._ledger.replicated:
            # What waits up to there is not read in the ledger: if the index is gone at the takeover, that must be known. And
            # segments of the copy go when the owner's do, which relies on the index too (R12).
            relied = self._state.reliance.relied
            self._state.reliance.relied = Relied(max(relied.seq, self._cursor), view.identity)
        self._next_seq = self._state.replayed_from = max(
            self._ledger.first_seq, min(self._applied, self._cursor) + 1
        )
        self._begun = True
        return view

    def _newest(self, now_ms: int) -> IndexView | None:
        """The index's newest version; None while it cannot be read, which the horizon tries again."""
        durable_seq, reliance = self._ledger.durable_seq, self._state.reliance
        try:
            view = self._horizon.index.newest()
            reliance.check(view)
            if view.cursor > durable_seq:
                # Once the ledger has grown that far, nobody could tell.
                raise AheadOfLedger(
                    f"the index has reached seq {view.cursor}, but the ledger ends at {durable_seq}:"
                    " the ledger is older than the index"
                )
        except AheadOfLedger:
            raise
        except Unavailable as trouble:
            self._horizon.report(VERSIONS, str(trouble), now_ms)
            self._horizon.blocked = reliance.relied.seq > 0
            return None
        return view

    def _load(self) -> int:
        """Take over what the registry has; gives the seq that it has reached."""
        ledger, meta = self._ledger, self._state.registry.meta
        if meta is not None and meta.ledger_id != ledger.ledger_id:
            raise Unavailable(
                "the registry and the ledger are not of the same installation: were two backups mixed?"
            )
        if meta is not None and meta.applied_seq > ledger.durable_seq:
            raise Unavailable(
                f"the registry has reached seq {meta.applied_seq}, but the ledger ends at"
                f" {ledger.durable_seq}: the ledger is older than the registry"
            )
        applied = 0 if meta is None else meta.applied_seq
        if applied + 1 < ledger.first_seq:
            raise Unavailable(
                f"the registry has reached seq {applied}, but the ledger begins at {ledger.first_seq}:"
                " restore the registry from its snapshot"
            )
        self._state.load()
        return applied

    def _take(self, frame: Frame) -> None:
        """Take the keys of versions above the cursor, and whole records above the registry's seq."""
        state, fixed, applied = self._state, frame.fixed, self._applied
        assert applied is not None, "the registry was loaded"
        seqs = np.arange(frame.first_seq, frame.first_seq + frame.count, dtype=np.int64)
        self._sizes.add_many(frame.first_seq, fixed["size"].astype(np.int64))
        kills = fixed["kills_seq"]
        state.dead.add_many(kills[kills > 0])
        fire = fixed["fire_at_ms"]
        delayed = (fixed["kind"] == Kind.ENTRY) & (fire > 0)
        chosen = ((fixed["kind"] == Kind.PUT) | delayed) & (seqs > self._cursor)
        if chosen.any():
            due = fire[chosen].astype(np.int64), seqs[chosen], fixed["lane"][chosen].astype(np.uint16)
            self._waiting.append((*due, delayed[chosen]))
            self._waiting_keys += len(due[1])
            if self._waiting_keys > self._drop_dead_above:
                self._drop_dead()
        if frame.first_seq + frame.count > applied + 1:
            self._decide(frame, max(0, applied + 1 - frame.first_seq))
        self._next_seq = frame.first_seq + frame.count

    def _drop_dead(self) -> None:
        """Forget the keys of ended messages: a standby reads, over time, many times as many messages as wait at once."""
        fires, seqs, lanes, delayed = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        alive = self._alive(seqs, delayed, self._state.topics.waiting_seqs())
        self._waiting = [(fires[alive], seqs[alive], lanes[alive], delayed[alive])]
        self._waiting_keys = int(alive.sum())
        self._drop_dead_above = max(DROP_DEAD_KEYS, 2 * self._waiting_keys)

    def _alive(
        self, seqs: NDArray[np.int64], delayed: NDArray[np.bool_], entries_waiting: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether each of these still waits: a delayed entry does if its topic says so."""
        return ~self._state.dead.contains_many(seqs) & (~delayed | np.isin(seqs, entries_waiting))

    def _wait(self) -> NDArray[np.int64]:
        """Put pending messages into the tail.

        Gives the seqs of delayed entries that may be below the watermark: of those up to the cursor, and of those whose
        records are reclaimed because nobody needs them, no key was read.
        """
        state = self._state
        entries_waiting = state.topics.waiting_seqs()
        unread = max(self._cursor, self._ledger.first_seq - 1)
        overdue = [entries_waiting[entries_waiting <= unread]]
        for fires, seqs, lanes, delayed in self._waiting:
            # Delayed entries that do not wait were ready before.
            alive = self._alive(seqs, delayed, entries_waiting)
            ready = alive & delayed & state.passed.passed(fires, seqs)
            overdue.append(seqs[ready])
            alive &= ~ready
            if alive.any():
                self._horizon.tail.add_many(fires[alive], seqs[alive], lanes[alive])
        self._waiting = []
        return np.concatenate(overdue)

    def _decide(self, frame: Frame, start: int) -> None:
        """Decide the records of a frame from a place on, but for those that are set aside."""
        bodies: list[bytes | None] = list(map(frame.body, range(start, frame.count)))
        first_seq, aside = frame.first_seq + start, self._state.aside
        for seq in aside.seqs:
            if first_seq <= seq < first_seq + len(bodies):
                aside.skipped.add(seq)
                bodies[seq - first_seq] = None
        try:
            self._state.decide(first_seq, changes_of(decode_many(bodies)))
        except FAULTS:
            raise
        except Exception:
            for seq, body in enumerate(bodies, first_seq):
                if body is not None:
                    self._decide_one(seq, body)
            raise

    def _decide_one(self, seq: int, body: bytes) -> None:
        try:
            self._state.decide(seq, changes_of([decode(body)]))
        except Exception as error:
            raise explained(seq, error) from error

    def _ready_overdue(self, waiting: NDArray[np.int64]) -> None:
        """Delayed entries below the watermark were ready before, whatever the clock says now: no record says so, and the registry may not have heard of it."""
        state = self._state
        waiting = np.sort(waiting)
        for start in range(0, len(waiting), READ_TOGETHER):
            seqs = waiting[start : start + READ_TOGETHER]
            for seq, body in zip(seqs.tolist(), self._bodies.many(seqs), strict=True):
                if not isinstance(body, bytes) or seq in state.aside.seqs:
                    state.topics.ready_unread(seq)
                elif state.passed.has_passed(Key((entry := read_entry(body)).fire_at_ms, seq)):
                    state.topics.ready([seq], [entry])
