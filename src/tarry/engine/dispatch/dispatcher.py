"""The dispatcher: takes what is due and sees that it goes out, in (due, seq) order and fairly.

Messages for Tarry's own topics are fired in bursts; the others become flights. When more is due than one batch
holds, owners take turns by their lanes, so that an owner with a million does not delay another's one; within an owner
the order stays. Nothing is sent before its instant: the clock is read here, at dispatch.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core import faults
from tarry.core.clock import Clock
from tarry.core.delivery import Outlet
from tarry.core.errors import Conflict, Damage, Unavailable
from tarry.core.ids import Ids
from tarry.core.lifecycle import State
from tarry.core.names import TOPIC_SCHEME, namespace_of
from tarry.core.policy import Effective
from tarry.core.rates import Rates
from tarry.core.timers.lanes import lane_of
from tarry.core.timers.run import Due
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.dispatch.burst import Burst, Lot, lateness
from tarry.engine.due.decoded_batch import DecodedBatch, joined
from tarry.engine.due.dispatch_class import DispatchClass
from tarry.engine.due.horizon import Horizon
from tarry.engine.due.postponed import Postponed
from tarry.engine.flights.end_writer import ROOM_RETRY_MS, EndWriter
from tarry.engine.flights.flight import Flight
from tarry.engine.flights.flights import Flights, Launch
from tarry.engine.flights.holding import DueMessage, Holding
from tarry.engine.flights.stranded import Stranded
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.records.changes import NewEntries, Written
from tarry.engine.records.versions import end_of, end_unread, has_expired, new_version
from tarry.engine.settings import EngineSettings
from tarry.engine.state.aside import REASON
from tarry.engine.state.engine_state import EngineState
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.tracing import Tracing
from tarry.ledger.read_record import PutHead, ReadEntry, ReadPut, decode_head
from tarry.ledger.record import Entry, Key, Put, Record, decode_put

log = logging.getLogger(__name__)

POP: Final = 1 << 20
"""Entries taken from the wheel at once, more than a batch, so that owners can take turns."""

PAUSED_BATCH: Final = 500
"""Due messages taken in one turn while any place is paused."""

ORDER_WAITS_MS: Final = 1_000
"""How long what is due later waits for bodies that are being fetched."""

APART_MS: Final = 2
"""Turns that send lie so far apart, if there is not more to send at once: each costs about as much as ten messages do,
so that under a steady load two instants in one turn are sooner there than each in its own."""

BURST_MS: Final = 250
"""For so long after a batch of due messages consumers are taking them."""

Keys = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Fire instants and seqs, side by side."""

OnSent = Callable[[str, int, int], None]
"""Told of messages sent: their door, their lateness in milliseconds, and how many."""


