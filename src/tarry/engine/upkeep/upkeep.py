"""Upkeep: what the engine does now and then, beside delivering.

Marks the watermark (R9), brings the registry up to date (R13), forgets what is past its retention, sweeps out
dead entries, and has segments of the ledger reclaimed (R12).
Slow work goes to another thread through `Offload`; in a simulation that is a plain call.
"""

import logging
from collections.abc import Iterator
from typing import Final

from tarry.core.errors import TarryError, Unavailable
from tarry.core.time.clock import SteadyClock
from tarry.core.time.clockwatch import ClockWatch
from tarry.engine.answer import Answer, settled
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.journal.tenure import Tenure
from tarry.engine.settings import EngineSettings
from tarry.engine.state.batches import Batch
from tarry.engine.state.engine_state import EngineState
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.topics.retention import EVERY_MS, Retention
from tarry.engine.topics.topics import Topics
from tarry.engine.upkeep.reclaim import Reclaim, SnapshotMade
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import FIRST_BATCH_SEQ, NO_KEY, Key, Lower, Mark

log = logging.getLogger(__name__)

SWEEP_DEAD = 100_000
"""So many more dead seqs, or half of what waits, are worth a sweep of the wheel and the tail."""

STEP_EVERY_MS = 10
"""A step of a sweep, or of a search for what lives, takes some milliseconds: doors and deliveries have their turn in between."""

FLUSH_LATEST_MS = 5_000
"""While more is due than can be taken, the registry is brought up to date only so often."""

IDLE_MARK_MS = 60_000
"""How often an idle server marks: nothing but the clock moves the watermark then."""


HEARTBEATS: Final = 3
"""So many marks come in the time for which a proof of ownership lasts: some may be slow."""


