"""The state: what the records add up to, whether they were just enqueued or are replayed.

Every change goes through `decide`, a unit at a time, on the engine's one thread. It is decided when it is enqueued: from then
on a killed version does not fire (R11). What the decision shows to others follows once the unit is durable (R2): the
functions that `decide` gives. A replay ignores these, and arrives at the same state.

Nothing here writes records: that is the journal's (`tarry.engine.journal.journal`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from tarry.core.errors import NotFound
from tarry.core.limits import HELD_MS, MINUTE_MS, NEVER_MS, PAUSED_MS, STRANDED_MS
from tarry.core.names import TOPIC_SCHEME
from tarry.core.rules.policy import Policy
from tarry.core.sets.deadset import DeadSet
from tarry.core.tenants.holder import Holder
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.due.horizon import Horizon
from tarry.engine.journal.journal import Effect
from tarry.engine.namespaces.catalogue import Catalogue
from tarry.engine.namespaces.catalogue_table import CatalogueTable
from tarry.engine.namespaces.command_book import CommandBook
from tarry.engine.namespaces.pauses import Pauses
from tarry.engine.namespaces.policies import Policies
from tarry.engine.namespaces.repeat_state import RepeatState
from tarry.engine.records.changes import Change, FiredVersions, NewEntries, Single, Versions
from tarry.engine.records.versions import ended_row, past_due, row_of, scheme_of
from tarry.engine.state.answered import Answered
from tarry.engine.state.aside import Aside
from tarry.engine.state.batches import Batches
from tarry.engine.state.groups import Groups
from tarry.engine.state.names import Names
from tarry.engine.state.pending import Pending, Subjects
from tarry.engine.state.reliance import Reliance
from tarry.engine.topics.topic_records import TopicRecords
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import (
    FIRST_BATCH_SEQ,
    Adopt,
    CancelBatch,
    Catalogued,
    Claim,
    Entry,
    Finalise,
    Key,
    Lower,
    Mark,
    PolicySet,
    Put,
    Record,
)
from tarry.ledger.watermark import Watermark
from tarry.registry.registry import Ahead, Flush, LiveRow, Meta, Registry, RepeatRow

MARKED_WITHIN_MS: Final = 2 * MINUTE_MS
"""A server that sends writes a mark at least so often: once a second, and once a minute where an attempt holds the watermark
back until its message is carried (R9)."""


class EngineState:
    """The state of the engine; each part of it is a module of this room, or of one below."""

    def __init__(
        self,
        *,
        registry: Registry,
        ledger_id: bytes,
        dead: DeadSet,
        aside: Aside,
        counters: "Counter[str]",
        policies: Policies,
        catalogue: Catalogue,
        repeats: RepeatState,
        topics: TopicRecords,
        batches: Batches,
        reliance: Reliance,
        horizon: Horizon,
        bodies: Bodies,
        sizes: BodySizes,
        readahead: Readahead,
    ) -> None:
        self.registry = registry
        self.dead = dead
        """Seqs of versions that will not fire: replaced or finalised."""
        self.aside = aside
        """Records that this start, or an earlier one, was told to go on without."""
        self.counters = counters
        self.policies = policies
        self.catalogue = catalogue
        self.repeats = repeats
        self.pauses = Pauses()
        self.command_book = CommandBook()
        self._table = CatalogueTable(registry, catalogue, repeats, self.pauses, self.command_book)
        self.topics = topics
        self.batches = batches
        self.reliance = reliance
        """The bounds of the records that were reclaimed because the index has them."""
        self.groups = Groups(registry, bodies, dead)
        self.subjects = Subjects(registry)
        self.names = Names(registry)
        self.answered = Answered(registry)
        self.pending = Pending(registry)
        self.stranded: Counter[str] = Counter()
        """By scheme: messages that wait for an outlet which a start did not have (`tarry.engine.flights.stranded`)."""
        self.paused: Counter[str] = Counter()
        """Paused messages: by a command on the `message` itself, or due and held by their `place`."""
        self.passed = Watermark()
        """The versions that are dead by their keys: the watermark, and its ceilings."""
        self.marked_at_ms = 0
        """The clock at the last mark."""
        self.ahead = Ahead()
        """Versions that may have been handed out by a clock that was ahead."""
        self.recovered_seq = 0
        """The head at the last recovery: up to here it is not known which overdue messages were handed out."""
        self.recovered_at_ms = 0
        self.replayed_from = 1
        """The first replayed seq. Ends below it are known only to the index."""
        self._ledger_id = ledger_id
        self._horizon = horizon
        self._bodies = bodies
        self._sizes = sizes
        self._readahead = readahead

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
        relies = meta is not None and meta.relied != self.reliance.relied
        relies |= meta is not None and meta.set_aside != sorted(self.aside.seqs)
        changed = self.topics.changed or self.batches.changed or relies
        return changed or self.pending.changed or self.registry.dirty

    # Deciding

    def decide(self, first_seq: int, changes: Sequence[Change]) -> list[Effect]:
        """Let a unit change the state; gives what shows it to others once it is durable.

        By then something else may have the name of a topic or a batch: an effect is for the very one that was decided.
        """
        effects: list[Effect] = []
        for change in changes:
            match change:
                case Versions():
                    for holder, count in change.accepted.items():
                        self.pending.change(holder, count)
                        self.counters["accepted"] += count
                    for place, put in change.known:
                        self._decide_put(first_seq + place, put)
                    for lines in change.keyed:
                        self.answered.put_lines(first_seq, lines)
                case NewEntries():
                    topic = self.topics.add(first_seq, change)
                    effects.append(partial(self.topics.appended, topic, change.last_id))
                case FiredVersions():
                    self._decide_fired(change)
                case Single():
                    effects += self._decide_single(first_seq + change.place, change.record)
        return effects

    def _decide_single(self, seq: int, record: Record) -> Iterator[Effect]:
        match record:
            case Finalise():
                self._decide_finalise(record)
            case Entry():
                if (topic := self.topics.decide(seq, record)) is not None:
                    yield partial(self.topics.appended, topic, record.entry_id)
                if record.carries is not None:
                    self._kill(record.carries.seq)
                    self._count_paused(record.carries.fire_at_ms, -1)
                    self._count_paused(record.fire_at_ms, 1)
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
                    yield partial(self._horizon.add_batch, self.batches.by_name[record.name])
            case Catalogued():
                self._table.decide(record)
            case _:
                self.topics.decide(seq, record)

    def _decide_put(self, seq: int, put: Put) -> None:
        current = Key(put.fire_at_ms, seq)
        origin = put.origin or current
        if put.fire_at_ms == STRANDED_MS:
            self.stranded[scheme_of(put.destination)] += 1
        self._count_paused(put.fire_at_ms, 1)
        if put.kills is not None:
            self._strand_no_more(put.kills, put.destination)
            self._kill(put.kills.seq)
            if origin.seq >= FIRST_BATCH_SEQ and put.kills == origin:
                self.batches.moved(origin.seq, put.namespace, put.owner)
        holder = Holder(put.namespace, put.owner)
        if put.origin is not None and put.kills is None:
            self._revive(put, put.origin)
        if put.origin is None:
            if put.idempotency_key is not None:
                self.answered.put(
                    holder,
                    put.idempotency_key,
                    RepeatRow(put.fingerprint, origin, put.due_at_ms, past_due(put), put.accepted_at_ms),
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

    def _revive(self, put: Put, origin: Key) -> None:
        """A message that has failed is retried: it has not ended any more. Its holder's count has it again already."""
        self.registry.finalised.remove(origin.seq)
        if origin.seq >= FIRST_BATCH_SEQ:
            self.batches.revived(origin.seq, put.namespace, put.owner)
        if put.subject is not None:
            self.subjects.add(put.subject, origin)

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
        self._bodies.forget_many(seqs)
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
        """A version was killed: if it was stranded or paused, there is one less."""
        self._count_paused(killed.fire_at_ms, -1)
        if killed.fire_at_ms == STRANDED_MS and self.stranded[scheme_of(destination)] > 0:
            self.stranded[scheme_of(destination)] -= 1
            # Nobody is asked to wait for nothing.
            self.stranded = +self.stranded

    def _count_paused(self, fire_at_ms: int, by: int) -> None:
        if fire_at_ms in (PAUSED_MS, HELD_MS):
            kind = "message" if fire_at_ms == PAUSED_MS else "place"
            self.paused[kind] = max(0, self.paused[kind] + by)

    def _counted_under(self, origin_seq: int, namespace: str, owner: str, *, apart: bool) -> Holder:
        """The holder under whom an ended message was counted; its batch, if it has one, counts the end."""
        if origin_seq >= FIRST_BATCH_SEQ:
            return self.batches.ended(origin_seq, namespace, owner, apart=apart)
        return self.pending.holder(origin_seq, namespace, owner)

    def _kill(self, seq: int) -> None:
        self.dead.add(seq)
        self._bodies.forget(seq)
        self._readahead.forget(seq)

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

    # The registry

    def cut(self, last_seq: int) -> Flush:
        """A consistent cut of the state for the registry, at the seq enqueued last."""
        self.topics.save(self.registry)
        self.pending.save(self.registry)
        self.batches.save(self.registry)
        meta = Meta(
            self._ledger_id,
            last_seq,
            self.watermark,
            dict(self.counters),
            self.batches.next_seq,
            self.reliance.relied,
            self._sizes.saved(),
            dict(self.stranded),
            list(self.passed.ceilings),
            self.marked_at_ms,
            self.ahead,
            sorted(self.aside.seqs),
            self.pending.scoped_from,
            dict(self.paused),
        )
        return self.registry.begin(meta)

    def load(self) -> int:
        """Take over what the registry has; gives the seq that it has reached."""
        applied, meta = 0, self.registry.meta
        if meta is not None:
            applied = meta.applied_seq
            self.passed = Watermark(meta.watermark, tuple(meta.ceilings))
            self.marked_at_ms, self.ahead = meta.marked_at_ms, meta.ahead
            self.counters.update(meta.counters)
            self.reliance.relied = meta.relied
            self._sizes.load(meta.sizes)
            self.stranded.update(meta.stranded)
            self.paused.update(meta.paused)
            self.aside.seqs.update(meta.set_aside)
            self.aside.known = frozenset(meta.set_aside)
        self.topics.load(self.registry)
        self.batches.load(self.registry)
        self.groups.load()
        self._table.load()
        self.pending.load(self.registry)
        for (scope, name), policy in self.registry.policies.rows():
            self.policies.apply(scope, name, msgspec.convert(policy, Policy))
        return applied

    def recovered(self, durable_seq: int, now_ms: int) -> None:
        """The state is that of the ledger's head."""
        self.recovered_seq = durable_seq
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
