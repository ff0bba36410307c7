"""Thousands of seeds, and proof that the checker can fail: each sabotage below breaks one rule of the protocol.

A failing seed is printed with the command that runs it again and shows its steps.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from tarry.core.errors import TarryError
from tarry.core.messages.message import Message
from tarry.core.messages.repeat import Occurrences
from tarry.core.sets.deadset import DeadSet
from tarry.core.sets.seqset import SeqSet
from tarry.core.timers.run import Due
from tarry.core.timers.timer_queue import TimerQueue
from tarry.engine.admission.admission import Admission
from tarry.engine.admission.idempotency import Idempotency
from tarry.engine.answer import Answer, settled
from tarry.engine.bodies.bodies import BodyNotAtHand
from tarry.engine.bulk_commands.walk import CommandWalk
from tarry.engine.due.horizon import Horizon
from tarry.engine.flights.flight import Departure, Flight
from tarry.engine.flights.flights import Flights
from tarry.engine.journal.journal import Effect, Journal
from tarry.engine.namespaces.pauses import Pauses
from tarry.engine.queries import finding, pausing
from tarry.engine.queries.retries import Retries
from tarry.engine.records.changes import Change
from tarry.engine.records.delayed_entry import as_entry
from tarry.engine.repeats.repeating import Repeating
from tarry.engine.state.batches import Batches
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.groups import Groups
from tarry.engine.state.recovery import Recovery
from tarry.engine.topics.cursor import AckSet
from tarry.engine.topics.entry_reader import EntryReader
from tarry.engine.topics.subscription import Subscription
from tarry.engine.topics.topic_records import TopicRecords
from tarry.engine.upkeep.reclaim import Living
from tarry.index.index import IndexView
from tarry.ledger.record import Claim, Entry, Key, Put
from tarry.ledger.watermark import Watermark
from tarry.registry.registry import Registry
from tarry.testing.disk import SimulatedDisk, SimulatedFile
from tarry.testing.index import SimulatedView
from tests.simulation.checker import Violation
from tests.simulation.run import Failure, run_range, run_seed
from tests.simulation.settings import BESIDE, FAULTS, OPERATIONS

CHUNKS = 20
SEEDS_IN_CHUNK = 75
STEPS = 100
BOUND = 400
"""A sabotage must be noticed within so many seeds."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The engine says what goes wrong, and here much does."""
    logger = logging.getLogger("tarry")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_guarantee_holds(chunk: int) -> None:
    runs = run_range(chunk * SEEDS_IN_CHUNK, SEEDS_IN_CHUNK, STEPS)
    assert not runs.failures, "\n".join(text for _, text in runs.failures)


def test_a_seed_gives_the_same_run_again() -> None:
    def trace() -> list[str]:
        lines: list[str] = []
        run_seed(7, 120, lines.append)
        return [line for line in lines if " object at 0x" not in line]

    first = trace()
    assert len(first) > 50
    assert trace() == first


# Sabotage


def never_sync(patch: pytest.MonkeyPatch) -> None:
    """R1, R2: an answer before the data is on disk."""
    patch.setattr(SimulatedFile, "sync", lambda file: None)


def never_sync_the_folder(patch: pytest.MonkeyPatch) -> None:
    """R1: a new segment whose name is not durable."""
    patch.setattr(SimulatedDisk, "sync_folder", lambda disk, folder: None)


def show_entries_when_enqueued(patch: pytest.MonkeyPatch) -> None:
    """R2: consumers see what is not durable yet."""
    decide = EngineState.decide

    def early(self: EngineState, first_seq: int, changes: Sequence[Change]) -> list[Effect]:
        effects = decide(self, first_seq, changes)
        for effect in effects:
            if isinstance(effect, partial) and effect.func == self.topics.appended:
                effect()
        return effects

    patch.setattr(EngineState, "decide", early)


def fire_a_millisecond_early(patch: pytest.MonkeyPatch) -> None:
    """Never early."""
    pop_due = Horizon.pop_due
    patch.setattr(Horizon, "pop_due", lambda self, now_ms, limit: pop_due(self, now_ms + 1, limit))


def forget_who_is_dead(patch: pytest.MonkeyPatch) -> None:
    """R4: a killed version fires."""
    patch.setattr(SeqSet, "contains_many", lambda self, seqs: np.zeros(len(seqs), np.bool_))


def send_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """R11: a grouped message goes out without ending its siblings first."""

    def unclaimed(self: Flights, departure: Departure, now_ms: int) -> bool:
        self._send(departure)
        return True

    patch.setattr(Flights, "_claim", unclaimed)


