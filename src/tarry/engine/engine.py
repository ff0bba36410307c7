"""The engine: what doors call. It decides, writes through the journal, and answers when that is durable.

All of it runs on one thread. Time comes from the clock that it was given, slow work goes through `Offload`
and sending through `Launch`, so that a simulation can run it with none of the real things behind.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, overload

import msgspec
from msgspec import Struct

from tarry.core.errors import TarryError
from tarry.core.messages.delivery import Verdict
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import (
    Message,
    MessagePage,
    MessageQuery,
    MessageView,
    OwnedQuery,
    Scheduled,
)
from tarry.core.names import namespace_of, parse_namespace, parse_topic
from tarry.core.rules.policy import Effective, Policy, Scope
from tarry.core.tenants.holder import UNSCOPED
from tarry.engine.admission.columns import Columns, ColumnsScheduled
from tarry.engine.answer import Answer, failed
from tarry.engine.dispatch.sent_report import OnSent
from tarry.engine.dispatch.setting_aside import end_set_aside
from tarry.engine.journal.tenure import DOUBT
from tarry.engine.queries.commands import Ending
from tarry.engine.queries.upcoming import Upcoming
from tarry.engine.wiring import Surroundings, wire
from tarry.index.index import IndexView
from tarry.ledger.record import PolicySet


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
    paused: dict[str, int]
    """Paused messages: by a command on the `message` itself, or due and held by their `place`."""
    clock_ahead_ms: int
    """How far the clock is ahead of what elapsed time confirms; 0 while it is confirmed."""
    clock_steps: dict[str, int]
    """How often the clock was set `ahead` or `back` since the process began."""
    counters: dict[str, int]
    """accepted, sent, cancelled, failed, retried, damaged, isolated, watermark_lowered: since the ledger began."""


class Engine:
    """The façade of everything behind the doors."""

    def __init__(self, given: Surroundings) -> None:
        parts = self._parts = wire(given)
        """Its parts, for itself and for `tarry.testing.insides`."""
        self.clock = given.clock
        self.ledger = given.ledger
        """The ledger, for whoever reads its frames and figures."""
        self.ids = given.ids
        """Makes and reads ids, and what else depends on the installation's key."""
        self.ready = False
        self.topics = parts.topics
        """Tarry's own topics."""
        self.catalogue = parts.state.catalogue
        """The catalogue: tenants, namespaces, schemas and other named things that are no messages."""
        self.delayed = parts.delayed
        """Entries of topics that wait for their due instant."""
        self.repeats = parts.repeats
        """Messages that are sent again and again."""
        self.pausing = parts.pausing
        """Pauses of messages and of places."""
        self.bulk_commands = parts.bulk_commands
        """Commands on all messages that a filter chooses."""
        self.batches = parts.adoption
        """Batches that are adopted, shown and cancelled as a whole."""
        self.backups = parts.backups
        """Backups under way."""

    @property
    def index_view(self) -> IndexView:
        """The index as it is read now."""
        return self._parts.horizon.view

    def tell_of_sent(self, on_sent: OnSent) -> None:
        """Have a function told of sent messages: the door, the lateness and how many."""
        self._parts.dispatcher.sent.on_sent = on_sent

    def tell_of_earlier(self, on_earlier: Callable[[int], None]) -> None:
        """Have a function told of an added message that is due before all others."""
        self._parts.horizon.on_earlier = on_earlier

    @property
    def traced(self) -> bool:
        """Whether a tracer is told of accepted and sent messages."""
        return self._parts.tracing is not None

    @property
    def trouble(self) -> str | None:
        """Why not everything that it holds can be delivered on time, while that is so."""
        return self._parts.horizon.trouble or (DOUBT if self._parts.journal.in_doubt else None)

    @property
    def warnings(self) -> list[str]:
        """Facts that an operator should know although messages are accepted and sent."""
        return [
            *self._parts.state.aside.warnings(),
            *self._parts.dispatcher.stranded.warnings(),
            *self._parts.upkeep.clock.warnings(),
        ]

    @property
    def set_aside(self) -> list[int]:
        """Seqs of records that this start, or an earlier one, was told to go on without."""
        return sorted(self._parts.state.aside.seqs)

    # Running

    def follow(self, set_aside: Collection[int] = ()) -> bool:
        """Take some more of a ledger that another server appends to; whether there is more.

        `recover` goes on from here once the ledger is this server's, and has little left to do then.
        """
        now_ms = self.clock.now_ms()
        more = self._parts.recovery.follow(set_aside, now_ms)
        self._parts.upkeep.follow(now_ms)
        return more

    def recover(self, set_aside: Collection[int] = ()) -> None:
        """Arrive at the state of the ledger, without the records at some seqs; then the engine takes work."""
        self._parts.recovery.run(set_aside, self.clock.now_ms())
        end_set_aside(self._parts.state, self.ledger, self._parts.dispatcher, set_aside)
        self._parts.dispatcher.stranded.begin(self.clock.now_ms())
        self._parts.dispatcher.holding.begin(self.clock.now_ms())
        self.ready = True

    def tick(self) -> int:
        """One turn of everything: gives the instant at which to come again, or 0 for at once."""
        parts, now_ms = self._parts, self.clock.now_ms()
        self._parts.horizon.advance(now_ms)
        self._parts.bodies.turn(now_ms)
        # Reading ahead is for when there is nothing to send.
        more = self._parts.dispatcher.turn(now_ms)
        read_ms = None if more else self._parts.readahead.turn(now_ms)
        self.batches.turn(now_ms)
        self.backups.turn(now_ms)
        bulk_ms = parts.bulk_commands.turn(now_ms)
        repeat_ms = parts.repeating.turn(now_ms)
        parts.pumping.pump()
        again_ms = parts.upkeep.tick(now_ms)
        again_ms = min([again_ms, *(at_ms for at_ms in (bulk_ms, repeat_ms) if at_ms is not None)])
        if more or parts.pumping.unfinished or (read_ms is not None and read_ms <= now_ms):
            return 0
        if read_ms is not None:
            again_ms = min(again_ms, read_ms)
        if self._parts.dispatcher.stuck or self._parts.dispatcher.gathering:
            return again_ms
        next_ms = self._parts.horizon.next_fire_at_ms()
        return (
            again_ms
            if next_ms is None
            else min(again_ms, self._parts.dispatcher.next_turn_ms(next_ms, now_ms))
        )

    def stats(self) -> EngineStats:
        """Figures of the moment."""
        parts, journal, state = self._parts, self._parts.journal, self._parts.state
        return EngineStats(
            pending=state.pending.total + state.topics.waiting,
            in_wheel=len(parts.horizon.wheel),
            in_tail=len(parts.horizon.tail),
            sending=len(self._parts.dispatcher.flights.by_seq),
            next_seq=journal.next_seq,
            durable_seq=journal.durable_seq,
            watermark_ms=state.watermark.fire_at_ms,
            horizon_ms=parts.horizon.at.fire_at_ms,
            low_space=self.ledger.low_space,
            failed=None if self.ledger.failed is None else str(self.ledger.failed),
            owners=len(state.pending.by_holder),
            topics=len(state.topics.by_name),
            next_due_at_ms=parts.horizon.next_fire_at_ms(),
            stranded=dict(state.stranded),
            paused=dict(state.paused),
            clock_ahead_ms=self._parts.upkeep.clock.ahead_ms,
            clock_steps=dict(self._parts.upkeep.clock.steps),
            counters=dict(state.counters),
        )

    def wake(self) -> None:
        """Have the next turn come at once: the clock was moved, or runs again."""
        self._parts.horizon.wake()

    def pump(self) -> None:
        """Give out entries that became visible to consumers since the last turn."""
        self._parts.pumping.pump()

    @property
    def sending(self) -> bool:
        """Whether any attempt to send is under way."""
        return any(flight.state is State.SENDING for flight in self._parts.dispatcher.flights.by_seq.values())

    def flush(self) -> Answer[None]:
        """Bring the registry up to the records enqueued so far; the answer comes when it is."""
        return self._parts.upkeep.flush()

    def upcoming(self, from_ms: int, to_ms: int, buckets: int) -> Answer[Upcoming]:
        """How many messages are due from one instant until before another, in so many buckets, by door."""
        return self._parts.counting.count(from_ms, to_ms, buckets)

    def due_soon(self, door: str, within_ms: int) -> int:
        """How many messages of a door are due within a time that is short, a few seconds; quick."""
        return self._parts.counting.due_soon(door, self.clock.now_ms() + within_ms)

    # Messages

    def schedule(self, message: Message) -> Answer[Scheduled]:
        """Accept a message; the answer comes when that is durable."""
        return self._parts.admission.schedule(message)

    def repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The answer to an earlier request with the idempotency key of a message; None if there was none, or it failed.

        For whoever wants to know it before the message is read as a whole.
        """
        return self._parts.admission.repeated(message)

    def any_repeated(self, columns: Columns, defaults: Message) -> bool:
        """Whether one of these requests may have come before, by its idempotency key: then columns cannot bring them."""
        return self._parts.admission.any_repeated(columns, defaults)

    def group_owners(self, namespace: str, name: str) -> frozenset[str]:
        """Owners of messages that wait in a group of this name, in a namespace."""
        return self._parts.state.groups.owners_of(namespace, name)

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
        return self._parts.admission.schedule_many(messages, all_or_none=all_or_none)

    def schedule_columns(self, columns: Columns, defaults: Message) -> Answer[ColumnsScheduled]:
        """Accept messages as columns, each by itself; `defaults` has what no row can say."""
        return self._parts.admission.schedule_columns(columns, defaults)

    def space(self, size_bytes: int) -> Answer[None]:
        """Settled once the ledger takes about so much: a batch waits where a single message is refused."""
        answer: Answer[None] = Answer()
        self.ledger.when_space(size_bytes, lambda: answer.settle(None))
        return answer

    def get(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """A message as it is now. Here and below, one outside the namespace that is given is not found."""
        return self._parts.commands.get(id, namespace=namespace)

    def id_of_name(self, namespace: str, name: str) -> str:
        """The id of the message that has a name, which waits or whose outcome is kept; raises `NotFound` if none has."""
        return self._parts.commands.id_of_name(namespace, name)

    def list_messages(self, query: MessageQuery) -> Answer[MessagePage]:
        """A page of messages."""
        return self._parts.lists(query)

    def list_owned(self, query: OwnedQuery) -> Answer[MessagePage]:
        """A page of an owner's listed messages."""
        return self._parts.owners.page(query)

    def cancel(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """End a message unsent. Once this is answered it never goes out."""
        return self._parts.commands.cancel(id, namespace=namespace)

    def pending_of(self, owner: str, namespace: str, *more: str) -> int:
        """How many messages of an owner wait in these namespaces, with those that an earlier version counted by owner alone."""
        return sum(self._parts.state.pending.of(one, owner) for one in {namespace, *more, UNSCOPED})

    def end_subject(self, subject: str, ending: Ending) -> Answer[int]:
        """End all that wait about a subject and that the ending is meant for; gives how many."""
        return self._parts.owners.end_subject(subject, ending)

    def end_owner(self, owner: str, ending: Ending) -> Answer[int]:
        """End all of an owner's listed messages that the ending is meant for; gives how many."""
        return self._parts.owners.end_owner(owner, ending)

    def send(self, id: str) -> Answer[MessageView]:
        """Make a message due now. A cancel or a restart that is recorded before it has gone out holds over this."""
        return self._parts.commands.send(id)

    def deliver(self, id: str, *, keep: bool = False, namespace: str | None = None) -> Answer[Verdict]:
        """Make a message due now, and hear the verdict on the next attempt; a conflict if a later command overruled it.

        With `keep`, a message that is refused waits for its due instant again.
        """
        return self._parts.hearing.deliver(id, keep=keep, namespace=namespace)

    def ended(self, id: str) -> Answer[MessageView]:
        """A message that is due, once it is finalised."""
        return self._parts.hearing.ended(id)

    def restart(
        self,
        id: str,
        *,
        delay_ms: int | None = None,
        due_at_ms: int | None = None,
        namespace: str | None = None,
    ) -> Answer[MessageView]:
        """Begin a message's delay again, or give it a new delay or due instant."""
        return self._parts.commands.restart(id, delay_ms=delay_ms, due_at_ms=due_at_ms, namespace=namespace)

    def retry(
        self,
        id: str,
        *,
        delay_ms: int | None = None,
        due_at_ms: int | None = None,
        namespace: str | None = None,
    ) -> Answer[MessageView]:
        """Accept a message that has failed once more, due now or at a new time. Its dead letter is taken back."""
        return self._parts.retries.retry(id, delay_ms=delay_ms, due_at_ms=due_at_ms, namespace=namespace)

    # Policies

    def policy(self, scope: Scope, name: str) -> Policy | None:
        """The policy that was set at a place itself; raises `Invalid` for a bad name."""
        return self._parts.state.policies.get(scope, name)

    def set_policy(self, scope: Scope, name: str, policy: Policy | None) -> Answer[None]:
        """Set a policy, or remove it with None."""
        try:
            full = self._parts.state.policies.check_name(scope, name)
            if policy is not None:
                policy.check()
            body = None if policy is None else msgspec.to_builtins(policy)
            before = self._parts.state.policies.get(scope, name) or Policy()
            changed = before.send_per_second != (policy or Policy()).send_per_second

            def durable() -> None:
                if changed:
                    self._parts.turns.limit_changed(_namespace_of(scope, full))

            return self._parts.journal.write([PolicySet(scope, full, body)], durable)
        except TarryError as error:
            return failed(error)

    def broker_policy(self) -> Effective:
        """The policy in force outside all namespaces: only the broker has a say."""
        return self._parts.state.policies.effective(None, "")

    def effective_policy(self, topic: str | None, namespace: str) -> Effective:
        """The policy in force at a topic or in a namespace."""
        if topic is not None:
            parsed = parse_topic(topic)
            return self._parts.state.policies.effective(parsed.full, parsed.namespace_name)
        return self._parts.state.policies.effective(None, parse_namespace(namespace))


def _namespace_of(scope: Scope, name: str) -> str | None:
    """The namespace that a place is in, or is; None for the broker, which has all."""
    match scope:
        case "topic":
            return namespace_of(name)
        case "namespace":
            return name
        case _:
            return None
