"""The dispatcher: takes due messages from the wheel and delivers them in (fire instant, seq) order, fairly between owners.

When more is due than one batch holds, owners take turns by their lanes (`due/overdue_lanes`); due messages whose bodies are
at hand are decided about batch by batch (`decisions`). Nothing is sent before its instant: the clock is read here, at dispatch.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.messages.delivery import Outlet
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import State
from tarry.core.tenants.rates import Rates
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.dispatch.awaited_bodies import AwaitedBodies
from tarry.engine.dispatch.decisions import Decisions
from tarry.engine.dispatch.firing import Firing
from tarry.engine.dispatch.sent_report import SentReport
from tarry.engine.due.horizon import Horizon
from tarry.engine.due.overdue_lanes import Keys, OverdueLanes
from tarry.engine.due.postponed import Postponed
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.flights.failures import Failures
from tarry.engine.flights.flight import Flight
from tarry.engine.flights.flights import Flights, Launch
from tarry.engine.flights.fresh_mark import FreshMark
from tarry.engine.flights.holding import Holding
from tarry.engine.flights.stranded import Stranded
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.namespace_shares import NamespaceShares
from tarry.engine.settings import EngineSettings
from tarry.engine.state.aside import REASON
from tarry.engine.state.engine_state import EngineState
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.tracing import Tracing
from tarry.ledger.record import Key

POP: Final = 1 << 20
"""Entries taken from the wheel at once, more than a batch, so that owners can take turns."""

PAUSED_BATCH: Final = 500
"""Due messages taken in one turn while any place is paused."""

APART_MS: Final = 2
"""Turns that send lie so far apart, if there is not more to send at once: each costs about as much as ten messages do,
so that under a steady load two instants in one turn are sooner there than each in its own."""

BURST_MS: Final = 250
"""For so long after a batch of due messages consumers are taking them."""


class Dispatcher:
    """Takes due messages from the wheel, and keeps the keys of those on their way."""

    def __init__(
        self,
        *,
        journal: Journal,
        state: EngineState,
        horizon: Horizon,
        bodies: Bodies,
        sizes: BodySizes,
        readahead: Readahead,
        recent_entries: RecentEntries,
        postponed: Postponed,
        clock: Clock,
        ids: Ids,
        isolation: Isolation,
        outlets: Mapping[str, Outlet],
        settings: EngineSettings,
        launch: Launch,
        seed: int,
        tracing: Tracing | None,
        fresh: FreshMark | None,
        shares: NamespaceShares,
    ) -> None:
        self.sent = SentReport(tracing)
        self.end_writer = EndWriter(journal, state, clock, isolation)
        self.failures = Failures(state, ids, bodies, settings, self.end_writer, self.killed)
        self.stranded = Stranded(journal, state, horizon, bodies, clock, outlets, self.end_writer)
        self.rates = Rates()
        """Allowances on sending."""
        self.holding = Holding(journal, state, horizon, bodies, clock, self.end_writer, self.rates)
        self.flights = Flights(
            journal=journal,
            state=state,
            bodies=bodies,
            clock=clock,
            ids=ids,
            isolation=isolation,
            outlets=outlets,
            settings=settings,
            launch=launch,
            end_writer=self.end_writer,
            stranded=self.stranded,
            holding=self.holding,
            failures=self.failures,
            later=self._later,
            sent=self.sent.tell_heads,
            seed=seed,
            tracing=tracing,
            fresh=fresh,
            shares=shares,
        )
        self.awaited = AwaitedBodies(bodies, horizon, postponed)
        self.lanes = OverdueLanes()
        self._firing = Firing(
            journal, state, recent_entries, ids, self.end_writer, self.sent, self._later, self._all_fired
        )
        self._decisions = Decisions(
            state=state,
            readahead=readahead,
            postponed=postponed,
            rates=self.rates,
            isolation=isolation,
            settings=settings,
            end_writer=self.end_writer,
            failures=self.failures,
            flights=self.flights,
            firing=self._firing,
            sent=self.sent,
            later=self._later,
        )
        self.stuck = False
        """Whether due messages have to wait, because the ledger has no space or has failed."""
        self.gathering = False
        """Whether due messages wait: for a burst to be durable, since the ledger writes one frame at a time, so that they
        would not be durable sooner, and all that is due by then goes in one turn; or for stranded messages to return."""
        self._journal = journal
        self._state = state
        self._horizon = horizon
        self._bodies = bodies
        self._sizes = sizes
        self._readahead = readahead
        self.postponed = postponed
        self._clock = clock
        self._settings = settings
        self._dispatched_ms = 0
        self._turned_ms = 0
        self._sent_at_ms = 0
        """When there was a turn that sent something."""
        self._burst_at_ms = 0
        """When a whole batch was due at once."""

    # Taking due messages

    def turn(self, now_ms: int) -> bool:
        """One turn: a batch at most. Answers whether there is more to do at once."""
        # Nothing goes out unless its end has space in the ledger (R2).
        failed = self._journal.failed
        if failed:
            self.end_writer.settle_all()
        self.stuck = failed or not self.end_writer.try_again()
        if self.stuck:
            return False
        if now_ms < self._turned_ms:
            self._put_back()
        self._turned_ms = now_ms
        self.stranded.returning.turn(now_ms)
        self.holding.returning.turn(now_ms)
        self.gathering = (bool(self._firing) and not self.lanes) or self._returning(now_ms)
        if self.awaited.has_fetched:
            self._dispatch_fetched(now_ms)
            return True
        if self.gathering or self.awaited.keep_others_waiting(now_ms):
            self.flights.start(now_ms)
            return False
        due = self._horizon.pop_due(now_ms, POP)
        # A message that is held gets a new version, which costs more than sending it into a topic.
        batch = self._settings.batch if not self._state.pauses else min(self._settings.batch, PAUSED_BATCH)
        if not self.lanes and len(due.seqs) <= batch:
            fires, seqs = due.fire_at_ms, due.seqs
        else:
            self.lanes.add(due)
            fires, seqs = self.lanes.take_turns(batch)
        if len(seqs):
            self._dispatch(fires, seqs, now_ms)
            self._sent_at_ms = now_ms
        if len(seqs) >= self._settings.batch:
            self._burst_at_ms = now_ms
        self.flights.start(now_ms)
        if not self.lanes:
            self._dispatched_ms = max(self._dispatched_ms, now_ms + 1)
        return bool(self.lanes)

    def _returning(self, now_ms: int) -> bool:
        """Whether everything else waits for messages that were set aside and come back."""
        return self.stranded.returning.holds(now_ms) or self.holding.returning.holds(now_ms)

    def _put_back(self) -> None:
        """The clock was set back: messages that wait in the lanes may not be due any more."""
        for lane, keys in self.lanes.clear():
            self._return(*self._without_dead(*keys), lane)

    def _return(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], lane: int) -> None:
        """Give entries back to the wheel: living ones alone, for a sweep may have passed their place."""
        self._horizon.wheel.add_many(fires, seqs, np.full(len(seqs), lane, np.uint16))

    def _dispatch(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        fires, seqs = self._without_dead(fires, seqs)
        if self._state.aside.seqs:
            aside = np.isin(seqs, list(self._state.aside.seqs))
            for fire_at_ms, seq in zip(fires[aside].tolist(), seqs[aside].tolist(), strict=True):
                self.end_aside(self.postponed.key_of(fire_at_ms, seq), decided=False)
            fires, seqs = fires[~aside], seqs[~aside]
        absent = self._bodies.absent(seqs)
        if absent.any():
            # Messages that are due after them may have to follow them.
            first = int(absent.argmax())
            self.awaited.fetch(fires[first:], seqs[first:], now_ms)
            fires, seqs = fires[:first], seqs[:first]
        together = self._sizes.together(seqs)
        for start in range(0, len(seqs), together):
            some = slice(start, start + together)
            self._decisions.dispatch(fires[some], seqs[some], now_ms)

    def _without_dead(self, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> Keys:
        """The keys of living versions among these; commands that wait for a dead one hear of its end."""
        dead = self._state.dead.contains_many(seqs)
        if not dead.any():
            return fires, seqs
        for seq in seqs[dead].tolist():
            # Another one of its group may have ended it while it waited to be tried.
            self.killed(seq)
            self._readahead.forget(seq)
        self.end_writer.settled(seqs[dead].tolist())
        return fires[~dead], seqs[~dead]

    def _dispatch_fetched(self, now_ms: int) -> None:
        """Dispatch messages that had their turn and waited for their bodies, before all others."""
        fires, seqs = self._without_dead(*self.awaited.take())
        # The clock may have been set back meanwhile.
        due = fires <= now_ms
        self._return(fires[~due], seqs[~due], 0)
        if due.any():
            self._dispatch(fires[due], seqs[due], now_ms)
        self.flights.start(now_ms)

    def _all_fired(self) -> None:
        if self.gathering:
            self._horizon.wake()

    def end_aside(self, key: Key, *, decided: bool) -> None:
        """End a waiting message whose record is set aside; by its key alone, if it was not decided or is not at hand."""
        end = self.failures.end_failed if decided else self.failures.end_unread
        end(key, REASON, self._clock.now_ms())

    # Later

    def put_off(self) -> Iterator[Key]:
        """The keys of messages in the wheel that wait for their turn, in the order in which they were put off."""
        for key in self.postponed.in_order():
            if self.is_put_off(key.seq):
                yield key

    def is_put_off(self, seq: int) -> bool:
        """Whether a message in the wheel waits for its turn, and not between two attempts."""
        return seq in self.postponed and seq not in self.flights.by_seq

    def _later(self, key: Key, lane: int, at_ms: int) -> None:
        # First, because it is what may refuse an instant.
        self._horizon.postpone(at_ms, key.seq, lane)
        self._decisions.saw_to(key.seq)
        self.postponed.add(key)

    def ended(self, seq: int) -> None:
        """A record has ended a version: messages behind it go on, and commands that wait for its verdict hear of the end.

        Not only at its instant, for by then a sweep may have taken it out of the wheel.
        """
        self.killed(seq)
        self.end_writer.settled([seq])

    def killed(self, seq: int) -> None:
        """A version was ended or replaced: it makes room for messages that wait behind it."""
        self.postponed.pop(seq)
        flight = self.flights.by_seq.get(seq)
        if flight is not None and flight.state is State.SCHEDULED:
            self.flights.leave(flight)

    def killed_between(self, first_seq: int, last_seq: int) -> None:
        """All versions in a range were ended, except those that are being sent."""
        for seq in [seq for seq in (*self.flights.by_seq, *self.postponed) if first_seq <= seq <= last_seq]:
            self.killed(seq)
        self.end_writer.settle_dead(first_seq, last_seq)

    def being_sent_between(self, first_seq: int, last_seq: int) -> list[Flight]:
        """Messages in a range that are handed out and have no verdict yet."""
        return [
            flight
            for seq, flight in self.flights.by_seq.items()
            if first_seq <= seq <= last_seq and flight.state is State.SENDING and seq not in self._state.dead
        ]

    def is_untried_between(self, first_seq: int, last_seq: int, upto_ms: int) -> bool:
        """Whether a version in a range of seqs, due up to an instant, has not been tried since the start, or may be such."""
        in_wheel_ms = self._horizon.wheel.next_fire_at_ms()
        if in_wheel_ms is not None and in_wheel_ms <= upto_ms:
            return True
        flights = self.flights.by_seq
        keys = chain(
            (one.key for one in flights.values() if not one.tried),
            (key for key in self.postponed.in_order() if key.seq not in flights),
            self.awaited.keys(),
        )
        if any(first_seq <= key.seq <= last_seq and key.fire_at_ms <= upto_ms for key in keys):
            return True
        return any(
            bool(((first_seq <= seqs) & (seqs <= last_seq) & (fires <= upto_ms)).any())
            for fires, seqs in self.lanes.parts()
        )

    def next_turn_ms(self, due_at_ms: int, now_ms: int) -> int:
        """The instant at which to take the messages that are due next."""
        return max(due_at_ms, min(self._sent_at_ms, now_ms) + APART_MS)

    # For upkeep

    def lowest_open(self, now_ms: int) -> Key:
        """The key below which nothing is on its way any more."""
        lows: list[Key | None] = [Key(min(self._dispatched_ms, now_ms), 0), self.lowest_arriving()]
        lows += [self.flights.lowest(), self.end_writer.lowest(), self.postponed.lowest()]
        # What is due and had to wait for its turn, in the wheel, may be due before what had its turn: its acceptance was
        # durable later.
        in_wheel_ms = self._horizon.wheel.next_fire_at_ms()
        lows.append(None if in_wheel_ms is None else Key(in_wheel_ms, 0))
        lows += self.awaited.lowest()
        # Each part of a lane is in order; but what became durable late may be behind what is due after it.
        lows += (Key(int(fires[0]), int(seqs[0])) for fires, seqs in self.lanes.parts())
        return min(low for low in lows if low is not None)

    def lowest_arriving(self) -> Key:
        """The key below which nothing comes into the wheel any more: the watermark stays below it (R9)."""
        lows = [
            self._journal.lowest_entering_ms(),
            self._state.batches.lowest_entering_ms(self._journal.effective_seq),
            self._horizon.lowest_joining_ms(),
        ]
        return min([self._horizon.at, *(Key(low_ms, 0) for low_ms in lows if low_ms)])

    def keys_out_of_wheel(self) -> Keys:
        """The keys of due messages on their way, which are in no wheel: for listing."""
        out = [flight.key for seq, flight in self.flights.by_seq.items() if seq not in self.postponed]
        out += self.awaited.keys()
        keys = np.array(out, np.int64).reshape(-1, 2)
        parts = [(keys[:, 0], keys[:, 1]), *self.lanes.parts()]
        fires, seqs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return fires, seqs

    def open_between(self, first_seq: int, last_seq: int) -> list[int]:
        """Seqs in a range that are on their way and so cannot be moved."""
        return [
            seq for seq in chain(self.flights.by_seq, self._firing.seqs()) if first_seq <= seq <= last_seq
        ]

    @property
    def holds_any(self) -> bool:
        """Whether due versions are in no wheel, because they wait for their turn, their bodies, or space in the ledger.

        So long they are not found among what waits: what they need must stay, and so must the knowledge that they are dead.
        """
        return bool(self.lanes or self.awaited) or self.end_writer.waits_for_space

    @property
    def backlogged(self) -> bool:
        """Whether more is due than could be taken."""
        return bool(self.lanes)

    def bursting(self, now_ms: int) -> bool:
        """Whether a burst is going on: more is due than could be taken, or consumers are just taking it."""
        return self.backlogged or 0 <= now_ms - self._burst_at_ms < BURST_MS