def send_before_the_claim_is_durable(patch: pytest.MonkeyPatch) -> None:
    """R11: a grouped message goes out before its claim is synced."""

    def early(self: Flights, departure: Departure, now_ms: int) -> bool:
        (flight,) = departure.flights
        head = flight.head
        assert head.group is not None
        claim = Claim(flight.key.seq, head.group, head.owner, now_ms, head.namespace)
        siblings = self._state.groups.ends_of_siblings(head, flight.origin, now_ms)
        self._journal.append([claim, *siblings], lambda error: None, essential=True)
        self._send(departure)
        return True

    patch.setattr(Flights, "_claim", early)


def forget_uncertainty(patch: pytest.MonkeyPatch) -> None:
    """R11: a cancel is answered although the message may have arrived."""
    told = Flight.told
    patch.setattr(
        Flight,
        "told",
        lambda self, put: msgspec.structs.replace(told(self, put), uncertain=False),
    )


def ignore_idempotency_keys(patch: pytest.MonkeyPatch) -> None:
    """R13: a repeated request is another message."""
    patch.setattr(Idempotency, "repeated", lambda self, message: None)


def skip_a_record_at_replay(patch: pytest.MonkeyPatch) -> None:
    """R13: the registry lacks a record that is taken to be in it."""
    load = Recovery._load

    def ahead(self: Recovery) -> int:
        applied = load(self)
        return applied + bool(applied)

    patch.setattr(Recovery, "_load", ahead)


def reclaim_what_is_needed(patch: pytest.MonkeyPatch) -> None:
    """R12: a segment goes although somebody needs what is in it."""
    patch.setattr(Living, "add", lambda self, seqs: None)


def lose_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """An acknowledged entry comes again after a restart."""
    load = TopicRecords.load

    def forgetful(self: TopicRecords, registry: Registry) -> None:
        load(self, registry)
        for topic in self.by_name.values():
            for sub in topic.subscriptions.values():
                sub.acked = AckSet(sub.acked.below)

    patch.setattr(TopicRecords, "load", forgetful)


def forget_what_is_acknowledged_in_part(patch: pytest.MonkeyPatch) -> None:
    """Messages of an entry come again that were acknowledged."""
    patch.setattr(Subscription, "_none_left", lambda self, entry_id, left: not any(left))


def begin_a_batch_without_its_files(patch: pytest.MonkeyPatch) -> None:
    """R10: a batch that is adopted is no part of the view until the index has it."""
    patch.setattr(SimulatedView, "with_batches", lambda self, batches: self)


def begin_a_batch_before_it_is_adopted(patch: pytest.MonkeyPatch) -> None:
    """R2: a batch is part of the view while the record of its adoption is not on disk."""
    unindexed = Batches.unindexed
    patch.setattr(Batches, "unindexed", lambda self, cursor, _: unindexed(self, cursor, 1 << 62))


def deliver_delayed_entries_at_once(patch: pytest.MonkeyPatch) -> None:
    """R5: shared subscriptions get a delayed entry before it is due."""
    patch.setattr(Subscription, "ignores_delay", property(lambda self: True))


def fire_twice(patch: pytest.MonkeyPatch) -> None:
    """R5: a message fired into a topic does not end there."""
    patch.setattr(EngineState, "_decide_fired", lambda self, fired: None)


def keep_siblings(patch: pytest.MonkeyPatch) -> None:
    """At most one message of a group is sent."""
    patch.setattr(Groups, "ends_of_siblings", lambda self, put, origin, now_ms: [])


def begin_without_the_leader(patch: pytest.MonkeyPatch) -> None:
    """A group that is led begins at once."""
    accept = Admission._all_or_none

    def unled(self: Admission, messages: Sequence[Message], trace: bytes | None) -> Answer[Any]:
        return accept(self, [msgspec.structs.replace(message, leads=None) for message in messages], trace)

    patch.setattr(Admission, "_all_or_none", unled)


def forget_whom_it_leads(patch: pytest.MonkeyPatch) -> None:
    """A group whose leader was not sent stays."""
    patch.setattr(Groups, "ends_of_led", lambda self, origin, now_ms: [])


def keep_the_tail(patch: pytest.MonkeyPatch) -> None:
    """R8: a newer view is taken and the tail keeps what it has: both bring it in."""
    patch.setattr(TimerQueue, "drop_seqs_upto", lambda self, seq: 0)


def let_go_of_the_tail_too_early(patch: pytest.MonkeyPatch) -> None:
    """R8: the tail lets go of what is indexed while the older view is read."""
    take = Horizon._take

    def early(self: Horizon, newest: IndexView) -> None:
        self.tail.drop_seqs_upto(newest.cursor + 1)
        take(self, newest)

    patch.setattr(Horizon, "_take", early)


