"""Upkeep: what the engine does now and then, beside delivering.

Marks the watermark (R9), brings the registry up to date (R13), forgets what is past its retention, sweeps out
dead entries, and has segments of the ledger reclaimed (R12).
Slow work goes to another thread through `Offload`; in a simulation that is a plain call.
"""

import logging
from collections.abc import Iterator

from tarry.core.clockwatch import ClockWatch
from tarry.core.errors import TarryError, Unavailable
from tarry.engine.answer import Answer, settled
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Offload
from tarry.engine.journal.journal import Journal
from tarry.engine.settings import EngineSettings
from tarry.engine.topics.retention import EVERY_MS
from tarry.engine.upkeep.reclaim import Reclaim
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


class Upkeep:
    """The engine's chores, each with its own interval."""

    def __init__(
        self,
        journal: Journal,
        dispatcher: Dispatcher,
        settings: EngineSettings,
        offload: Offload,
        folder: str | None,
    ) -> None:
        self._journal = journal
        self._dispatcher = dispatcher
        self._settings = settings
        self._offload = offload
        self.reclaim = Reclaim(
            journal, dispatcher, settings, offload, folder, self.flush, self._note_reclaimed
        )
        self.clock = ClockWatch(journal.clock, settings.clock_slack_ms)
        """Whether time that has passed confirms what the clock shows."""
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
        self._stepped_at_ms = 0
        self._aged_seq = 0
        """Everything that was dead when the sweep began had ended by this seq."""
        self._dead_swept = 0
        """How many dead seqs there were after the last sweep."""
        self._reclaimed = 0
        """The seq up to which segments were reclaimed; `_forgotten` is that up to which dead seqs are forgotten."""
        self._forgotten = 0

    def tick(self, now_ms: int) -> int:
        """Do what is due; gives the instant at which to come again."""
        if _is_due(self._next_mark_ms, self._settings.mark_every_ms, now_ms):
            self._next_mark_ms = now_ms + self._settings.mark_every_ms
            self.mark(now_ms)
        if _is_due(self._next_flush_ms, self._settings.flush_every_ms, now_ms):
            self._next_flush_ms = now_ms + self._settings.flush_every_ms
            # Making the rows of a burst would compete with the burst itself; they can wait, but not for ever.
            busy = self._dispatcher.bursting(now_ms) and now_ms - self._flushed_at_ms < FLUSH_LATEST_MS
            if (
                self._flushing is None
                and self._journal.dirty
                and self._journal.ledger.failed is None
                and not busy
            ):
                self._flushed_at_ms = now_ms
                _ = self.flush()
        if _is_due(self._next_reclaim_ms, self._settings.reclaim_every_ms, now_ms):
            self._next_reclaim_ms = now_ms + self._settings.reclaim_every_ms
            self._prune(now_ms)
            self.reclaim.turn(now_ms)
        self._step_on(now_ms)
        if _is_due(self._next_backlog_ms, EVERY_MS, now_ms):
            self._next_backlog_ms = self._journal.retention.turn(now_ms)
            self._journal.recent_entries.age()
        again_ms = min(self._next_mark_ms, self._next_flush_ms, self._next_backlog_ms)
        under_way = self.reclaim.searching or self._sweep is not None
        return min(again_ms, now_ms + STEP_EVERY_MS) if under_way else again_ms

    # The watermark

    def mark(self, now_ms: int) -> None:
        """Write down the key below which everything is dead, if it has moved and anything happened since."""
        journal = self._journal
        self._look_at_clock(now_ms)
        lows = [
            self._dispatcher.lowest_open(now_ms),
            Key(self.clock.confirmed_ms(now_ms) - self._settings.clock_slack_ms, 0),
            journal.horizon.at,
            journal.lowest_entering(),
        ]
        low = min(low for low in lows if low is not None)
        if low.seq >= FIRST_BATCH_SEQ:
            # What is accepted later may fire at this instant too, and has a lower seq: it must not be below the watermark.
            low = Key(low.fire_at_ms, 0)
        if now_ms + self._settings.mark_every_ms < journal.watermark.fire_at_ms:
            self._lower(low, now_ms)
            return
        idle = journal.ledger.next_seq - 1 == self._marked_seq and now_ms - self._marked_at_ms < IDLE_MARK_MS
        if low <= journal.watermark or idle:
            return
        try:
            self._marked_seq = journal.append([Mark(low, now_ms)], lambda _: None, essential=True)
            self._marked_at_ms = now_ms
        except Unavailable:
            return

    def _lower(self, low: Key, now_ms: int) -> None:
        """Take the watermark back: the clock was ahead when it rose, and new messages would wait for that time to come again."""
        journal = self._journal
        if not journal.passed.may_be_lowered:
            return
        was_ms = journal.watermark.fire_at_ms
        record = Lower(max(low, NO_KEY), now_ms, journal.batches.next_seq)
        try:
            self._marked_seq = journal.append([record], lambda _: None, essential=True)
        except Unavailable:
            return
        self._marked_at_ms = now_ms
        journal.counters["watermark_lowered"] += 1
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
            self._flushing.then(lambda _: self.flush().pass_on(again))
            return again
        journal = self._journal
        if not journal.dirty:
            return settled(None)
        answer = self._flushing = Answer()
        cut = journal.cut()

        def write(error: TarryError | None) -> None:
            if error is not None:
                finish(error)
            else:
                self._offload(lambda: journal.registry.write(cut), finish)

        def finish(error: Exception | None) -> None:
            self._flushing = None
            if error is None:
                self._flush_failed = False
                journal.registry.done(cut)
                answer.settle(None)
            else:
                # The cut stays visible in memory, and the ledger has it all: a restart replays it.
                if not self._flush_failed:
                    log.error("the registry could not be brought up to date, and is tried again: %s", error)
                self._flush_failed = True
                journal.registry.undo(cut)
                answer.fail(error if isinstance(error, TarryError) else Unavailable(str(error)))

        journal.when_durable(cut.meta.applied_seq, write)
        return answer

    def _prune(self, now_ms: int) -> None:
        settings = self._settings
        self._journal.topics.forget_unread(now_ms - settings.unread_retention_ms)
        self._journal.batches.forget(self._journal.watermark, settings.finalised_retention_ms)
        self._journal.batches.indexed(self._journal.relied.seq)
        self._offload(
            lambda: self._journal.registry.prune(
                now_ms - settings.finalised_retention_ms,
                settings.finalised_retention_rows,
                now_ms - settings.idempotency_retention_ms,
                settings.finalised_retention_rows_per_owner,
            ),
            self._pruned,
        )

    def _pruned(self, error: Exception | None) -> None:
        self._journal.registry.renew()
        if error is not None:
            log.warning("the registry could not be pruned: %s", error)

    # Dead entries

    def _note_reclaimed(self, upto_seq: int) -> None:
        self._reclaimed = upto_seq

    def _step_on(self, now_ms: int) -> None:
        """Go on with what is done in steps."""
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
            dead = len(journal.dead) - self._dead_swept
            if self._reclaimed <= self._forgotten and dead <= max(SWEEP_DEAD, len(journal.horizon) // 2):
                return
            self._sweep, self._sweep_bound = journal.horizon.sweep(), self._reclaimed
            journal.dead.age()
            self._aged_seq = journal.ledger.next_seq - 1
        # An index that does not know yet of the ends of these would bring them back.
        indexed = not journal.horizon.view.identity or journal.horizon.view.cursor >= self._aged_seq
        if next(self._sweep, None) is None and not self._dispatcher.holds_any and indexed:
            self._sweep = None
            self._forgotten = self._sweep_bound
            journal.dead.forget_old(self._sweep_bound)
            journal.sizes.forget_upto(self._sweep_bound)
            self._dead_swept = len(journal.dead)


def _is_due(next_ms: int, every_ms: int, now_ms: int) -> bool:
    """Whether a chore is; a clock that was set back must not stop it until it has caught up."""
    return now_ms >= next_ms or next_ms - now_ms > 2 * every_ms
