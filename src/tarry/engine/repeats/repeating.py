"""Repeating: the occurrences of repeats become messages, shortly before they are due.

An occurrence and the progress of its repeat are one unit of the ledger: after a crash either both are there or
neither is, and so each occurrence is accepted exactly once. From then on it is a message like any other.

What a repeat may cost is bounded: of all repeats so many occurrences in a turn, missed ones at a pace of their own and
after those that are due now.
"""

import logging
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

import msgspec

from tarry.core.errors import Damage, TarryError, Unavailable
from tarry.core.limits import DAY_MS, MINUTE_MS, SECOND_MS
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import Message
from tarry.core.messages.repeat import Occurrences, RepeatProgress
from tarry.core.names import TOPIC_SCHEME, parse_topic
from tarry.core.rules.policy import Effective
from tarry.core.telemetry import faults
from tarry.engine.admission.first_versions import FirstVersions
from tarry.engine.bodies.bodies import Bodies, BodyNotAtHand
from tarry.engine.flights.flights import Flights
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.repeat_state import HeldRepeat, RepeatName, come_to
from tarry.engine.records.versions import end_of
from tarry.engine.repeats.zone_files import offset_of
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key, Put, PutHead, Record

log = logging.getLogger(__name__)

AHEAD_MS: Final = 250
"""How long before its instant an occurrence is accepted, so that it is durable by then and on time."""

STEP: Final = 50
"""Occurrences accepted in one turn, of all repeats: some milliseconds of the loop's time."""

PACE_MS: Final = 5
"""A turn that had more to do is followed by another so much later: other work has at least as much of the loop."""

LATE_STEP: Final = 10
"""Missed occurrences of one repeat that are accepted together."""

LATE_PACE_MS: Final = 20
"""The time between two such steps of a repeat: with the step before, up to 500 missed occurrences in a second."""

LOOKED_AT: Final = 100
"""Repeats looked at in one turn after records were about them: at a start these are all that there are."""

TAKEN_BACK: Final = "its repeat was paused, changed or removed"

MISSED_MS: Final = MINUTE_MS
"""An occurrence that could not be accepted for so long is missed, whatever kept it."""

AGAIN_MS: Final = 10 * SECOND_MS
"""When an occurrence that was refused is tried again."""

KEPT_MS: Final = 7 * DAY_MS
"""How long a repeat is shown after its last occurrence."""