def mark_past_what_enters(patch: pytest.MonkeyPatch) -> None:
    """R9: the watermark passes a version that is enqueued and not in the wheel yet."""
    patch.setattr(Journal, "lowest_entering_ms", lambda self: None)


def begin_above_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """Recovery 7: what is overdue and in the index alone is not loaded again."""
    recovered = EngineState.recovered

    def late(self: EngineState, durable_seq: int, now_ms: int) -> None:
        recovered(self, durable_seq, now_ms)
        self.passed = Watermark(max(self.watermark, Key(now_ms, 0)))

    patch.setattr(EngineState, "recovered", late)


def forget_the_dead_at_once(patch: pytest.MonkeyPatch) -> None:
    """R8: the dead are forgotten before the index knows of their ends."""
    patch.setattr(DeadSet, "age", lambda self: self.__init__())


def forget_those_that_died_last(patch: pytest.MonkeyPatch) -> None:
    """R8: with the old dead the young ones are forgotten, whose ends the index may not know."""

    def all_of_them(self: DeadSet, upto_seq: int) -> None:
        self._old.drop_upto(upto_seq)
        self._young.drop_upto(upto_seq)

    patch.setattr(DeadSet, "forget_old", all_of_them)


def give_out_what_was_cancelled(patch: pytest.MonkeyPatch) -> None:
    """A cancelled entry stays where it is, and its subscriptions are not done with it."""
    patch.setattr(TopicRecords, "_decide_cancelled", lambda self, record: None)


def answer_a_reschedule_and_do_nothing(patch: pytest.MonkeyPatch) -> None:
    """A rescheduled entry is due when it was due before."""

    def unmoved(version: Put, entry: Entry) -> Entry:
        return msgspec.structs.replace(as_entry(version, entry), fire_at_ms=entry.fire_at_ms)

    patch.setattr(finding, "as_entry", unmoved)


def forget_whose_entry_it_was(patch: pytest.MonkeyPatch) -> None:
    """A rescheduled entry has another id."""
    patch.setattr(
        finding,
        "as_entry",
        lambda version, entry: as_entry(msgspec.structs.replace(version, origin=None), entry),
    )


def keep_no_end_of_an_entry(patch: pytest.MonkeyPatch) -> None:
    """A cancelled entry is not found any more."""
    patch.setattr(TopicRecords, "_end", lambda self, entry, event, at_ms: None)


def give_out_after_the_disk_failed(patch: pytest.MonkeyPatch) -> None:
    """R2: consumers get entries whose places in memory the disk may not have."""
    patch.setattr(EntryReader, "stopped", property(lambda self: False))


def take_the_last_due_first(patch: pytest.MonkeyPatch) -> None:
    """Due messages go out in the order of their fire instants, those of one order key one after another."""
    pop_due = Horizon.pop_due

    def reversed_(self: Horizon, now_ms: int, limit: int) -> Due:
        due = pop_due(self, now_ms, limit)
        return Due(due.fire_at_ms[::-1].copy(), due.seqs[::-1].copy(), due.lanes[::-1].copy())

    patch.setattr(Horizon, "pop_due", reversed_)


def say_other_sizes_than_the_records_do(patch: pytest.MonkeyPatch) -> None:
    """Live is replay: a burst says of its entries what a restart does not find in their records."""
    patch.setattr("tarry.engine.dispatch.burst.added_bytes", lambda topic: 0)


def forget_who_published(patch: pytest.MonkeyPatch) -> None:
    """Live is replay: a start does not hear of the sequence numbers that entries came with."""
    patch.setattr("tarry.engine.records.changes.sent_with", lambda entry: ())


INDEXED = {"index": 25, "work": 20}


def forget_what_is_paused(patch: pytest.MonkeyPatch) -> None:
    """ADR 0027: messages of a paused place go out."""
    patch.setattr(Pauses, "at", lambda self, namespace, destination, owner: None)


def let_a_paused_message_go(patch: pytest.MonkeyPatch) -> None:
    """ADR 0027: a message that is paused itself goes out."""
    patch.setattr(pausing, "PAUSED_MS", 0)


def leave_the_dead_letter(patch: pytest.MonkeyPatch) -> None:
    """ADR 0030: whoever reads dead letters gets that of a message which is on its way again."""
    content = Retries._content

    def without(self: Retries, *about: Any) -> Any:
        return content(self, *about)._replace(withdrawal=[])

    patch.setattr(Retries, "_content", without)


def hit_what_came_after_the_command(patch: pytest.MonkeyPatch) -> None:
    """ADR 0031: a command by filter acts on messages that were accepted after it was asked for."""
    patch.setattr(CommandWalk, "_is_meant", lambda self, view, command: True)


