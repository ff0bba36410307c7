"""The journal: records go in, and the state that they add up to is kept here.

A record is decided when it is enqueued (`_decide`), on the engine's one thread: from then on a killed version
does not fire (R11). It takes effect when it is durable (`_effect`): it enters the wheel, becomes
visible in a topic, is answered (R2). Replaying the ledger does both, so that a restart arrives at the same state.

Doors do not know of it; the engine, the dispatcher and the topics write through it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.clock import Clock
from tarry.core.errors import Conflict, Damage, DelayTooLong, NotFound, TarryError, Unavailable
from tarry.core.ids import Ids
from tarry.core.limits import MAX_DELAY_MS
from tarry.core.names import TOPIC_SCHEME
from tarry.core.policy import Effective, Policy
from tarry.core.seqset import SeqSet
from tarry.engine.batches import Batches
from tarry.engine.burst import Burst
from tarry.engine.horizon import Horizon
from tarry.engine.planner import Plan
from tarry.engine.policies import Policies
from tarry.engine.sizes import SMALL_BYTES, Sizes
from tarry.engine.topics import Topics
from tarry.engine.versions import end_of, end_unread_member
from tarry.index.index import Index
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import (
    FIRST_BATCH_SEQ,
    Adopt,
    CancelBatch,
    Claim,
    Encoded,
    Entry,
    Finalise,
    Key,
    Kind,
    Mark,
    PolicySet,
    Put,
    PutHead,
    Record,
    decode,
    decode_head,
    decode_put,
    encode,
)
from tarry.registry.registry import Ended, Flush, Group, Live, Member, Meta, Registry, Repeat

log = logging.getLogger(__name__)

Done = Callable[[TarryError | None], None]

FRESH_BYTES = 32 * 1024 * 1024
"""Bodies of new topic entries kept in memory, so that consumers at the head need no disk."""


class Journal:
    """Appends records and keeps what they add up to."""

    def __init__(
        self,
        ledger: Ledger,
        registry: Registry,
        index: Index,
        clock: Clock,
        ids: Ids,
        broker: Policy,
        lead_ms: int,
    ) -> None:
        self.ledger = ledger
        self.registry = registry
        self.clock = clock
        self.ids = ids
        self.dead = SeqSet()
        """Seqs of versions that will not fire: replaced or finalised."""
        self.batches = Batches(self.dead)
        self.horizon = Horizon(index, self.dead, lead_ms)
        self.policies = Policies(broker)
        self.topics = Topics(self)
        self.owners: Counter[str] = Counter()
        """Pending messages by owner."""
        self.counters: Counter[str] = Counter()
        self.watermark = Key(0, 0)
        self.recovered_seq = 0
        """The head at the last recovery: up to here it is not known which overdue messages were handed out."""
        self.recovered_at_ms = 0
        self._changed_owners: set[str] = set()
        self._enqueued: dict[int, bytes] = {}
        """Bodies of records that are not durable yet and so cannot be read from the ledger."""
        self._fresh: dict[int, bytes] = {}
        self._fresh_bytes = 0
        self._on_durable: list[tuple[int, Done]] = []
        self._effective_seq = 0
        """Everything up to here is durable and has taken effect."""
        self.sizes = Sizes()
        self.on_fault: Callable[[Exception], None] | None = None
        """Told when a record is enqueued that could not be decided: only a new start mends that."""

    # Writing

    def append(self, records: Sequence[Record], done: Done, *, essential: bool = False) -> int:
        """Enqueue records as one unit and decide them; gives the first seq. Raises `Unavailable`."""
        unit = [encode(record) for record in records]

        def durable(error: TarryError | None) -> None:
            for at, record in enumerate(records):
                if error is None:
                    self._effect(first + at, record, unit[at])
                self._enqueued.pop(first + at, None)
            done(error)
            self._tell_durable(first + len(records) - 1, error)

        first = self.ledger.append(unit, durable, essential=essential)
        try:
            for at, record in enumerate(records):
                self.sizes.add(first + at, len(unit[at].body))
                self._enqueued[first + at] = unit[at].body
                self._decide(first + at, record)
        except Exception as error:
            # The ledger has it, and what is in memory does not follow it any more.
            if self.on_fault is not None:
                self.on_fault(error)
            raise
        return first

    def when_durable(self, seq: int, callback: Done) -> None:
        """Call back once everything up to a seq is durable and has taken effect, or never will be."""
        if self._effective_seq >= seq:
            callback(None)
        elif self.ledger.failed is not None:
            callback(Unavailable(f"the disk failed ({self.ledger.failed})"))
        else:
            self._on_durable.append((seq, callback))

    def _tell_durable(self, last_seq: int, error: TarryError | None) -> None:
        if error is None:
            self._effective_seq = last_seq
        while self._on_durable and (error is not None or self._on_durable[0][0] <= last_seq):
            self._on_durable.pop(0)[1](error)

    @property
    def dirty(self) -> bool:
        """Whether the registry lacks anything."""
        changed = self.topics.records.changed or self.batches.changed
        return changed or bool(self._changed_owners) or self.registry.dirty

    def fire_at(self, due_at_ms: int, now_ms: int, policy: Effective) -> int:
        """When a message due then goes out: never early, and never below the watermark (R4)."""
        if due_at_ms - now_ms > MAX_DELAY_MS:
            raise DelayTooLong(MAX_DELAY_MS)
        if policy.max_delay_ms and due_at_ms - now_ms > policy.max_delay_ms:
            raise DelayTooLong(policy.max_delay_ms)
        return max(policy.round_up(due_at_ms), now_ms, self.watermark.fire_at_ms)

    # Deciding: the state changes when a record is enqueued

    def _decide(self, seq: int, record: Record) -> None:
        match record:
            case Put():
                self._decide_put(seq, record)
            case Finalise():
                self._decide_finalise(record)
            case Entry():
                self.topics.records.decide(seq, record)
                if record.carries is not None:
                    self.dead.add(record.carries.seq)
                if record.fired is not None:
                    self._decide_fired(record, record.fired)
            case Claim():
                self._close_group(record.owner, record.group, record.claimed_at_ms)
            case Mark():
                self.watermark = max(self.watermark, record.watermark)
            case PolicySet():
                self._decide_policy(record)
            case Adopt() | CancelBatch():
                self._decide_batch(seq, record)
            case _:
                self.topics.records.decide(seq, record)

    def _decide_put(self, seq: int, put: Put) -> None:
        current = Key(put.fire_at_ms, seq)
        origin = put.origin or current
        if put.kills is not None:
            self.dead.add(put.kills.seq)
        if put.origin is None:
            self.owners[put.owner] += 1
            self._changed_owners.add(put.owner)
            self.counters["accepted"] += 1
            if put.idempotency_key is not None:
                self.registry.idempotency.put(
                    (put.owner, put.idempotency_key),
                    Repeat(put.fingerprint, origin, put.due_at_ms, past_due(put), put.accepted_at_ms),
                    (put.accepted_at_ms,),
                )
        if put.origin is not None or put.listed:
            searched = (put.owner if put.listed else None, put.due_at_ms)
            self.registry.live.put((origin.seq,), Live(current, origin), searched)
        if origin.seq >= FIRST_BATCH_SEQ and put.kills == origin:
            self.batches.moved(origin.seq, put.owner)
        if put.group is not None:
            group = self.registry.groups.get(put.owner, put.group) or Group([])
            others = [member for member in group.members if member.origin != origin]
            if group.closed_at_ms is None:
                others.append(Member(origin, current, put.due_at_ms is not None))
            self.registry.groups.put(
                (put.owner, put.group), Group(others, group.closed_at_ms), (group.closed_at_ms,)
            )

    def _decide_finalise(self, record: Finalise) -> None:
        self.counters[record.outcome] += 1
        # Of a version that could not be read not even the owner is known.
        owner = record.owner if record.destination else None
        self._end(record.kills, record.origin, owner, record.group, record.listed)
        ended = Ended(
            record.origin, record.outcome, record.finalised_at_ms, record.reason, record.reference, record.attempts,
            record.due_at_ms, record.accepted_at_ms, record.namespace, record.destination, record.key,
            record.owner, record.door, record.group,
        )  # fmt: skip
        self.registry.finalised.put(
            (record.origin.seq,), ended, (record.owner if record.listed else None, record.finalised_at_ms)
        )
        if record.outcome == "sent" and record.group is not None:
            self._close_group(record.owner, record.group, record.finalised_at_ms)

    def _decide_fired(self, entry: Entry, fired: Key) -> None:
        head = decode_head(bytes(entry.put))
        origin = head.origin or fired
        self.counters["sent"] += 1
        self._end(fired, origin, head.owner, head.group, head.listed)
        key, searched, ended = ended_row(head, fired, entry.published_at_ms)
        self.registry.finalised.put(key, ended, searched)
        if head.group is not None:
            self._close_group(head.owner, head.group, entry.published_at_ms)

    def _end(self, kills: Key, origin: Key, owner: str | None, group: str | None, listed: bool) -> None:
        self.dead.add(kills.seq)
        if owner is not None:
            self._forget_pending(owner, 1)
            if origin.seq >= FIRST_BATCH_SEQ:
                self.batches.ended(origin.seq, owner, apart=kills != origin)
        if listed or kills != origin:
            self.registry.live.remove(origin.seq)
        if group is not None:
            found = self.registry.groups.get(owner, group)
            if found is not None:
                members = [member for member in found.members if member.origin != origin]
                if members or found.closed_at_ms is not None:
                    self.registry.groups.put(
                        (owner, group), Group(members, found.closed_at_ms), (found.closed_at_ms,)
                    )
                else:
                    self.registry.groups.remove(owner, group)

    def _forget_pending(self, owner: str, count: int) -> None:
        left = self.owners[owner] - count
        if left > 0:
            self.owners[owner] = left
        else:
            del self.owners[owner]
        self._changed_owners.add(owner)

    def _close_group(self, owner: str, name: str, at_ms: int) -> None:
        """Of a group at most one is ever sent: remember that it was."""
        self.registry.groups.put((owner, name), Group([], at_ms), (at_ms,))

    def _decide_batch(self, seq: int, record: Adopt | CancelBatch) -> None:
        for owner, change in self.batches.decide(seq, record).items():
            self.counters["accepted" if change > 0 else "cancelled"] += abs(change)
            self._forget_pending(owner, -change)

    def _decide_policy(self, record: PolicySet) -> None:
        policy = None if record.policy is None else msgspec.convert(record.policy, Policy)
        self.policies.apply(record.scope, record.name, policy)
        if record.policy is None:
            self.registry.policies.remove(record.scope, record.name)
        else:
            self.registry.policies.put((record.scope, record.name), record.policy)

    # Effects: what follows once a record is durable

    def _effect(self, seq: int, record: Record, encoded: Encoded) -> None:
        match record:
            case Put():
                self.horizon.add(record.fire_at_ms, seq, encoded.lane)
            case Entry():
                self.keep_fresh(seq, encoded.body)
                self.topics.records.appended(record.topic, record.entry_id)
                if record.fire_at_ms:
                    self.horizon.add(record.fire_at_ms, seq, encoded.lane)

    def keep_fresh(self, seq: int, body: bytes) -> None:
        """Keep the body of a new entry for the consumers that are about to read it."""
        self._fresh[seq] = body
        self._fresh_bytes += len(body)
        self._trim_fresh()

    def _trim_fresh(self) -> None:
        while self._fresh_bytes > FRESH_BYTES:
            oldest = next(iter(self._fresh))
            self._fresh_bytes -= len(self._fresh.pop(oldest))

    # A burst of due messages into topics: the same decisions and effects, without a record object for each

    def append_burst(self, burst: Burst, done: Done) -> None:
        """Enqueue the records that fire a burst."""
        unit = burst.unit(self.topics.records)
        # A topic that got nothing in the end must not be made by it: no record would say so.
        sizes = {topic: len(messages) for topic, messages in burst.by_topic.items() if messages}

        def durable(error: TarryError | None) -> None:
            if error is None:
                bodies = [encoded.body for encoded in unit]
                self._fresh.update(zip(range(first, first + len(unit)), bodies, strict=True))
                self._fresh_bytes += sum(map(len, bodies))
                self._trim_fresh()
                for topic, next_id in next_ids.items():
                    self.topics.records.appended(topic, next_id - 1)
            done(error)
            self._tell_durable(first + len(unit) - 1, error)

        first = self.ledger.append(unit, durable)
        for at, encoded in enumerate(unit):
            if len(encoded.body) > SMALL_BYTES:
                self.sizes.add(first + at, len(encoded.body))
        next_ids = self.topics.records.place_many(first, sizes, burst.now_ms)
        self.counters["sent"] += len(unit)
        self.dead.add_many(np.fromiter((encoded.kills_seq for encoded in unit), np.int64, len(unit)))
        fired = list(burst.fired())
        for head, fire_at_ms, seq, _ in fired:
            if head.listed or head.origin is not None:
                self.registry.live.remove((head.origin or Key(fire_at_ms, seq)).seq)
            origin_seq = seq if head.origin is None else head.origin.seq
            if origin_seq >= FIRST_BATCH_SEQ:
                self.batches.ended(origin_seq, head.owner, apart=head.origin is not None)
        for owner, count in Counter([head.owner for head, _, _, _ in fired]).items():
            self._forget_pending(owner, count)
        self.registry.defer_ended(
            lambda: [ended_row(head, Key(fire, seq), burst.now_ms) for head, fire, seq, _ in fired]
        )

    # A batch: the same, as columns

    def append_plan(self, plan: Plan, done: Callable[[int, TarryError | None], None]) -> None:
        """Enqueue the records of a checked batch; `done` gets their first seq."""

        def durable(error: TarryError | None) -> None:
            if error is None:
                self.horizon.add_many(*plan.due(first))
            done(first, error)
            self._tell_durable(first + plan.unit.records - 1, error)

        first = self.ledger.append_unit(plan.unit, durable)
        self.sizes.add_many(first, plan.sizes)
        self.owners.update(plan.owners)
        self._changed_owners.update(plan.owners)
        self.counters["accepted"] += plan.owners.total()

    # Reading

    def body(self, seq: int) -> bytes:
        """The body of one record, checked (R3)."""
        return self._enqueued.get(seq) or self._fresh.get(seq) or self.ledger.read(seq).body

    def entry_bodies(self, seqs: NDArray[np.int64]) -> list[bytes | None]:
        """The bodies of topic entries; None for one that is gone or damaged."""
        fresh, enqueued = self._fresh, self._enqueued
        wanted = seqs.tolist()
        # An entry that is being carried forward has its new place already, which may not be durable yet.
        found: list[bytes | None] = [fresh.get(seq) or enqueued.get(seq) for seq in wanted]
        missing = [at for at, body in enumerate(found) if body is None and wanted[at]]
        if missing:
            for at, body in zip(missing, self.bodies(seqs[missing]), strict=True):
                if isinstance(body, Damage):
                    self.counters["damaged"] += 1
                    log.error("an entry cannot be read and is passed over: %s", body)
                found[at] = body if isinstance(body, bytes) else None
        return found

    def bodies(self, seqs: NDArray[np.int64]) -> list[bytes | Damage | None]:
        """The bodies of records; `Damage` in the place of one that is not what was written."""
        try:
            return [stored.body for stored in self.ledger.read_many(seqs)]
        except (Damage, NotFound):
            return [self._body_or_damage(seq) for seq in seqs.tolist()]

    def _body_or_damage(self, seq: int) -> bytes | Damage | None:
        try:
            return self.ledger.read(seq).body
        except Damage as damage:
            return damage
        except NotFound:
            return None

    # The registry

    def cut(self) -> Flush:
        """A consistent cut of the state for the registry, at the seq enqueued last."""
        self.topics.records.save(self.registry)
        for owner in self._changed_owners:
            if owner in self.owners:
                self.registry.owners.put((owner,), self.owners[owner])
            else:
                self.registry.owners.remove(owner)
        self._changed_owners.clear()
        self.batches.save(self.registry)
        counters, next_batch_seq = dict(self.counters), self.batches.next_seq
        meta = Meta(self.ledger.ledger_id, self.ledger.next_seq - 1, self.watermark, counters, next_batch_seq)
        return self.registry.begin(meta)

    def recover(self) -> None:
        """Arrive at the state of the ledger's head (protocol: Recovery, steps 4 to 7)."""
        now_ms = self.clock.now_ms()
        meta = self.registry.meta
        applied = 0
        if meta is not None:
            if meta.ledger_id != self.ledger.ledger_id:
                raise Unavailable(
                    "the registry and the ledger are not of the same installation: were two backups mixed?"
                )
            if meta.applied_seq > self.ledger.durable_seq:
                raise Unavailable(
                    f"the registry has reached seq {meta.applied_seq}, but the ledger ends at"
                    f" {self.ledger.durable_seq}: the ledger is older than the registry"
                )
            applied = meta.applied_seq
            self.watermark = meta.watermark
            self.counters.update(meta.counters)
        if applied + 1 < self.ledger.first_seq:
            raise Unavailable(
                f"the registry has reached seq {applied}, but the ledger begins at {self.ledger.first_seq}:"
                " restore the registry from its snapshot"
            )
        self._load()
        self._replay(applied)
        self.topics.records.replayed()
        self.recovered_seq = self._effective_seq = self.ledger.durable_seq
        self.recovered_at_ms = now_ms
        self.horizon.at = Key(0, 0)
        self.horizon.advance(now_ms)

    def _load(self) -> None:
        self.topics.records.load(self.registry)
        self.batches.load(self.registry)
        for (owner,), count in self.registry.owners.rows():
            self.owners[owner] = count
        for (scope, name), policy in self.registry.policies.rows():
            self.policies.apply(scope, name, msgspec.convert(policy, Policy))

    def _replay(self, applied: int) -> None:
        """Keys of everything, whole records above the registry's seq."""
        waiting: list[Any] = []
        for frame in self.ledger.frames(self.ledger.first_seq):
            fixed = frame.fixed
            seqs = np.arange(frame.first_seq, frame.first_seq + frame.count, dtype=np.int64)
            self.sizes.add_many(frame.first_seq, fixed["size"].astype(np.int64))
            kills = fixed["kills_seq"]
            self.dead.add_many(kills[kills > 0])
            fire = fixed["fire_at_ms"]
            delayed = (fixed["kind"] == Kind.ENTRY) & (fire > 0)
            chosen = (fixed["kind"] == Kind.PUT) | delayed
            if chosen.any():
                due = fire[chosen].astype(np.int64), seqs[chosen], fixed["lane"][chosen].astype(np.uint16)
                waiting.append((*due, delayed[chosen]))
            first_new = max(0, applied + 1 - frame.first_seq)
            for at in range(first_new, frame.count):
                self._decide(frame.first_seq + at, decode(frame.body(at)))
        # A delayed entry waits if its topic says so; the others were ready before.
        entries_waiting = self.topics.records.waiting_seqs()
        for fires, seqs, lanes, delayed in waiting:
            alive = ~self.dead.contains_many(seqs) & (~delayed | np.isin(seqs, entries_waiting))
            if alive.any():
                self.horizon.tail.add_many(fires[alive], seqs[alive], lanes[alive])

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
        """Whether a version was overdue at the last recovery: then it may have been handed out before (R11)."""
        overdue = key.seq <= self.recovered_seq and key.fire_at_ms <= self.recovered_at_ms
        return overdue and not put.destination.startswith(TOPIC_SCHEME)

    def ends_of_siblings(self, owner: str, group: str, origin: Key, now_ms: int) -> list[Record]:
        """The ends of the other members of a group, because one of them is sent."""
        found = self.registry.groups.get(owner, group)
        if found is None:
            return []
        reason = "another of its group was sent"
        return [
            self._end_of_member(member, owner, group, now_ms, reason)
            for member in found.members
            if member.origin != origin and member.current.seq not in self.dead
        ]

    def ends_of_orphans(self, put: Put | PutHead, origin: Key, now_ms: int) -> list[Record]:
        """The ends of the other members of a group, if the one that goes unsent was the last with a due instant."""
        found = None if put.group is None else self.registry.groups.get(put.owner, put.group)
        left = [member for member in found.members if member.origin != origin] if found else []
        if any(member.timed for member in left):
            return []
        reason = "its group lost its last message with a due instant"
        group = put.group or ""
        return [self._end_of_member(member, put.owner, group, now_ms, reason) for member in left]

    def _end_of_member(self, member: Member, owner: str, group: str, now_ms: int, reason: str) -> Finalise:
        try:
            put = decode_put(self.body(member.current.seq))
        except Damage as damage:
            reason = f"{reason}; it was {damage}"
            return end_unread_member(member.current, member.origin, owner, group, "cancelled", now_ms, reason)
        return end_of(put, member.current, "cancelled", now_ms, reason)

    def check_group(self, owner: str, name: str, timed: bool, limit: int) -> None:
        """Raise unless a new member may join this group."""
        group = self.registry.groups.get(owner, name)
        if group is not None and group.closed_at_ms is not None:
            raise Conflict(
                "the group has ended: one of its messages was sent, or all were discarded", "closed"
            )
        members = group.members if group else []
        if len(members) >= limit:
            raise Conflict(f"the group has its limit of {limit} messages", "full")
        if not timed and not any(member.timed for member in members):
            raise Conflict(
                "a message without a due instant needs a group that holds one with a due instant", "untimed"
            )


def past_due(put: Put) -> bool:
    """Whether the due instant had passed when the message was accepted."""
    return put.due_at_ms is not None and put.due_at_ms < put.accepted_at_ms


def ended_row(head: PutHead, fired: Key, at_ms: int) -> tuple[tuple[int], tuple[str | None, int], Ended]:
    """The registry's row of a message that was sent into a topic: key, searched columns and value."""
    origin = head.origin or fired
    ended = Ended(
        origin, "sent", at_ms, None, None, head.attempts + 1, head.due_at_ms, head.accepted_at_ms, head.namespace,
        head.destination, head.key, head.owner, head.door, head.group,
    )  # fmt: skip
    return (origin.seq,), (head.owner if head.listed else None, at_ms), ended