class Wakes:
    """When repeats are to be looked at next: a heap with one instant for each name."""

    def __init__(self) -> None:
        self._at: dict[RepeatName, int] = {}
        self._heap: list[tuple[int, RepeatName]] = []
        """Every instant that was set; those not in force any more are dropped late."""

    def set(self, name: RepeatName, at_ms: int | None) -> None:
        """Look at a repeat at an instant, or with None not at all."""
        if at_ms is None:
            self._at.pop(name, None)
        elif self._at.get(name) != at_ms:
            self._at[name] = at_ms
            heappush(self._heap, (at_ms, name))
            if len(self._heap) > 2 * len(self._at) + 64:
                self._heap = [(at_ms, name) for name, at_ms in self._at.items()]
                heapify(self._heap)

    def first(self) -> tuple[int, RepeatName] | None:
        """The repeat to be looked at next, and when."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0] if self._heap else None


class Repeating:
    """Makes occurrences of repeats."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        isolation: Isolation,
        versions: FirstVersions,
        flights: Flights,
    ) -> None:
        self._journal = journal
        self._state = state
        self._held = state.repeats
        self._bodies = bodies
        self._isolation = isolation
        self._versions = versions
        self._flights = flights
        self._timely = Wakes()
        self._late = Wakes()
        """Repeats that catch up with missed occurrences, after the others."""
        self._again_at_ms = 0
        self.troubles: dict[RepeatName, str] = {}
        """Why the next occurrence of a repeat is not accepted, where it is not."""

    def turn(self, now_ms: int) -> int | None:
        """Accept the occurrences that are near; gives the instant at which to come again, None if there is nothing to come for."""
        self._look_at_changed(now_ms)
        next_ms = self.next_ms()
        if next_ms is None:
            return None
        waits = 0 < self._again_at_ms - now_ms <= SECOND_MS
        if next_ms <= now_ms and not waits and not self._journal.failed:
            self._make_all(now_ms)
            next_ms = self.next_ms()
        if self._held.changed:
            next_ms = now_ms + 1 if next_ms is None else min(next_ms, now_ms + 1)
        return None if next_ms is None else max(next_ms, min(self._again_at_ms, now_ms + SECOND_MS))

    def next_ms(self) -> int | None:
        """The next instant at which a repeat is to be looked at."""
        firsts = [first[0] for wakes in (self._timely, self._late) if (first := wakes.first()) is not None]
        return min(firsts, default=None)

    def _look_at_changed(self, now_ms: int) -> None:
        changed = self._held.changed
        for name in list(islice(changed, LOOKED_AT)):
            del changed[name]
            self.troubles.pop(name, None)
            try:
                self._set_wake(name, now_ms)
            except Exception as error:  # noqa: BLE001 - one repeat must not keep the others, nor end the process
                self._refused(name, error, now_ms)

    def _set_wake(self, name: RepeatName, now_ms: int) -> None:
        timely_ms, late_ms = None, None
        held = self._held.by_name.get(name)
        if held is not None and held.progress.paused_at_ms is None:
            progress = held.progress
            if progress.over_at_ms is not None:
                timely_ms = progress.over_at_ms + KEPT_MS
            elif progress.next_at_ms is not None and progress.next_at_ms < self._missed_before(
                progress, now_ms
            ):
                late_ms = now_ms + LATE_PACE_MS
            elif progress.next_at_ms is not None:
                planned = self.occurrences(held).planned(progress.next_at_ms, progress.made)
                timely_ms = planned.due_at_ms - self._ahead_ms(held)
        self._timely.set(name, timely_ms)
        self._late.set(name, late_ms)

    def _ahead_ms(self, held: HeldRepeat) -> int:
        # Where nothing is delayed a message goes out as it is accepted.
        return AHEAD_MS if self.policy(held).delayed_delivery else 0

    def policy(self, held: HeldRepeat) -> Effective:
        """The policy in force where the messages of a repeat go."""
        destination = held.repeat.destination
        topic = parse_topic(destination).full if destination.startswith(TOPIC_SCHEME) else None
        return self._state.policies.effective(topic, held.name.namespace)

    def _missed_before(self, progress: RepeatProgress, now_ms: int) -> int:
        """Occurrences planned for an earlier instant are missed: the server did not run, or the repeat was paused."""
        return max(progress.since_ms, self._state.recovered_at_ms, now_ms - MISSED_MS)

    @staticmethod
    def occurrences(held: HeldRepeat) -> Occurrences:
        """The occurrences of a repeat."""
        return Occurrences(held.repeat, held.name.full, offset_of)

    # Making

    def _make_all(self, now_ms: int) -> None:
        left, left_bytes = STEP, self._journal.unit_max_bytes // 2
        records: list[Record] = []
        for wakes in (self._timely, self._late):
            while (first := wakes.first()) is not None and first[0] <= now_ms:
                if left <= 0 or left_bytes <= 0:
                    self._again_at_ms = now_ms + PACE_MS
                    break
                name = first[1]
                size_bytes = self._held.by_name[name].repeat.size_bytes
                fits = max(1, min(left, left_bytes // size_bytes))
                try:
                    made = self._make(self._held.by_name[name], now_ms, fits, len(records))
                except Exception as error:  # noqa: BLE001 - one repeat must not keep the others, nor end the process
                    self._refused(name, error, now_ms)
                    continue
                records += made
                left -= len(made)
                left_bytes -= len(made) * size_bytes
                # Its next instant is known once the records are decided.
                wakes.set(name, None)
        if records:
            self._append(records, now_ms)

    def _append(self, records: list[Record], now_ms: int) -> None:
        expected = self._journal.next_seq
        try:
            first = self._journal.append(records, lambda _: None)
        except Unavailable:
            # No space: the repeats are looked at again, and nothing was decided.
            for record in records:
                if not isinstance(record, Put):
                    self._held.changed[RepeatName.parse(record.name)] = None  # type: ignore[union-attr]
            self._again_at_ms = now_ms + SECOND_MS
            return
        assert first == expected

    def _make(self, held: HeldRepeat, now_ms: int, left: int, before: int) -> list[Record]:
        """The occurrences of one repeat that are near, and its progress after them; `before` records come before them."""
        progress, occurrences = held.progress, self.occurrences(held)
        if progress.over_at_ms is not None:
            return self._held.ends_of(held.name)
        next_ms, made = progress.next_at_ms, progress.made
        last_ms = progress.last_at_ms
        ahead = [one for one in progress.ahead if one[0] > now_ms]
        missed_before_ms = self._missed_before(progress, now_ms)
        if next_ms is not None and next_ms < missed_before_ms:
            next_ms = occurrences.after_missed(next_ms, missed_before_ms)
            left = min(left, LATE_STEP)
        puts: list[Record] = []
        first_seq = self._journal.next_seq + before
        ahead_ms = self._ahead_ms(held)
        while next_ms is not None and len(puts) < left:
            planned = occurrences.planned(next_ms, made)
            if planned.due_at_ms > now_ms + ahead_ms:
                break
            put = self.version(held, planned.planned_at_ms, planned.due_at_ms, now_ms)
            if put.fire_at_ms > now_ms:
                ahead.append((put.fire_at_ms, first_seq + len(puts), planned.planned_at_ms))
            puts.append(put)
            last_ms, next_ms, made = next_ms, planned.following_at_ms, made + 1
        over_ms = None if next_ms is not None else now_ms
        after = msgspec.structs.replace(
            progress,
            next_at_ms=next_ms,
            made=made,
            last_at_ms=last_ms,
            over_at_ms=over_ms,
            ahead=tuple(ahead),
        )
        return [*puts, come_to(held.name, after)]

    def version(self, held: HeldRepeat, planned_at_ms: int, due_at_ms: int, now_ms: int) -> Put:
        """The version that accepts an occurrence; raises the error of the rule that it breaks."""
        return self._versions.make(_message(held, planned_at_ms, due_at_ms), now_ms)

    def _refused(self, name: RepeatName, error: Exception, now_ms: int) -> None:
        if not isinstance(error, TarryError):
            self._isolation.check(error)
        reason = str(error) if isinstance(error, TarryError) else faults.told(error)
        if self.troubles.get(name) != reason:
            log.warning(
                "an occurrence of repeat %s is not accepted, and is tried again: %s", name.full, reason
            )
        self.troubles[name] = reason
        self._timely.set(name, now_ms + AGAIN_MS)
        self._late.set(name, None)

    # Taking back

    def taken_back(self, held: HeldRepeat, now_ms: int) -> tuple[list[Record], RepeatProgress]:
        """The ends of occurrences that were accepted ahead and are not due, and the progress without them.

        One that was commanded by itself in the meantime is a message of its own, and stays; so does one that was due by a clock
        which has been set back since, and is being sent or may have been (R11).
        """
        progress, dead = held.progress, self._state.dead
        ends: list[Record] = []
        planned: list[int] = []
        for fire_at_ms, seq, planned_at_ms in progress.ahead:
            key = Key(fire_at_ms, seq)
            # Of what ended long ago nothing but the watermark says that it did.
            if fire_at_ms <= now_ms or seq in dead or self._state.passed.has_passed(key):
                continue
            # A start has not read of an end that the index knows, and the watermark may not have come to it.
            if self._state.registry.finalised.get(seq) is not None:
                continue
            accepted = self._accepted(held, key)
            if not self._was_due(key, accepted):
                ends.append(end_of(accepted, key, "cancelled", now_ms, TAKEN_BACK))
                planned.append(planned_at_ms)
        if not planned:
            return [], msgspec.structs.replace(progress, ahead=())
        return ends, msgspec.structs.replace(
            progress, next_at_ms=min(planned), made=progress.made - len(planned), over_at_ms=None, ahead=()
        )

    def _was_due(self, key: Key, accepted: PutHead | Put) -> bool:
        flight = self._flights.by_seq.get(key.seq)
        if flight is not None and (flight.tried or flight.state is State.SENDING):
            return True
        return self._state.may_have_been_sent(key, accepted)

    def _accepted(self, held: HeldRepeat, key: Key) -> PutHead | Put:
        """The version of an occurrence that was accepted ahead."""
        try:
            return self._bodies.version(key.seq)
        except (BodyNotAtHand, Damage):
            # After the clock was set back it may wait for long, until only the index has it: it says what its repeat says.
            repeat, namespace = held.repeat, held.name.namespace
            is_topic = "://" not in repeat.destination or repeat.destination.startswith(TOPIC_SCHEME)
            destination = parse_topic(repeat.destination).full if is_topic else repeat.destination
            return PutHead(
                key.fire_at_ms, key.fire_at_ms, key.fire_at_ms - AHEAD_MS, namespace, destination, repeat.key,
                repeat.owner, repeat.door, None, repeat.ttl_ms, None, 0, False,
            )  # fmt: skip


def _message(held: HeldRepeat, planned_at_ms: int, due_at_ms: int) -> Message:
    return held.repeat.occurrence(held.name.name, planned_at_ms, due_at_ms, held.name.namespace)
