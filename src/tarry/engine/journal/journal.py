"""The journal: records go in, and the state that they add up to is kept here.

A record is decided when it is enqueued (`decide`), on the engine's one thread: from then on a killed version
does not fire (R11). It takes effect when it is durable (`_effect`): it enters the wheel, becomes
visible in a topic, is answered (R2). Replaying the ledger does both, so that a restart arrives at the same state.

Doors do not know of it; the engine, the dispatcher and the topics write through it.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.clock import SteadyClock
from tarry.core.errors import Damage, NotFound, TarryError, Unavailable
from tarry.core.holder import Holder
from tarry.core.ids import Ids
from tarry.core.limits import MINUTE_MS, NEVER_MS, STRANDED_MS
from tarry.core.names import TOPIC_SCHEME
from tarry.core.policy import Policy
from tarry.core.sets.deadset import DeadSet
from tarry.core.sets.seqset import BLOCK_BITS
from tarry.core.tracing import Tracer
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.isolation import Isolation
from tarry.engine.namespaces.catalogue import Catalogue
from tarry.engine.namespaces.policies import Policies
from tarry.engine.records.changes import Change, FiredVersions, NewEntries, Single, Versions, Written, written
from tarry.engine.records.versions import ended_row, past_due, row_of, scheme_of
from tarry.engine.settings import EngineSettings
from tarry.engine.state.aside import Aside
from tarry.engine.state.batches import Batch, Batches
from tarry.engine.state.groups import Groups
from tarry.engine.state.names import Names
from tarry.engine.state.pending import Pending
from tarry.engine.state.repeat_state import SORTS, RepeatState
from tarry.engine.state.subjects import Subjects
from tarry.engine.topics.consumer import Received
from tarry.engine.topics.entries import received_entries
from tarry.engine.topics.entry_batch import EntryBatch
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.topics.retention import Retention
from tarry.engine.topics.topic import Topic
from tarry.engine.topics.topics import Topics
from tarry.index.index import Index
from tarry.ledger.frame import Unit
from tarry.ledger.ledger import Ledger
from tarry.ledger.read_record import PutHead, read_entries
from tarry.ledger.record import (
    FIRST_BATCH_SEQ,
    Adopt,
    CancelBatch,
    Catalogued,
    Claim,
    Entry,
    Finalise,
    Key,
    Kind,
    Lower,
    Mark,
    PolicySet,
    Put,
    Record,
)
from tarry.ledger.watermark import Watermark
from tarry.registry.registry import Ahead, Flush, LiveRow, Meta, Registry, Relied, RepeatRow

log = logging.getLogger(__name__)

Done = Callable[[TarryError | None], None]

MARKED_WITHIN_MS: Final = 2 * MINUTE_MS
"""A server that sends writes a mark at least so often: once a second, and once a minute where an attempt holds the watermark
back until its message is carried (R9)."""


Shown = tuple[Topic, int] | Batch
"""A topic with the id of its last entry, or a batch, that shows once a unit is durable."""

FEW: Final = 16
"""Records of a unit that are quicker to look at one by one."""


class Journal:
    """Appends records and keeps what they add up to."""

    def __init__(
        self,
        ledger: Ledger,
        registry: Registry,
        index: Index,
        clock: SteadyClock,
        ids: Ids,
        broker: Policy,
        settings: EngineSettings,
        reading: Offload,
        namespaces: Mapping[str, Policy] | None = None,
        dead_block_bits: int = BLOCK_BITS,
    ) -> None:
        self.ledger = ledger
        self.registry = registry
        self.clock = clock
        self.ids = ids
        self.dead = DeadSet(dead_block_bits)
        """Seqs of versions that will not fire: replaced or finalised."""
        self.aside = Aside()
        """Records that this start, or an earlier one, was told to go on without."""
        self.horizon = Horizon(index, reading, self.dead, settings.lead_ms, settings.wheel_entries)
        self.batches = Batches(self.dead)
        self.horizon.unindexed = lambda cursor: self.batches.unindexed(cursor, self._effective_seq)
        self.bodies = Bodies(ledger, self.horizon, reading, clock)
        self.sizes = BodySizes()
        self.readahead = Readahead(self.bodies, self.horizon, self.sizes)
        self.recent_entries = RecentEntries()
        self.policies = Policies(broker, namespaces)
        self.topics = Topics(self)
        self.readahead.aside = self.aside.seqs
        self.readahead.prepares = self.topics.records.prepares
        self.catalogue = Catalogue(self)
        self.repeats = RepeatState(registry)
        self.retention = Retention(self)
        self.pending = Pending(registry)
        self.counters: Counter[str] = Counter()
        self.isolation = Isolation(self.counters)
        """Tells errors about one message from faults."""
        self.stranded: Counter[str] = Counter()
        """By scheme: messages that wait for an outlet which a start did not have (`tarry.engine.flights.stranded`)."""
        self.passed = Watermark()
        """The versions that are dead by their keys: the watermark, and its ceilings."""
        self.marked_at_ms = 0
        """The clock at the last mark."""
        self.ahead = Ahead()
        """Versions that may have been handed out by a clock that was ahead."""
        self.recovered_seq = 0
        """The head at the last recovery: up to here it is not known which overdue messages were handed out."""
        self.recovered_at_ms = 0
        self.groups = Groups(registry, self.bodies, self.dead)
        self.subjects = Subjects(registry)
        self.names = Names(registry)
        self.relied = Relied()
        """The bounds of the records that were reclaimed because the index has them."""
        self.replayed_from = 1
        """The first replayed seq. Ends below it are known only to the index."""
        self._entering: deque[tuple[int, Unit, list[Shown]]] = deque()
        """Units that are not durable yet, each with its last seq, and what it shows then."""
        self._on_durable: list[tuple[int, Done]] = []
        self._effective_seq = 0
        """Everything up to here is durable and has taken effect."""
        self.on_ended: Callable[[int], None] | None = None
        """Told of each version that a record of its own has ended."""
        self.tracer: Tracer | None = None
        """Told of what is accepted and sent, if anybody is."""
        self.on_fault: Callable[[Exception], None] | None = None
        """Told when a record is enqueued that could not be decided: only a new start mends that."""

    # Writing

    def append(self, records: Written | Sequence[Record], done: Done, *, essential: bool = False) -> int:
        """Enqueue a unit and decide it; gives its first seq. Raises `Unavailable`."""
        new = records if isinstance(records, Written) else written(records)
        unit = new.unit

        def durable(error: TarryError | None) -> None:
            if error is None:
                self._effect(first, unit, shown)
            self.bodies.written(first, unit, new.recent if error is None else ())
            done(error)
            self._tell_durable(first + unit.records - 1, error)

        shown: list[Shown] = []
        first = self.ledger.append_unit(unit, durable, essential=essential)
        self._entering.append((first + unit.records - 1, unit, shown))
        try:
            self.sizes.add_unit(first, unit)
            self.bodies.enqueue(first, unit)
            shown += self.decide(first, new.changes)
        except Exception as error:
            self._tell_fault(error)
            raise
        return first

    def _tell_fault(self, error: Exception) -> None:
        """The ledger has a record, and what is in memory does not follow it any more."""
        self.isolation.fault = error
        if self.on_fault is not None:
            self.on_fault(error)

    def check_disk(self) -> None:
        """Raise `Unavailable` once the disk has failed: memory may hold more than it, and nothing of it is shown."""
        if self.ledger.failed is not None:
            raise Unavailable(f"the disk failed ({self.ledger.failed})")

    def when_durable(self, seq: int, callback: Done) -> None:
        """Call back once everything up to a seq is durable and has taken effect, or never will be."""
        if self._effective_seq >= seq:
            callback(None)
        elif self.ledger.failed is not None:
            callback(Unavailable(f"the disk failed ({self.ledger.failed})"))
        else:
            self._on_durable.append((seq, callback))

    def lowest_entering(self) -> Key | None:
        """The lowest key of what is not in the wheel, the tail or the view yet: the watermark stays below it (R9)."""
        lows = [unit.lowest_fire_ms for _, unit, _ in self._entering]
        lows += [
            batch.floor_ms for _, _, shown in self._entering for batch in shown if isinstance(batch, Batch)
        ]
        lows += [batch.floor_ms for batch in self.horizon.joining]
        return min((Key(low, 0) for low in lows if low), default=None)

    def _tell_durable(self, last_seq: int, error: TarryError | None) -> None:
        while self._entering and self._entering[0][0] <= last_seq:
            self._entering.popleft()
        if error is None:
            self._effective_seq = last_seq
        while self._on_durable and (error is not None or self._on_durable[0][0] <= last_seq):
            self._on_durable.pop(0)[1](error)

    @property
    def watermark(self) -> Key:
        """The key below which no new version may be (R4)."""
        return self.passed.key

    @property
    def floor_ms(self) -> int:
        """The first instant at which a new version may fire (R4)."""
        return self.passed.key.fire_at_ms

    @property
    def dirty(self) -> bool:
        """Whether the registry lacks anything."""
        meta = self.registry.meta
        relies = meta is not None and meta.relied != self.relied
        relies |= meta is not None and meta.set_aside != sorted(self.aside.seqs)
        changed = self.topics.records.changed or self.batches.changed or relies
        return changed or self.pending.changed or self.registry.dirty

    # Deciding: the state changes when a unit is enqueued or replayed

    def decide(self, first_seq: int, changes: Sequence[Change]) -> list[Shown]:
        """Let a unit change the state; gives the topics and batches of which it shows something once it is durable.

        By then something else may have their names: its effect is for these very ones.
        """
        shown: list[Shown] = []
        for change in changes:
            match change:
                case Versions():
                    for holder, count in change.accepted.items():
                        self.pending.change(holder, count)
                        self.counters["accepted"] += count
                    for place, put in change.known:
                        self._decide_put(first_seq + place, put)
                case NewEntries():
                    shown.append((self.topics.records.add(first_seq, change), change.last_id))
                case FiredVersions():
                    self._decide_fired(change)
                case Single():
                    shown += self._decide_single(first_seq + change.place, change.record)
        return shown

    def _decide_single(self, seq: int, record: Record) -> Iterator[Shown]:
        match record:
            case Finalise():
                self._decide_finalise(record)
            case Entry():
                if (topic := self.topics.records.decide(seq, record)) is not None:
                    yield topic, record.entry_id
                if record.carries is not None:
                    self._kill(record.carries.seq)
            case Claim():
                self.groups.claimed(record)
            case Mark() | Lower():
                self.passed = self.passed.after(seq, record)
                if isinstance(record, Lower):
                    self._was_ahead(seq)
                    self.marked_at_ms = record.lowered_at_ms
                else:
                    self.marked_at_ms = record.marked_at_ms
            case PolicySet():
                self._decide_policy(record)
            case Adopt() | CancelBatch():
                self._decide_batch(seq, record)
                if isinstance(record, Adopt) and record.name in self.batches.by_name:
                    yield self.batches.by_name[record.name]
            case Catalogued():
                (self.repeats if record.sort in SORTS else self.catalogue).decide(record)
            case _:
                self.topics.records.decide(seq, record)

    def _decide_put(self, seq: int, put: Put) -> None:
        current = Key(put.fire_at_ms, seq)
        origin = put.origin or current
        if put.fire_at_ms == STRANDED_MS:
            self.stranded[scheme_of(put.destination)] += 1
        if put.kills is not None:
            self._strand_no_more(put.kills, put.destination)
            self._kill(put.kills.seq)
            if origin.seq >= FIRST_BATCH_SEQ and put.kills == origin:
                self.batches.moved(origin.seq, put.namespace, put.owner)
        holder = Holder(put.namespace, put.owner)
        if put.origin is None:
            if put.idempotency_key is not None:
                self.registry.idempotency.put(
                    (*holder, put.idempotency_key),
                    RepeatRow(put.fingerprint, origin, put.due_at_ms, past_due(put), put.accepted_at_ms),
                    (put.accepted_at_ms,),
                )
            if put.subject is not None:
                self.subjects.add(put.subject, origin)
            if put.name is not None:
                self.names.give(put.namespace, put.name, origin)
        if put.origin is not None or put.listed:
            due_at_ms = NEVER_MS if put.due_at_ms is None else put.due_at_ms
            searched = (put.owner if put.listed else None, due_at_ms)
            self.registry.live.put((origin.seq,), LiveRow(current, origin), searched)
        if put.group is not None:
            self.groups.join(put, origin, current)
        if put.leads is not None and put.origin is None:
            self.groups.lead(holder, put.leads, origin)

    def _decide_finalise(self, record: Finalise) -> None:
        self.counters[record.outcome] += 1
        self._strand_no_more(record.kills, record.destination)
        # Of a version that could not be read not even the owner is known.
        holder = Holder(record.namespace, record.owner) if record.destination else None
        if record.outcome == "sent" and record.group is not None and holder is not None:
            self.groups.sent(holder, record.group, record.origin, record.finalised_at_ms)
        self._kill(record.kills.seq)
        self._end(record.kills, record.origin, holder, record.group, record.listed)
        if record.subject is not None:
            self.subjects.remove(record.subject, record.origin)
        ended = row_of(record)
        self.registry.finalised.put(
            (record.origin.seq,), ended, (record.owner if record.listed else None, record.finalised_at_ms)
        )

    def _decide_fired(self, fired: FiredVersions) -> None:
        seqs = fired.seqs
        self.dead.add_many(seqs)
        self.bodies.forget_many(seqs)
        self.counters["sent"] += len(seqs)
        of_the_ledger = self.pending.scoped_from <= seqs.min() and seqs.max() < FIRST_BATCH_SEQ
        if fired.holders is not None and of_the_ledger:
            for holder, count in fired.holders.items():
                self.pending.change(holder, -count)
        else:
            for head, key, at_ms in fired.ended():
                origin = head.origin or key
                holder = Holder(head.namespace, head.owner)
                if head.group is not None:
                    self.groups.sent(holder, head.group, origin, at_ms)
                self._end(key, origin, holder, head.group, head.listed)
        self.registry.defer_ended(lambda: [ended_row(*one) for one in fired.ended()])

    def _end(self, kills: Key, origin: Key, holder: Holder | None, group: str | None, listed: bool) -> None:
        if holder is not None:
            self.pending.change(self._counted_under(origin.seq, *holder, apart=kills != origin), -1)
        if listed or kills != origin:
            self.registry.live.remove(origin.seq)
        if group is not None and holder is not None:
            self.groups.leave(holder, group, origin)
        self.groups.leader_ended(origin)

    def _strand_no_more(self, killed: Key, destination: str) -> None:
        """A version was killed: if it was stranded, there is one less."""
        if killed.fire_at_ms == STRANDED_MS and self.stranded[scheme_of(destination)] > 0:
            self.stranded[scheme_of(destination)] -= 1
            # Nobody is asked to wait for nothing.
            self.stranded = +self.stranded

    def _counted_under(self, origin_seq: int, namespace: str, owner: str, *, apart: bool) -> Holder:
        """The holder under whom a message was counted that has ended; its batch, if it is of one, hears of that."""
        if origin_seq >= FIRST_BATCH_SEQ:
            return self.batches.ended(origin_seq, namespace, owner, apart=apart)
        return self.pending.holder(origin_seq, namespace, owner)

    def _kill(self, seq: int) -> None:
        self.dead.add(seq)
        self.bodies.forget(seq)
        self.readahead.forget(seq)

    def _decide_batch(self, seq: int, record: Adopt | CancelBatch) -> None:
        for holder, change in self.batches.decide(seq, record).items():
            self.counters["accepted" if change > 0 else "cancelled"] += abs(change)
            self.pending.change(holder, change)

    def _decide_policy(self, record: PolicySet) -> None:
        policy = None if record.policy is None else msgspec.convert(record.policy, Policy)
        self.policies.apply(record.scope, record.name, policy)
        if record.policy is None:
            self.registry.policies.remove(record.scope, record.name)
        else:
            self.registry.policies.put((record.scope, record.name), record.policy)

    # Effects: what follows once a unit is durable

    def _effect(self, first_seq: int, unit: Unit, shown: Sequence[Shown]) -> None:
        """Let the wheel have the versions and delayed entries of a unit, and show what it has for topics and batches (R2)."""
        if unit.records <= FEW:
            for seq, (kind, _, lane, _, _, fire_at_ms, kills_seq, _) in enumerate(unit.rows(), first_seq):
                if fire_at_ms:
                    self.horizon.add(fire_at_ms, seq, lane)
                elif kind == Kind.FINALISE:
                    self._tell_ended(kills_seq)
        else:
            self.horizon.add_many(*unit.due(first_seq))
            fixed = unit.fixed
            for kills_seq in fixed["kills_seq"][fixed["kind"] == Kind.FINALISE].tolist():
                self._tell_ended(kills_seq)
        for one in shown:
            if isinstance(one, Batch):
                self.horizon.add_batch(one)
            else:
                self.topics.records.appended(*one)

    def _tell_ended(self, seq: int) -> None:
        if self.on_ended is not None:
            self.on_ended(seq)

    # Entries as consumers get them

    def entries(self, seqs: NDArray[np.int64]) -> Sequence[Received | None]:
        """Topic entries as consumers get them the first time; None for one that is gone or damaged."""
        fresh = self.recent_entries.find(seqs)
        if isinstance(fresh, EntryBatch):
            return fresh
        found = list(fresh)
        missing = [at for at, entry in enumerate(found) if entry is None]
        if missing:
            bodies = self.entry_bodies(seqs[missing])
            there = [(at, body) for at, body in zip(missing, bodies, strict=True) if body is not None]
            try:
                received: Sequence[Received | None] = self._received([body for _, body in there])
            except Exception:  # noqa: BLE001 - one of them cannot be shown, and the others can
                received = [self._received_or_none(int(seqs[at]), body) for at, body in there]
            for (at, _), entry in zip(there, received, strict=True):
                found[at] = entry
        return found

    def _received(self, bodies: list[bytes]) -> list[Received]:
        return received_entries(read_entries(bodies), self.ids)

    def _received_or_none(self, seq: int, body: bytes) -> Received | None:
        """An entry, or None for one that cannot be shown: it is passed over, as a damaged one is."""
        try:
            return self._received([body])[0]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this entry
            self.isolation.reason(seq, error, "was read")
            return None

    def entry_bodies(self, seqs: NDArray[np.int64]) -> list[bytes | None]:
        """The bodies of topic entries; None for one that is gone or damaged."""
        found: list[bytes | None] = []
        aside = self.aside.seqs
        if aside:
            seqs = np.where(np.isin(seqs, list(aside)), 0, seqs)
        for body in self.bodies.entries(seqs):
            if isinstance(body, Damage):
                self.counters["damaged"] += 1
                log.error("an entry cannot be read and is passed over: %s", body)
            found.append(body if isinstance(body, bytes) else None)
        return found

    # The registry

    def cut(self) -> Flush:
        """A consistent cut of the state for the registry, at the seq enqueued last."""
        self.topics.records.save(self.registry)
        self.pending.save(self.registry)
        self.batches.save(self.registry)
        meta = Meta(
            self.ledger.ledger_id,
            self.ledger.next_seq - 1,
            self.watermark,
            dict(self.counters),
            self.batches.next_seq,
            self.relied,
            self.sizes.saved(),
            dict(self.stranded),
            list(self.passed.ceilings),
            self.marked_at_ms,
            self.ahead,
            sorted(self.aside.seqs),
            self.pending.scoped_from,
        )
        return self.registry.begin(meta)

    def recovered(self, now_ms: int) -> None:
        """The state is that of the ledger's head."""
        self.recovered_seq = self._effective_seq = self.ledger.durable_seq
        self.recovered_at_ms = now_ms
        if now_ms < self.marked_at_ms:
            # The clock was set back between two lives.
            self._was_ahead(self.recovered_seq)

    def _was_ahead(self, upto_seq: int) -> None:
        """The clock was ahead up to a seq: versions that are not due now may have been handed out."""
        self.ahead = Ahead(max(self.ahead.at_ms, self.marked_at_ms + MARKED_WITHIN_MS), upto_seq)

    # Looking up

    def current(self, origin: Key) -> Key:
        """The present version of a message that is not known to be finalised."""
        live = self.registry.live.get(origin.seq)
        if live is None:
            return origin
        if live.origin != origin:
            raise NotFound("there is no such message")
        return live.current

    def may_have_been_sent(self, key: Key, put: Put | PutHead) -> bool:
        """Whether a version was overdue at the last recovery: then it may have been handed out before (R11).

        By the clock of now, or by one that was ahead while the version was there.
        """
        if put.destination.startswith(TOPIC_SCHEME):
            return False
        accepted_seq = self.batches.accepted_by(key.seq)
        if key.fire_at_ms <= self.recovered_at_ms:
            return accepted_seq <= self.recovered_seq
        return key.fire_at_ms <= self.ahead.at_ms and accepted_seq <= min(self.ahead.seq, self.recovered_seq)
