"""The engine: what doors call. It decides, writes through the journal, and answers when that is durable.

All of it runs on one thread. Time comes from the clock that it was given, slow work goes through `Offload`
and sending through `Launch`, so that a simulation can run it with none of the real things behind.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, overload

import msgspec
from msgspec import Struct

from tarry.core.clock import SteadyClock
from tarry.core.delivery import Outlet, Verdict
from tarry.core.errors import TarryError
from tarry.core.holder import UNSCOPED
from tarry.core.ids import Ids
from tarry.core.message import (
    Message,
    MessagePage,
    MessageQuery,
    MessageView,
    OwnedQuery,
    Scheduled,
)
from tarry.core.names import namespace_of, parse_namespace, parse_topic
from tarry.core.policy import Effective, Policy, Scope
from tarry.core.sets.seqset import BLOCK_BITS
from tarry.core.tracing import Tracer
from tarry.engine.admission.admission import Admission
from tarry.engine.admission.adoption import Adoption
from tarry.engine.admission.columns import Columns, ColumnsScheduled
from tarry.engine.answer import Answer, failed
from tarry.engine.dispatch.dispatcher import Dispatcher, OnSent
from tarry.engine.dispatch.setting_aside import end_set_aside
from tarry.engine.due.horizon import Offload
from tarry.engine.flights.flights import Launch
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.catalogue import Catalogue
from tarry.engine.queries.commands import Commands, Ending
from tarry.engine.queries.delayed_entries import DelayedEntries
from tarry.engine.queries.finding import Finding
from tarry.engine.queries.hearing import Hearing
from tarry.engine.queries.owners import Owners
from tarry.engine.queries.turns import Turns
from tarry.engine.queries.upcoming import Counting, Upcoming, due_soon
from tarry.engine.repeats.repeating import Repeating
from tarry.engine.repeats.repeats import Repeats
from tarry.engine.settings import EngineSettings
from tarry.engine.state.recovery import recover
from tarry.engine.topics.topics import Topics
from tarry.engine.upkeep.backups import Backups
from tarry.engine.upkeep.upkeep import Upkeep
from tarry.index.index import Index, IndexView
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import PolicySet
from tarry.registry.registry import Registry


class EngineStats(Struct, frozen=True, kw_only=True):
    """Figures of the engine."""

    pending: int
    in_wheel: int
    in_tail: int
    sending: int
    next_seq: int
    durable_seq: int
    watermark_ms: int
    horizon_ms: int
    low_space: bool
    failed: str | None
    owners: int
    topics: int
    next_due_at_ms: int | None
    stranded: dict[str, int]
    """By scheme: messages that wait for an outlet which a start did not have."""
    clock_ahead_ms: int
    """How far the clock is ahead of what elapsed time confirms; 0 while it is confirmed."""
    clock_steps: dict[str, int]
    """How often the clock was set `ahead` or `back` since the process began."""
    counters: dict[str, int]
    """accepted, sent, cancelled, failed, retried, damaged, isolated, watermark_lowered: since the ledger began."""


class Engine:
    """The façade of everything behind the doors."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        registry: Registry,
        index: Index,
        clock: SteadyClock,
        ids: Ids,
        outlets: Mapping[str, Outlet],
        launch: Launch,
        offload: Offload,
        reading: Offload | None = None,
        settings: EngineSettings,
        broker_policy: Policy | None = None,
        namespace_policies: Mapping[str, Policy] | None = None,
        snapshot_folder: str | None = None,
        seed: int = 0,
        tracer: Tracer | None = None,
        dead_block_bits: int = BLOCK_BITS,
    ) -> None:
        """Dead seqs are forgotten in whole blocks: small ones are for simulations, which have few seqs."""
        self.clock = clock
        self.ready = False
        self.journal = Journal(
            ledger, registry, index, clock, ids, broker_policy or Policy(), settings, reading or offload,
            namespace_policies, dead_block_bits,
        )  # fmt: skip
        self.journal.tracer = tracer
        self.dispatcher = Dispatcher(self.journal, outlets, settings, launch, seed)
        self.upkeep = Upkeep(self.journal, self.dispatcher, settings, offload, snapshot_folder)
        finding = Finding(self.journal, self.dispatcher, self.upkeep)
        self._commands = Commands(self.journal, self.dispatcher, finding, clock, reading or offload)
        self._admission = Admission(self.journal, clock, outlets, finding, self._commands)
        self._repeating = Repeating(self.journal, self.journal.repeats, self._admission.versions)
        self.repeats = Repeats(self.journal, self.journal.repeats, self._repeating, clock)
        """Messages that are sent again and again."""
        self._hearing = Hearing(self.journal, self.dispatcher, self._commands)
        self._owners = Owners(self.journal, self._commands)
        self._turns = Turns(self.journal, self.dispatcher, self._commands)
        self.batches = Adoption(self.journal, self.dispatcher, self.upkeep, self._commands, clock, outlets)
        """Batches that are adopted, shown and cancelled as a whole."""
        self.backups = Backups(
            self.upkeep.reclaim, registry, clock, self.upkeep.flush, offload, snapshot_folder
        )
        """Backups under way."""
        self._counting = Counting(self.journal, reading or offload)
        self.delayed = DelayedEntries(self.journal, self._commands)
        """Entries of topics that wait for their due instant."""

    @property
    def topics(self) -> Topics:
        """Tarry's own topics."""
        return self.journal.topics

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue: tenants, namespaces, schemas and other named things that are no messages."""
        return self.journal.catalogue

    @property
    def ledger(self) -> Ledger:
        """The ledger, for whoever reads its frames and figures."""
        return self.journal.ledger

    @property
    def index_view(self) -> IndexView:
        """The index as it is read now."""
        return self.journal.horizon.view

    @property
    def ids(self) -> Ids:
        """Makes and reads ids, and what else depends on the installation's key."""
        return self.journal.ids

    def tell_of_sent(self, on_sent: OnSent) -> None:
        """Have a function told of what is sent: the door, the lateness and how many."""
        self.dispatcher.on_sent = on_sent

    @property
    def traced(self) -> bool:
        """Whether somebody is told of what is accepted and sent."""
        return self.journal.tracer is not None

    @property
    def trouble(self) -> str | None:
        """Why not everything that it holds can be delivered on time, while that is so."""
        return self.journal.horizon.trouble

    @property
    def warnings(self) -> list[str]:
        """Facts that an operator should know although messages are accepted and sent."""
        return [
            *self.journal.aside.warnings(),
            *self.dispatcher.stranded.warnings(),
            *self.upkeep.clock.warnings(),
        ]

    @property
    def set_aside(self) -> list[int]:
        """Seqs of records that this start, or an earlier one, was told to go on without."""
        return sorted(self.journal.aside.seqs)

    # Running

    def recover(self, set_aside: Collection[int] = ()) -> None:
        """Arrive at the state of the ledger, without the records at some seqs; then the engine takes work."""
        recover(self.journal, set_aside)
        end_set_aside(self.journal, self.dispatcher, set_aside)
        self.dispatcher.stranded.begin(self.clock.now_ms())
        self.ready = True

    def tick(self) -> int:
        """One turn of everything: gives the instant at which to come again, or 0 for at once."""
        now_ms = self.clock.now_ms()
        self.journal.horizon.advance(now_ms)
        self.journal.bodies.turn(now_ms)
        # Reading ahead is for when there is nothing to send.
        more = self.dispatcher.turn(now_ms)
        read_ms = None if more else self.journal.readahead.turn(now_ms)
        self.batches.turn(now_ms)
        self.backups.turn(now_ms)
        repeat_ms = self._repeating.turn(now_ms)
        self.topics.records.pump()
        again_ms = self.upkeep.tick(now_ms)
        if repeat_ms is not None:
            again_ms = min(again_ms, repeat_ms)
        if more or self.topics.records.unfinished or (read_ms is not None and read_ms <= now_ms):
            return 0
        if read_ms is not None:
            again_ms = min(again_ms, read_ms)
        if self.dispatcher.stuck or self.dispatcher.gathering:
            return again_ms
        next_ms = self.journal.horizon.next_fire_at_ms()
        return again_ms if next_ms is None else min(again_ms, self.dispatcher.next_turn_ms(next_ms, now_ms))

    def stats(self) -> EngineStats:
        """Figures of the moment."""
        journal = self.journal
        return EngineStats(
            pending=journal.pending.total + journal.topics.records.waiting,
            in_wheel=len(journal.horizon.wheel),
            in_tail=len(journal.horizon.tail),
            sending=len(self.dispatcher.flights.by_seq),
            next_seq=journal.ledger.next_seq,
            durable_seq=journal.ledger.durable_seq,
            watermark_ms=journal.watermark.fire_at_ms,
            horizon_ms=journal.horizon.at.fire_at_ms,
            low_space=journal.ledger.low_space,
            failed=None if journal.ledger.failed is None else str(journal.ledger.failed),
            owners=len(journal.pending.by_holder),
            topics=len(journal.topics.records.by_name),
            next_due_at_ms=journal.horizon.next_fire_at_ms(),
            stranded=dict(journal.stranded),
            clock_ahead_ms=self.upkeep.clock.ahead_ms,
            clock_steps=dict(self.upkeep.clock.steps),
            counters=dict(journal.counters),
        )

    def upcoming(self, from_ms: int, to_ms: int, buckets: int) -> Answer[Upcoming]:
        """How many messages are due from one instant until before another, in so many buckets, by door."""
        return self._counting.count(from_ms, to_ms, buckets)

    def due_soon(self, door: str, within_ms: int) -> int:
        """How many messages of a door are due within a time that is short, a few seconds; quick."""
        return due_soon(self.journal, door, self.clock.now_ms() + within_ms)

    # Messages

    def schedule(self, message: Message) -> Answer[Scheduled]:
        """Accept a message; the answer comes when that is durable."""
        return self._admission.schedule(message)

    def repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The answer to an earlier request with the idempotency key of a message; None if there was none, or it failed.

        For whoever wants to know it before the message is read as a whole.
        """
        return self._admission.repeated(message)

    def group_owners(self, namespace: str, name: str) -> frozenset[str]:
        """Owners of messages that wait in a group of this name, in a namespace."""
        return self.journal.groups.owners_of(namespace, name)

    @overload
    def schedule_many(
        self, messages: Sequence[Message | TarryError], *, all_or_none: Literal[False] = False
    ) -> Answer[list[Scheduled | TarryError]]: ...

    @overload
    def schedule_many(
        self, messages: Sequence[Message], *, all_or_none: Literal[True]
    ) -> Answer[list[Scheduled]]: ...

    def schedule_many(
        self, messages: Sequence[Message | TarryError], *, all_or_none: bool = False
    ) -> Answer[Any]:
        """Accept messages, each by itself: an error stands in the place of its message.

        With `all_or_none` they are one unit, or the answer is an error; a group that one of them leads waits for it.
        """
        return self._admission.schedule_many(messages, all_or_none=all_or_none)

    def schedule_columns(self, columns: Columns, defaults: Message) -> Answer[ColumnsScheduled]:
        """Accept messages as columns, each by itself; `defaults` has what no row can say."""
        return self._admission.schedule_columns(columns, defaults)

    def room(self, size_bytes: int) -> Answer[None]:
        """Settled once the ledger takes about so much: a batch waits where a single message is refused."""
        answer: Answer[None] = Answer()
        self.journal.ledger.when_room(size_bytes, lambda: answer.settle(None))
        return answer

    def get(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """A message as it is now. Here and below, one outside the namespace that is given is not found."""
        return self._commands.get(id, namespace=namespace)

    def id_of_name(self, namespace: str, name: str) -> str:
        """The id of the message that has a name, which waits or whose outcome is kept; raises `NotFound` if none has."""
        return self._commands.id_of_name(namespace, name)

    def list_messages(self, query: MessageQuery) -> Answer[MessagePage]:
        """A page of messages."""
        return self._commands.list_messages(query)

    def list_owned(self, query: OwnedQuery) -> Answer[MessagePage]:
        """A page of an owner's listed messages."""
        return self._owners.page(query)

    def cancel(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """End a message unsent. Once this is answered it never goes out."""
        return self._commands.cancel(id, namespace=namespace)

    def pending_of(self, owner: str, namespace: str, *more: str) -> int:
        """How many messages of an owner wait in these namespaces, with those that an earlier version counted by owner alone."""
        return sum(self.journal.pending.of(one, owner) for one in {namespace, *more, UNSCOPED})

    def end_subject(self, subject: str, ending: Ending) -> Answer[int]:
        """End all that wait about a subject and that the ending is meant for; gives how many."""
        return self._owners.end_subject(subject, ending)

    def end_owner(self, owner: str, ending: Ending) -> Answer[int]:
        """End all of an owner's listed messages that the ending is meant for; gives how many."""
        return self._owners.end_owner(owner, ending)

    def send(self, id: str) -> Answer[MessageView]:
        """Make a message due now. A cancel or a restart that is recorded before it has gone out holds over this."""
        return self._commands.send(id)

    def deliver(self, id: str, *, keep: bool = False, namespace: str | None = None) -> Answer[Verdict]:
        """Make a message due now, and hear the verdict on the next attempt; a conflict if a later command overruled it.

        With `keep`, a message that is refused waits for its due instant again.
        """
        return self._hearing.deliver(id, keep=keep, namespace=namespace)

    def ended(self, id: str) -> Answer[MessageView]:
        """A message that is due, once it is finalised."""
        return self._hearing.ended(id)

    def restart(
        self,
        id: str,
        *,
        delay_ms: int | None = None,
        due_at_ms: int | None = None,
        namespace: str | None = None,
    ) -> Answer[MessageView]:
        """Begin a message's delay again, or give it a new delay or due instant."""
        return self._commands.restart(id, delay_ms=delay_ms, due_at_ms=due_at_ms, namespace=namespace)

    # Policies

    def policy(self, scope: Scope, name: str) -> Policy | None:
        """The policy that was set at a place itself; raises `Invalid` for a bad name."""
        return self.journal.policies.get(scope, name)

    def set_policy(self, scope: Scope, name: str, policy: Policy | None) -> Answer[None]:
        """Set a policy, or remove it with None."""
        try:
            full = self.journal.policies.check_name(scope, name)
            if policy is not None:
                policy.check()
            body = None if policy is None else msgspec.to_builtins(policy)
            before = self.journal.policies.get(scope, name) or Policy()
            changed = before.send_per_second != (policy or Policy()).send_per_second

            def durable() -> None:
                if changed:
                    self._turns.limit_changed(_namespace_of(scope, full))

            answer: Answer[None] = Answer()
            self.journal.append([PolicySet(scope, full, body)], answer.unless_error(durable))
            return answer
        except TarryError as error:
            return failed(error)

    def broker_policy(self) -> Effective:
        """The policy in force outside all namespaces: only the broker has a say."""
        return self.journal.policies.effective(None, "")

    def effective_policy(self, topic: str | None, namespace: str) -> Effective:
        """The policy in force at a topic or in a namespace."""
        if topic is not None:
            parsed = parse_topic(topic)
            return self.journal.policies.effective(parsed.full, parsed.namespace_name)
        return self.journal.policies.effective(None, parse_namespace(namespace))


def _namespace_of(scope: Scope, name: str) -> str | None:
    """The namespace that a place is in, or is; None for the broker, which has all."""
    match scope:
        case "topic":
            return namespace_of(name)
        case "namespace":
            return name
        case _:
            return None