class Dispatcher:
    """Takes what is due and sees it off."""

    def __init__(
        self,
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
    ) -> None:
        self.end_writer = EndWriter(journal, state, clock, isolation)
        self.stranded = Stranded(journal, state, horizon, bodies, clock, outlets, self.end_writer)
        self.rates = Rates()
        """Allowances on sending."""
        self.holding = Holding(journal, state, horizon, bodies, clock, self.end_writer, self.rates)
        self._to_hold: list[DueMessage] = []
        """Messages of the batch at hand whose place is paused."""
        self.flights = Flights(
            journal,
            state,
            bodies,
            clock,
            ids,
            isolation,
            outlets,
            settings,
            launch,
            self.end_writer,
            self.stranded,
            self.holding,
            self._later,
            self._expire,
            self._tell_sent,
            seed,
            tracing,
        )
        self._firing: dict[int, NDArray[np.int64]] = {}
        """Seqs of messages whose firing into a topic is enqueued and not durable yet, by the number of their unit."""
        self.stuck = False
        """Whether what is due has to wait, because the ledger has no room or has failed."""
        self.gathering = False
        """Whether what is due waits: for a burst to be durable, since the ledger writes one frame at a time, so that it
        would not be durable sooner, and all that is due by then goes in one turn; or for stranded messages to return."""
        self.on_sent: OnSent | None = None
        self._journal = journal
        self._state = state
        self._horizon = horizon
        self._bodies = bodies
        self._sizes = sizes
        self._readahead = readahead
        self._recent_entries = recent_entries
        self._postponed = postponed
        self._clock = clock
        self._ids = ids
        self._isolation = isolation
        self._tracing = tracing
        self._settings = settings
        self._burst = Burst(0)
        self._lanes: dict[int, deque[Keys]] = {}
        """Overdue keys by lane, when there are more than fit one batch."""
        self._taken: dict[int, Key] = {}
        """Postponed messages of the batch at hand that came again: their keys, by seq."""
        self._seen_to: set[int] = set()
        """Seqs of the batch at hand that began to fly or were put off."""
        self._awaiting: dict[int, list[Key]] = {}
        """Keys of due messages whose bodies are being fetched, by the first seq of each lot."""
        self._awaiting_since_ms = 0
        self._fetched: deque[Keys] = deque()
        """The batches among these whose bodies are there."""
        self._dispatched_ms = 0
        self._turned_ms = 0
        self._sent_at_ms = 0
        """When there was a turn that sent something."""
        self._burst_at_ms = 0
        """When a whole batch was due at once."""

    # Taking what is due

    def turn(self, now_ms: int) -> bool:
        """One turn: a batch at most. Answers whether there is more to do at once."""
        # Nothing goes out unless its end has room in the ledger (R2).
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
        self.gathering = (bool(self._firing) and not self._lanes) or self._returning(now_ms)
        if self._fetched:
            self._dispatch_fetched(now_ms)
            return True
        ordered = bool(self._awaiting) and 0 <= now_ms - self._awaiting_since_ms < ORDER_WAITS_MS
        if ordered or self.gathering:
            self.flights.start(now_ms)
            return False
        due = self._horizon.pop_due(now_ms, POP)
        # A message that is held gets a new version, which costs more than sending it into a topic.
        batch = self._settings.batch if not self._state.pauses else min(self._settings.batch, PAUSED_BATCH)
        if not self._lanes and len(due.seqs) <= batch:
            fires, seqs = due.fire_at_ms, due.seqs
        else:
            self._share_out(due)
            fires, seqs = self._take_turns(batch)
        if len(seqs):
            self._dispatch(fires, seqs, now_ms)
            self._sent_at_ms = now_ms
        if len(seqs) >= self._settings.batch:
            self._burst_at_ms = now_ms
        self.flights.start(now_ms)
        if not self._lanes:
            self._dispatched_ms = max(self._dispatched_ms, now_ms + 1)
        return bool(self._lanes)

    def _returning(self, now_ms: int) -> bool:
        """Whether everything else waits for messages that were set aside and come back."""
        return self.stranded.returning.holds(now_ms) or self.holding.returning.holds(now_ms)

    def _share_out(self, due: Due) -> None:
        if len(due.lanes) and (due.lanes == due.lanes[0]).all():
            self._line_up(int(due.lanes[0]), due.fire_at_ms, due.seqs)
            return
        order = np.argsort(due.lanes, kind="stable")
        cuts = np.flatnonzero(np.diff(due.lanes[order])) + 1
        for chosen in np.split(order, cuts):
            if len(chosen):
                self._line_up(int(due.lanes[chosen[0]]), due.fire_at_ms[chosen], due.seqs[chosen])

    def _line_up(self, lane: int, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> None:
        """Put keys into a lane, in key order: a version that was carried forward keeps its instant and comes late."""
        queue = self._lanes.setdefault(lane, deque())
        if queue and (fires[0], seqs[0]) < (queue[-1][0][-1], queue[-1][1][-1]):
            fires, seqs = (np.concatenate(column) for column in zip(*queue, (fires, seqs), strict=True))
            order = np.lexsort((seqs, fires))
            fires, seqs = fires[order], seqs[order]
            queue.clear()
        queue.append((fires, seqs))

    def _put_back(self) -> None:
        """The clock was set back: what waits in the lanes may not be due any more."""
        lanes, self._lanes = self._lanes, {}
        for lane, queue in lanes.items():
            for keys in queue:
                self._return(*self._without_dead(*keys), lane)

    def _return(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], lane: int) -> None:
        """Give entries back to the wheel: living ones alone, for a sweep may have passed their place."""
        self._horizon.wheel.add_many(fires, seqs, np.full(len(seqs), lane, np.uint16))

    def _take_turns(self, batch: int) -> Keys:
        """A batch in which every lane that has something has its share."""
        taken: list[Keys] = []
        room = batch
        while self._lanes and room > 0:
            share = max(1, room // len(self._lanes))
            for lane in list(self._lanes):
                # Whoever was served goes to the back.
                queue = self._lanes.pop(lane)
                fires, seqs = queue.popleft()
                some = min(share, len(seqs), room)
                taken.append((fires[:some], seqs[:some]))
                room -= some
                if some < len(seqs):
                    queue.appendleft((fires[some:], seqs[some:]))
                if queue:
                    self._lanes[lane] = queue
                if not room:
                    break
        fires, seqs = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        order = np.lexsort((seqs, fires))
        return fires[order], seqs[order]

    # Deciding what becomes of each

    def _dispatch(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        fires, seqs = self._without_dead(fires, seqs)
        if self._state.aside.seqs:
            aside = np.isin(seqs, list(self._state.aside.seqs))
            for fire_at_ms, seq in zip(fires[aside].tolist(), seqs[aside].tolist(), strict=True):
                self.end_aside(self._postponed.key_of(fire_at_ms, seq), decided=False)
            fires, seqs = fires[~aside], seqs[~aside]
        absent = self._bodies.absent(seqs)
        if absent.any():
            # What is due after them may have to follow them.
            first = int(absent.argmax())
            self._await_bodies(fires[first:], seqs[first:], now_ms)
            fires, seqs = fires[:first], seqs[:first]
        together = self._sizes.together(seqs)
        for start in range(0, len(seqs), together):
            some = slice(start, start + together)
            self._dispatch_together(fires[some], seqs[some], now_ms)

    def _without_dead(self, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> Keys:
        """The living ones of these; whoever waits for one of the others hears of its end."""
        dead = self._state.dead.contains_many(seqs)
        if not dead.any():
            return fires, seqs
        for seq in seqs[dead].tolist():
            # Another one of its group may have ended it while it waited to be tried.
            self.killed(seq)
            self._readahead.forget(seq)
        self.end_writer.settled(seqs[dead].tolist())
        return fires[~dead], seqs[~dead]

    def _await_bodies(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        """Bodies that only the index has are fetched; then their messages come again, due as they are.

        They are fetched ahead, so that this is rare. Meanwhile nothing else is taken, for it may have to follow them in
        order; but an index that does not answer does not stop what is not in it for long.
        """
        keys = list(map(self._postponed.key_of, fires.tolist(), seqs.tolist()))
        if not self._awaiting:
            self._awaiting_since_ms = now_ms
        self._awaiting[keys[0].seq] = keys

        def held() -> None:
            self._fetched.append((fires, seqs))
            self._horizon.wake()

        absent = self._bodies.absent(seqs)
        self._bodies.hold([key for key, away in zip(keys, absent, strict=True) if away], held)

    def _dispatch_fetched(self, now_ms: int) -> None:
        """Dispatch messages that had their turn and waited for their bodies, before all others."""
        fires, seqs = self._fetched.popleft()
        del self._awaiting[int(seqs[0])]
        fires, seqs = self._without_dead(fires, seqs)
        # The clock may have been set back meanwhile.
        due = fires <= now_ms
        self._return(fires[~due], seqs[~due], 0)
        if due.any():
            self._dispatch(fires[due], seqs[due], now_ms)
        self.flights.start(now_ms)

    def _dispatch_together(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        if not len(seqs):
            return
        self._taken.clear()
        self._seen_to.clear()
        try:
            self._dispatch_batch(fires, seqs, now_ms)
        except Exception as error:  # noqa: BLE001 - one message must not keep the others, nor end the process
            self._isolation.check(error)
            self._dispatch_apart(fires, seqs, now_ms)

    def _dispatch_apart(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        """Dispatch messages one by one, those of a batch that failed, and end those that provoke an error."""
        for at, (fire_at_ms, seq) in enumerate(zip(fires.tolist(), seqs.tolist(), strict=True)):
            key = self._taken.get(seq) or self._postponed.key_of(fire_at_ms, seq)
            if seq in self._seen_to or seq in self._state.dead or self.end_writer.is_writing(key):
                continue
            if seq in self._taken:
                self._postponed.add_again(key)
            try:
                self._dispatch_batch(fires[at : at + 1], seqs[at : at + 1], now_ms)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
                self._end_failed(key, self._isolation.reason(seq, error), now_ms)

    def _dispatch_batch(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        self._burst, self._to_hold = Burst(now_ms), []
        parts = self._readahead.take(seqs)
        timely = not self._postponed.has_any(seqs)
        topic = self._one_topic(parts) if timely else None
        if topic is not None:
            lot = self._burst.of(topic)
            at = 0
            for part in parts:
                stop = at + len(part)
                lot.extend(part, fires[at:stop], seqs[at:stop])
                at = stop
        else:
            reads = joined(parts)
            if timely and set(map(type, reads.read)) == {ReadEntry}:
                self._make_ready(seqs.tolist(), reads.read, reads.bodies, now_ms)  # type: ignore[arg-type]
            else:
                self._dispatch_each(reads, fires.tolist(), seqs.tolist(), now_ms)
        self._fire_burst()
        if self._to_hold:
            held, self._to_hold = self._to_hold, []
            self.flights.hold(held)

    def _one_topic(self, parts: Sequence[DecodedBatch]) -> str | None:
        """In the common case the topic of all messages: there is nothing about them to decide one by one."""
        first = next(iter(parts[0].kinds))
        if first is None or self._state.pauses or not self._is_simple(first):
            return None
        topic = first.destination
        for part in parts:
            for alike in part.kinds:
                if alike is None or not alike.plain or alike.destination != topic:
                    return None
        return topic

    def _is_simple(self, alike: DispatchClass) -> bool:
        if not alike.plain or self._lacks_room(alike.destination):
            return False
        if self._state.pauses.at(alike.namespace, alike.destination, alike.owner):
            return False
        return not self._state.policies.effective(alike.destination, alike.namespace).send_per_second

    def _lacks_room(self, topic: str) -> str | None:
        """Why a topic that is not there cannot be made: messages for more topics than a namespace may have were accepted."""
        topics = self._state.topics
        if topic in topics.by_name:
            return None
        try:
            topics.check_room(topic)
        except Conflict as full:
            return str(full)
        return None

    def _dispatch_each(self, reads: DecodedBatch, fires: list[int], seqs: list[int], now_ms: int) -> None:
        entries: list[tuple[int, ReadEntry, bytes]] = []
        lots: dict[DispatchClass, Lot | None] = {}
        for read, body, alike, fire_at_ms, seq in zip(
            reads.read, reads.bodies, reads.alike, fires, seqs, strict=True
        ):
            postponed = self._postponed.pop(seq)
            if postponed is not None:
                self._taken[seq] = postponed
            key = postponed or Key(fire_at_ms, seq)
            if isinstance(read, ReadPut):
                assert alike is not None
                if alike not in lots:
                    lots[alike] = self._burst.of(alike.destination) if self._is_simple(alike) else None
                lot = lots[alike]
                if lot is not None:
                    lot.add(read, body, alike, key)
                else:
                    self._dispatch_one(key, read, body, alike, now_ms, charged=postponed is not None)
                    # It may have fired the burst, so that what follows belongs to another.
                    lots.clear()
            elif isinstance(read, ReadEntry):
                entries.append((seq, read, body))
            else:
                self._end_unread(key, read, now_ms)
        if entries:
            due_seqs, due, due_bodies = zip(*entries, strict=True)
            self._make_ready(due_seqs, due, due_bodies, now_ms)

    def _make_ready(
        self, seqs: Sequence[int], entries: Sequence[ReadEntry], bodies: Sequence[bytes], now_ms: int
    ) -> None:
        """Delayed entries of topics are due."""
        if self._state.pauses:
            held = [self._is_held(entry) for entry in entries]
            if any(held):
                keys = [Key(entry.fire_at_ms, seq) for seq, entry in zip(seqs, entries, strict=True)]
                self._to_hold += [DueMessage(key, None) for key in compress(keys, held)]
                free = [not one for one in held]
                seqs, entries, bodies = (list(compress(column, free)) for column in (seqs, entries, bodies))  # type: ignore[assignment]
        late = self._state.topics.ready(seqs, entries)
        self.end_writer.settled(seqs)
        if self._tracing is not None:
            for body in bodies:
                self._tracing.ready(body, now_ms)
        if self.on_sent is not None:
            for (door, lateness_ms), count in late.items():
                self.on_sent(door, lateness_ms, count)

    def _is_held(self, entry: ReadEntry) -> bool:
        namespace = namespace_of(entry.topic)
        return self._state.pauses.at(namespace, entry.topic, entry.owner) is not None

    def _dispatch_one(
        self, key: Key, head: ReadPut, body: bytes, alike: DispatchClass, now_ms: int, *, charged: bool
    ) -> None:
        to_topic = head.destination.startswith(TOPIC_SCHEME)
        if self._state.pauses.at(head.namespace, head.destination, head.owner):
            self._to_hold.append(DueMessage(key, self.flights.by_seq.get(key.seq)))
            self._seen_to.add(key.seq)
            return
        if has_expired(key, head, now_ms):
            self._fire_burst()
            self._expire(key, head, now_ms)
            return
        if to_topic and (reason := self._lacks_room(head.destination)):
            self._fire_burst()
            self._end_failed(key, reason, now_ms)
            return
        policy = self._state.policies.effective(head.destination if to_topic else None, head.namespace)
        if policy.send_per_second > 0 and not charged and not has_waited(head, policy):
            at_ms = self.rates.reserve((head.namespace, head.owner), policy.send_per_second, now_ms)
            if at_ms > now_ms:
                self._put_off(key, head, body, at_ms)
                return
        if not to_topic:
            self.flights.begin(key, head, body, now_ms)
            self._seen_to.add(key.seq)
        elif head.group is not None:
            self._fire_burst()
            # One of its group, in this same batch, may have ended it.
            if key.seq not in self._state.dead:
                self._fire_grouped(key, head, body, now_ms)
        else:
            self._burst.of(head.destination).add(head, body, alike, key)

    def _end_unread(self, key: Key, damage: Damage | None, now_ms: int) -> None:
        if self._state.topics.ready_unread(key.seq):
            # A delayed entry: whoever reads it finds the damage, and passes it over.
            return
        reason = str(damage) if damage is not None else f"there is no record at seq {key.seq}"
        self._state.counters["damaged"] += 1
        log.error("a due message cannot be read and ends as failed: %s", reason)
        led = self._state.groups.ends_of_led
        self.end_writer.end(key, lambda: [end_unread(key, now_ms, reason), *led(key, now_ms)])

    def end_aside(self, key: Key, *, decided: bool) -> None:
        """End a waiting message whose record is set aside; by its key alone, if it was not decided or is not at hand."""
        now_ms = self._clock.now_ms()
        if decided:
            self._end_failed(key, REASON, now_ms)
        elif not self._state.topics.ready_unread(key.seq):
            led = self._state.groups.ends_of_led
            self.end_writer.end(key, lambda: [end_unread(key, now_ms, REASON), *led(key, now_ms)])

    def _end_failed(self, key: Key, reason: str, now_ms: int) -> None:
        """End a message that cannot be dispatched, with what it takes along and leaves to the dead letters."""
        if self._state.topics.ready_unread(key.seq):
            # A delayed entry: whoever reads it finds what is wrong with it, and passes it over.
            return

        def ends() -> list[Record]:
            head = decode_head(self._bodies.one(key.seq))
            return self.flights.failure(key, head, reason, now_ms, head.attempts)

        led = self._state.groups.ends_of_led
        self.end_writer.end(key, ends, lambda _: [end_unread(key, now_ms, reason), *led(key, now_ms)])
        self.killed(key.seq)

    def _expire(self, key: Key, head: PutHead, now_ms: int) -> None:
        reason = "its time to live was over before it could be sent"
        flight = self.flights.by_seq.get(key.seq)
        attempts = head.attempts if flight is None else flight.attempts

        def ends() -> list[Record]:
            orphans = self._state.groups.ends_of_orphans(head, head.origin or key, now_ms)
            return [end_of(head, key, "failed", now_ms, reason, None, attempts), *orphans]

        self.end_writer.end(key, ends)
        self.killed(key.seq)

    # Own topics

    def _fire_burst(self) -> None:
        """Write what has gathered. Before anything else that takes entry ids."""
        burst, self._burst = self._burst, Burst(self._burst.now_ms)
        if len(burst):
            for part in burst.parts(self._journal.unit_max_bytes):
                self._fire(part)

    def _fire(self, burst: Burst) -> None:
        unit = self.end_writer.open(burst.floor())
        self._firing[unit] = seqs = burst.seqs()

        def done(error: Exception | None) -> None:
            self._fired(unit)
            if error is None:
                self._keep_recent(burst, written, first)
                self._tell_burst(burst)
                self.end_writer.settled(map(int, seqs))

        try:
            written = burst.written(self._state.topics.next_id)
            first = self._journal.append(written, done)
        except Unavailable as error:
            done(error)
            for put, key in burst.items():
                self._later(key, lane_of(put.namespace, put.owner, put.door), burst.now_ms + ROOM_RETRY_MS)
        except Exception as error:
            done(error)
            raise

    def _keep_recent(self, burst: Burst, written: Written, first_seq: int) -> None:
        """Keep entries at hand where somebody may take them."""
        topics = self._state.topics.by_name
        for new in written.changes:
            if isinstance(new, NewEntries) and (topic := topics.get(new.topic)) and topic.has_consumers:
                try:
                    burst.keep_recent(self._recent_entries, self._ids, new, first_seq)
                except Exception as error:  # noqa: BLE001 - it is speed alone: whoever reads them finds which one it is
                    log.error("entries are not kept at hand because of %s", faults.told(error))

    def _fired(self, unit: int) -> None:
        self.end_writer.close(unit)
        del self._firing[unit]
        if self.gathering and not self._firing:
            self._horizon.wake()

    def _fire_grouped(self, key: Key, head: PutHead, body: bytes, now_ms: int) -> None:
        """Fire a member of a group: the same unit ends its siblings (R11)."""
        assert head.group is not None
        entry_id = self._state.topics.next_id(head.destination)
        records: list[Record] = [Entry(head.destination, 0, now_ms, entry_id, key, msgspec.Raw(body))]
        records += self._state.groups.ends_of_siblings(head, head.origin or key, now_ms)
        unit = self.end_writer.open(key)
        self._firing[unit] = np.array([key.seq])

        def done(error: Exception | None) -> None:
            self._fired(unit)
            if error is None:
                self._tell_sent([head], now_ms)
                if self._tracing is not None:
                    self._tracing.fired(key.seq, body, now_ms)
                self.end_writer.settled([key.seq])

        try:
            self._journal.append(records, done)
        except Unavailable as error:
            done(error)
            self._later(key, lane_of(head.namespace, head.owner, head.door), now_ms + ROOM_RETRY_MS)
        except Exception as error:
            done(error)
            raise

    def _tell_sent(self, heads: Sequence[PutHead], now_ms: int) -> None:
        if self.on_sent is not None:
            for (door, lateness_ms), count in lateness(heads, now_ms).items():
                self.on_sent(door, lateness_ms, count)

    def _tell_burst(self, burst: Burst) -> None:
        if self._tracing is not None:
            for lot in burst.by_topic.values():
                for _, body, key in lot.items():
                    self._tracing.fired(key.seq, body, burst.now_ms)
        if self.on_sent is not None:
            for alike, count in burst.kinds().items():
                self.on_sent(alike.door, alike.late_ms(burst.now_ms), count)

    # Later

    def _put_off(self, key: Key, head: PutHead, body: bytes, at_ms: int) -> None:
        """A limit says later: from the wheel, or past `carry_after_ms` by a new version (R9)."""
        if at_ms - key.fire_at_ms <= self._settings.carry_after_ms:
            self._later(key, lane_of(head.namespace, head.owner, head.door), at_ms)
        else:
            put = decode_put(body)
            # The new version is not overdue, so that it has to say itself what its message went through (R11).
            uncertain = put.uncertain or self._state.may_have_been_sent(key, put)
            self.end_writer.end(key, lambda: [new_version(put, key, at_ms, uncertain=uncertain)])

    def put_off(self) -> Iterator[Key]:
        """The keys of messages in the wheel that wait for their turn, in the order in which they were put off."""
        for key in self._postponed.in_order():
            if self.is_put_off(key.seq):
                yield key

    def is_put_off(self, seq: int) -> bool:
        """Whether a message in the wheel waits for its turn, and not between two attempts."""
        return seq in self._postponed and seq not in self.flights.by_seq

    def _later(self, key: Key, lane: int, at_ms: int) -> None:
        # First, because it is what may refuse an instant.
        self._horizon.postpone(at_ms, key.seq, lane)
        self._seen_to.add(key.seq)
        self._postponed.add(key)

    def ended(self, seq: int) -> None:
        """A record has ended a version: messages behind it go on, and whoever waits for its verdict hears of the end.

        Not only at its instant, for by then a sweep may have taken it out of the wheel.
        """
        self.killed(seq)
        self.end_writer.settled([seq])

    def killed(self, seq: int) -> None:
        """A version was ended or replaced: it makes room for what waits behind it."""
        self._postponed.pop(seq)
        flight = self.flights.by_seq.get(seq)
        if flight is not None and flight.state is State.SCHEDULED:
            self.flights.leave(flight)

    def killed_between(self, first_seq: int, last_seq: int) -> None:
        """All versions in a range were ended, except those that are being sent."""
        for seq in [seq for seq in (*self.flights.by_seq, *self._postponed) if first_seq <= seq <= last_seq]:
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
            (key for key in self._postponed.in_order() if key.seq not in flights),
            chain.from_iterable(self._awaiting.values()),
        )
        if any(first_seq <= key.seq <= last_seq and key.fire_at_ms <= upto_ms for key in keys):
            return True
        parts = (part for queue in self._lanes.values() for part in queue)
        return any(
            bool(((first_seq <= seqs) & (seqs <= last_seq) & (fires <= upto_ms)).any())
            for fires, seqs in parts
        )

    def next_turn_ms(self, due_at_ms: int, now_ms: int) -> int:
        """When to see to what is due next."""
        return max(due_at_ms, min(self._sent_at_ms, now_ms) + APART_MS)

    # For upkeep

    def lowest_open(self, now_ms: int) -> Key:
        """The key below which nothing is on its way any more."""
        lows: list[Key | None] = [Key(min(self._dispatched_ms, now_ms), 0), self.lowest_arriving()]
        lows += [self.flights.lowest(), self.end_writer.lowest(), self._postponed.lowest()]
        # What is due and had to wait for its turn, in the wheel, may be due before what had its turn: its acceptance was
        # durable later.
        in_wheel_ms = self._horizon.wheel.next_fire_at_ms()
        lows.append(None if in_wheel_ms is None else Key(in_wheel_ms, 0))
        lows += (min(keys) for keys in self._awaiting.values())
        # Each part of a lane is in order; but what became durable late may be behind what is due after it.
        parts = (part for queue in self._lanes.values() for part in queue)
        lows += (Key(int(fires[0]), int(seqs[0])) for fires, seqs in parts)
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
        """The keys of what is due and on its way, and so in no wheel: for listing."""
        out = [flight.key for seq, flight in self.flights.by_seq.items() if seq not in self._postponed]
        out += (key for keys in self._awaiting.values() for key in keys)
        keys = np.array(out, np.int64).reshape(-1, 2)
        parts = [(keys[:, 0], keys[:, 1]), *(part for queue in self._lanes.values() for part in queue)]
        fires, seqs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return fires, seqs

    def open_between(self, first_seq: int, last_seq: int) -> list[int]:
        """Seqs in a range that are on their way and so cannot be moved."""
        firing = [seqs.tolist() for seqs in self._firing.values()]
        return [seq for seq in chain(self.flights.by_seq, *firing) if first_seq <= seq <= last_seq]

    @property
    def holds_any(self) -> bool:
        """Whether due versions are in no wheel, because they wait for their turn, their bodies, or room in the ledger.

        So long they are not found among what waits: what they need must stay, and so must the knowledge that they are dead.
        """
        return bool(self._lanes or self._awaiting) or self.end_writer.waits_for_room

    @property
    def backlogged(self) -> bool:
        """Whether more is due than could be taken."""
        return bool(self._lanes)

    def bursting(self, now_ms: int) -> bool:
        """Whether a burst is going on: more is due than could be taken, or consumers are just taking it."""
        return self.backlogged or 0 <= now_ms - self._burst_at_ms < BURST_MS


def has_waited(head: PutHead | Put, policy: Effective) -> bool:
    """Whether this is a version that was put off already, by a limit or for another attempt."""
    asked_ms = max(policy.round_up(head.due_at_ms or 0), head.accepted_at_ms)
    return head.attempts > 0 or (head.due_at_ms is not None and head.fire_at_ms > asked_ms)