def say_done_and_do_nothing(patch: pytest.MonkeyPatch) -> None:
    """ADR 0031: a command by filter is done, and has done nothing."""
    patch.setattr(CommandWalk, "_act", lambda self, id_, command: settled(True))


def take_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """ADR 0025: occurrences go out that were not due when their repeat was removed."""
    patch.setattr(Repeating, "taken_back", lambda self, held, now_ms: ([], held.progress))


def pass_over_missed_occurrences(patch: pytest.MonkeyPatch) -> None:
    """ADR 0025: occurrences that were missed do not come, although all of them are wanted."""

    def latest(self: Occurrences, at_ms: int, before_ms: int) -> int | None:
        return self._bounded(self._rhythm.next_ms(at_ms, before_ms - 1))

    patch.setattr(Occurrences, "after_missed", latest)


SABOTAGES: dict[Callable[[pytest.MonkeyPatch], None], dict[str, int]] = {
    never_sync: {},
    never_sync_the_folder: {},
    show_entries_when_enqueued: {},
    fire_a_millisecond_early: {},
    forget_who_is_dead: {},
    send_without_a_claim: {},
    send_before_the_claim_is_durable: {
        "crash": 20,
        "together": 60,
        "tick": 90,
        "wait": 30,
        "verdict": 2,
        "commit": 12,
    },
    forget_uncertainty: {"verdict": 30, "command": 40},
    ignore_idempotency_keys: {},
    skip_a_record_at_replay: {},
    reclaim_what_is_needed: {},
    lose_acknowledgements: {
        "ack": 60,
        "flow": 40,
        "attach": 20,
        "work": 60,
        "commit": 50,
        "crash": 6,
        "publish": 30,
        "subscribe": 10,
    },
    forget_what_is_acknowledged_in_part: {
        "ack_part": 30,
        "nack": 20,
        "flow": 20,
        "attach": 20,
        "publish": 20,
    },
    begin_a_batch_without_its_files: {"adopt": 20},
    begin_a_batch_before_it_is_adopted: {"adopt": 30, "index": 30, "wait": 60, "commit": 6, "work": 30},
    deliver_delayed_entries_at_once: {},
    fire_twice: {},
    keep_siblings: {},
    begin_without_the_leader: {"together": 12},
    forget_whom_it_leads: {"together": 12},
    keep_the_tail: INDEXED,
    let_go_of_the_tail_too_early: INDEXED,
    mark_past_what_enters: {**INDEXED, "together": 6},
    begin_above_the_watermark: {**INDEXED, "crash": 8},
    forget_the_dead_at_once: INDEXED,
    forget_those_that_died_last: {**INDEXED, "command": 60, "wait": 60, "tick": 60},
    give_out_what_was_cancelled: {"recall": 20, "publish": 20},
    give_out_after_the_disk_failed: {"fault": 12, "attach": 20, "publish": 20},
    take_the_last_due_first: {"schedule": 30, "verdict": 20},
    say_other_sizes_than_the_records_do: {},
    forget_who_published: {"publish": 30},
    answer_a_reschedule_and_do_nothing: {
        "reschedule": 30,
        "publish": 30,
        "wait": 60,
        "subscribe": 10,
        "attach": 20,
        "flow": 20,
    },
    forget_whose_entry_it_was: {"reschedule": 20, "inquire": 20, "publish": 20, "look": 10},
    forget_what_is_paused: {"pause_place": 20},
    let_a_paused_message_go: {"pause": 30},
    leave_the_dead_letter: {"retry": 30, "verdict": 60, "attach": 20, "flow": 20},
    hit_what_came_after_the_command: {"ask_bulk": 20, "follow_bulk": 40, "schedule": 30, "commit": 60},
    say_done_and_do_nothing: {"ask_bulk": 20, "follow_bulk": 60, "schedule": 30, "commit": 60},
    take_nothing_back: {"repeat": 20, "remove_repeat": 30, "pause_repeat": 20, "wait": 30},
    pass_over_missed_occurrences: {"repeat": 20, "wait": 40, "crash": 6},
    keep_no_end_of_an_entry: {"recall": 20, "inquire": 20, "publish": 20, "look": 10},
}
"""The broken rule, and the weights with which a run notices it soon."""


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_checker_notices(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    focus = {**OPERATIONS, **dict.fromkeys(BESIDE, 0.0), **FAULTS, **SABOTAGES[sabotage]}
    for seed in range(BOUND):
        try:
            run_seed(seed, focus=focus)
        except Failure as failure:
            # It must be the checker that notices, or recovery, or a reader whose record is gone, and not some accident.
            if not isinstance(failure.__cause__, Violation | TarryError | BodyNotAtHand):
                raise
            return
    pytest.fail(f"nobody noticed in {BOUND} seeds: {sabotage.__doc__}")