class Upkeep:
    """The engine's chores, each with its own interval."""

    def __init__(
        self,
        *,
        journal: Journal,
        state: EngineState,
        ledger: Ledger,
        horizon: Horizon,
        bodies: Bodies,
        sizes: BodySizes,
        recent_entries: RecentEntries,
        topics: Topics,
        retention: Retention,
        clock: SteadyClock,
        isolation: Isolation,
        dispatcher: Dispatcher,
        settings: EngineSettings,
        offload: Offload,
        folder: str | None,
        on_snapshot: SnapshotMade | None,
        tenure: Tenure | None,
    ) -> None:
        """With a tenure marks are heartbeats: each is a proof of ownership, and they come often enough for it (R15)."""
        self._journal = journal
        self._state = state
        self._ledger = ledger
        self._horizon = horizon
        self._sizes = sizes
        self._recent_entries = recent_entries
        self._topics = topics
        self._retention = retention
        self._dispatcher = dispatcher
        self._settings = settings
        self._offload = offload
        self.reclaim = Reclaim(
            journal=journal,
            state=state,
            ledger=ledger,
            horizon=horizon,
            bodies=bodies,
            clock=clock,
            isolation=isolation,
            dispatcher=dispatcher,
            settings=settings,
            offload=offload,
            folder=folder,
            flush=self.flush,
            reclaimed=self._note_reclaimed,
            on_snapshot=on_snapshot,
        )
        self.clock = ClockWatch(clock, settings.clock_slack_ms)
        """Whether time that has passed confirms what the clock shows."""
        self._mark_every_ms = settings.mark_every_ms
        if tenure is not None:
            self._mark_every_ms = min(self._mark_every_ms, tenure.lasts_ms // HEARTBEATS)
        self._heartbeat = tenure is not None
        """Whether a mark is appended also when it says nothing new."""
        self._marked_seq = 0
        self._marked_at_ms = 0
        self._next_mark_ms = 0
        self._next_flush_ms = 0
        self._next_reclaim_ms = 0
        self._next_backlog_ms = 0
        self._flushed_at_ms = 0
        self._flushing: Answer[None] | None = None
        self._flush_failed = False
        """Whether the last flush failed; that is said once, not at every try."""
        self._sweep: Iterator[int] | None = None
        self._sweep_bound = 0
        self._sweep_past: list[Batch] = []
        """Batches that were past when the sweep began."""
        self._stepped_at_ms = 0
        self._aged_seq = 0
        """Everything that was dead when the sweep began had ended by this seq."""
        self._dead_swept = 0
        """How many dead seqs there were after the last sweep."""
        self._reclaimed = 0
        """The seq up to which segments were reclaimed; `_forgotten` is that up to which dead seqs are forgotten."""
        self._forgotten = 0

    def tick(self, now_ms: int) -> int:
        """Do the upkeep that is due; gives the instant at which to come again."""
        if _is_due(self._next_mark_ms, self._mark_every_ms, now_ms):
            self._next_mark_ms = now_ms + self._mark_every_ms
            self.mark(now_ms)
        if _is_due(self._next_flush_ms, self._settings.flush_every_ms, now_ms):
            self._next_flush_ms = now_ms + self._settings.flush_every_ms
            # Making the rows of a burst would compete with the burst itself; they can wait, but not for ever.
            busy = self._dispatcher.bursting(now_ms) and now_ms - self._flushed_at_ms < FLUSH_LATEST_MS
            if self._flushing is None and self._state.dirty and not self._journal.failed and not busy:
                self._flushed_at_ms = now_ms
                _ = self.flush()
        if _is_due(self._next_reclaim_ms, self._settings.reclaim_every_ms, now_ms):
            self._next_reclaim_ms = now_ms + self._settings.reclaim_every_ms
            self._prune(now_ms)
            self.reclaim.turn(now_ms)
        self._step_on(now_ms)
        if _is_due(self._next_backlog_ms, EVERY_MS, now_ms):
            self._next_backlog_ms = self._retention.turn(now_ms)
            self._recent_entries.age()
        again_ms = min(self._next_mark_ms, self._next_flush_ms, self._next_backlog_ms)
        under_way = self.reclaim.searching or self._sweep is not None
        return min(again_ms, now_ms + STEP_EVERY_MS) if under_way else again_ms

    def follow(self, now_ms: int) -> None:
        """Keep the registry up to date with a ledger that another server appends to. Nothing is appended here."""
        if _is_due(self._next_flush_ms, self._settings.flush_every_ms, now_ms):
            self._next_flush_ms = now_ms + self._settings.flush_every_ms
            level = self._journal.effective_seq == self._journal.durable_seq
            if level and self._flushing is None and self._state.dirty:
                _ = self.flush()
        if _is_due(self._next_reclaim_ms, self._settings.reclaim_every_ms, now_ms):
            self._next_reclaim_ms = now_ms + self._settings.reclaim_every_ms
            self._prune(now_ms)
            if (meta := self._state.registry.meta) is not None:
                self._ledger.reclaim_trimmed(meta.applied_seq)
        self._retention.let_go(now_ms)

    # The watermark

    def mark(self, now_ms: int) -> None:
        """Write the watermark down, if it has moved and any record was written since."""
        journal = self._journal
        self._look_at_clock(now_ms)
        lows = [
            self._dispatcher.lowest_open(now_ms),
            Key(self.clock.confirmed_ms(now_ms) - self._settings.clock_slack_ms, 0),
        ]
        low = min(lows)
        if low.seq >= FIRST_BATCH_SEQ:
            # What is accepted later may fire at this instant too, and has a lower seq: it must not be below the watermark.
            low = Key(low.fire_at_ms, 0)
        if now_ms + self._settings.mark_every_ms < self._state.watermark.fire_at_ms:
            self._lower(low, now_ms)
            return
        idle = journal.next_seq - 1 == self._marked_seq and now_ms - self._marked_at_ms < IDLE_MARK_MS
        if self._heartbeat:
            # A heartbeat: an owner that appends nothing would not learn that another has claimed the ledger.
            low = max(low, self._state.watermark)
        elif low <= self._state.watermark or idle:
            return
        try:
            self._marked_seq = journal.append([Mark(low, now_ms)], lambda _: None, essential=True)
            self._marked_at_ms = now_ms
        except Unavailable:
            return

    def _lower(self, low: Key, now_ms: int) -> None:
        """Take the watermark back: the clock was ahead when it rose, and new messages would wait for that time to come again."""
        journal = self._journal
        if not self._state.passed.may_be_lowered:
            return
        was_ms = self._state.watermark.fire_at_ms
        record = Lower(max(low, NO_KEY), now_ms, self._state.batches.next_seq)
        try:
            self._marked_seq = journal.append([record], lambda _: None, essential=True)
        except Unavailable:
            return
        self._marked_at_ms = now_ms
        self._state.counters["watermark_lowered"] += 1
        log.warning(
            "the clock is %.1f s behind the watermark: it was ahead before. The watermark is taken back; messages"
            " that were accepted since the clock was set back may be late by as much, later ones are not",
            (was_ms - now_ms) / 1000,
        )

    def _look_at_clock(self, now_ms: int) -> None:
        match self.clock.look(now_ms):
            case "ahead":
                log.warning(
                    "the clock is %.1f s ahead of the time that has passed: it was set forward, or is wrong. Due messages go out"
                    " by it; if it is set back, nothing else is late",
                    self.clock.ahead_ms / 1000,
                )
            case "back":
                log.warning("the clock was set back; messages go out when it shows their due instants")
            case "trusted":
                log.warning("the clock has stayed ahead since it was set forward, and is taken to be right")

    # The registry

    def flush(self) -> Answer[None]:
        """Bring the registry up to the records enqueued so far; the answer comes when it is (R13)."""
        if self._flushing is not None:
            # What is enqueued now is not in the cut under way: another one follows it.
            again: Answer[None] = Answer()
            self._flushing.then(lambda _: self.flush().forward_to(again))
            return again
        journal = self._journal
        if not self._state.dirty:
            return settled(None)
        answer = self._flushing = Answer()
        cut = self._state.cut(journal.next_seq - 1)

        def write(error: TarryError | None) -> None:
            if error is not None:
                finish(error)
            else:
                self._offload(lambda: self._state.registry.write(cut), finish)

        def finish(error: Exception | None) -> None:
            self._flushing = None
            if error is None:
                self._flush_failed = False
                self._state.registry.done(cut)
                answer.settle(None)
            else:
                # The cut stays visible in memory, and the ledger has it all: a restart replays it.
                if not self._flush_failed:
                    log.error("the registry could not be brought up to date, and is tried again: %s", error)
                self._flush_failed = True
                self._state.registry.undo(cut)
                answer.fail(error if isinstance(error, TarryError) else Unavailable(str(error)))

        journal.when_durable(cut.meta.applied_seq, write)
        return answer

    def _prune(self, now_ms: int) -> None:
        settings = self._settings
        self._topics.forget_unread(now_ms - settings.unread_retention_ms)
        self._state.batches.forget(self._state.watermark, settings.finalised_retention_ms)
        self._state.batches.indexed(self._state.reliance.relied.seq)
        self._offload(
            lambda: self._state.registry.prune(
                now_ms - settings.finalised_retention_ms,
                settings.finalised_retention_rows,
                now_ms - settings.idempotency_retention_ms,
                settings.finalised_retention_rows_per_owner,
            ),
            self._pruned,
        )

    def _pruned(self, error: Exception | None) -> None:
        self._state.registry.renew()
        if error is not None:
            log.warning("the registry could not be pruned: %s", error)

    # Dead entries

    def _note_reclaimed(self, upto_seq: int) -> None:
        self._reclaimed = upto_seq

    def _step_on(self, now_ms: int) -> None:
        """Go on with upkeep that is done in steps."""
        if abs(now_ms - self._stepped_at_ms) >= STEP_EVERY_MS:
            self._stepped_at_ms = now_ms
            self.reclaim.step()
            self._sweep_on()

    def _sweep_on(self) -> None:
        """Take dead entries out of the wheel and the tail, a step at a time; then forget the dead that are reclaimed.

        The order matters: an entry whose seq is no longer known to be dead would fire. So they are forgotten only when
        the index knows of their ends as well.
        """
        journal = self._journal
        if self._sweep is None:
            dead = len(self._state.dead) - self._dead_swept
            few = dead <= max(SWEEP_DEAD, len(self._horizon) // 2)
            past = self._state.batches.past(self._state.watermark)
            if self._reclaimed <= self._forgotten and few and not past:
                return
            self._sweep, self._sweep_bound, self._sweep_past = self._horizon.sweep(), self._reclaimed, past
            self._state.dead.age()
            self._aged_seq = journal.next_seq - 1
        # An index that does not know yet of the ends of these would bring them back.
        indexed = not self._horizon.view.identity or self._horizon.view.cursor >= self._aged_seq
        if next(self._sweep, None) is None and not self._dispatcher.holds_any and indexed:
            self._sweep = None
            self._forgotten = self._sweep_bound
            self._state.dead.forget_old(self._sweep_bound)
            self._state.batches.let_go(self._sweep_past)
            self._sizes.forget_upto(self._sweep_bound)
            self._dead_swept = len(self._state.dead)


def _is_due(next_ms: int, every_ms: int, now_ms: int) -> bool:
    """Whether a chore is; a clock that was set back must not stop it until it has caught up."""
    return now_ms >= next_ms or next_ms - now_ms > 2 * every_ms
