"""The clients of one run: they schedule, repeat themselves, change their minds, and look."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tarry.core.errors import (
    Conflict,
    DelayTooLong,
    NotFound,
    RateLimited,
    TarryError,
    TooLarge,
    TooManyPending,
    Unavailable,
)
from tarry.core.messages.message import Message, MessageQuery, MessageView, Scheduled
from tarry.core.rules.policy import Policy
from tarry.engine.admission.columns import columns_of
from tarry.engine.answer import Answer
from tests.simulation.checker import Violation
from tests.simulation.model import EAGER, ELSEWHERE, FLEETING, HOSTS, NEVER_MS, TOPICS, Msg, Promise, short

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

OWNERS = ("ann", "bob", "")
KEYS = (None, None, "k1", "k1", "k2")
ANYWHERE = (*HOSTS, *TOPICS, *HOSTS, *TOPICS, *HOSTS, *TOPICS, EAGER, FLEETING)


class Clients:
    """Owners of messages, who schedule and command them."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._random = sim.random
        self._model = sim.model
        self._checker = sim.checker

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that clients take."""
        return {
            "schedule": self.schedule,
            "batch": self.batch,
            "together": self.together,
            "arrow": self.arrow,
            "reuse": self.reuse,
            "command": self.command,
            "look": self.look,
            "policy": self.policy,
        }

    # Scheduling

    def new(self, *, plain: bool = False, places: Sequence[str] = ANYWHERE) -> Msg:
        """A message that was not asked for before; a plain one has neither group nor idempotency key."""
        random = self._random
        now_ms = self._sim.clock.now_ms()
        token = self._sim.token("m")
        fields: dict[str, Any] = {}
        delay_ms = self.delay()
        group, owner = None, random.choice(OWNERS)
        if random.random() < 0.25 and not plain:
            # One owner and few names at a time, so that there are groups of several.
            group, owner = random.choice(("g", "h")) + str(int(token[1:]) // 20), "ann"
        if group is None or random.random() < 0.7:
            if random.random() < 0.5:
                fields["delay_ms"] = delay_ms
            else:
                fields["due_at_ms"] = now_ms + delay_ms - random.choice((0, 0, 0, 5_000))
        destination = random.choice(places)
        if destination in HOSTS and not plain and random.random() < 0.3:
            # The same owner elsewhere is another one, and so are its groups.
            fields["namespace"] = ELSEWHERE
        message = Message(
            destination=destination,
            payload=token.encode() * random.choice((1, 1, 5, 60, 300)),
            headers={"token": token},
            key=random.choice(KEYS),
            owner=owner,
            group=group,
            ttl_ms=random.choice((1, 100, 60_000)) if random.random() < 0.1 else None,
            # Some look like keys of lines, whose answers are kept in pages.
            idempotency_key=f"i{':'[: int(token[1:]) % 2]}{token[1:]}"
            if random.random() < 0.3 and not plain
            else None,
            listed=random.random() < 0.3 and not plain,
            **fields,
        )
        msg = self._model.messages[token] = Msg(token, message, [], self._sim.step)
        return msg

    def delay(self) -> int:
        """A delay, from none to a month."""
        random = self._random
        return random.choice(
            (0, 1, 1, random.randint(1, 50), random.randint(1, 50), random.randint(1, 2_000),
             random.randint(1, 2_000), random.randint(1, 120_000), 3_600_000, 30 * 86_400_000)
        )  # fmt: skip

    def promise(self, msg: Msg) -> Promise | None:
        """The promise that accepting the request now makes; None if it has been taken already."""
        self._sim.say_message(msg)
        if not msg.promises:
            msg.first_frame = self._checker.frames
        msg.asks += 1
        if msg.accepted is not None:
            return None
        now_ms = self._sim.clock.now_ms()
        msg.floor_ms = min(msg.floor_ms or now_ms, now_ms)
        msg.ceiling_ms = self._checker.highest_ms()
        message = msg.message
        due_at_ms = NEVER_MS
        if message.delay_ms is not None:
            due_at_ms = now_ms + message.delay_ms
            msg.delays.append(message.delay_ms)
        elif message.due_at_ms is not None:
            due_at_ms = message.due_at_ms
            msg.delays.append(max(0, due_at_ms - now_ms))
        if due_at_ms < NEVER_MS:
            self._sim.note_due(due_at_ms)
        promise = Promise(0 if msg.eager else due_at_ms, self._sim.since())
        msg.promises.append(promise)
        return promise

    def schedule(self) -> None:
        """One message, or one that was asked for before under its idempotency key."""
        repeatable = [
            msg
            for msg in self._model.messages.values()
            if msg.message.idempotency_key is not None and msg.asks
        ]
        if repeatable and self._random.random() < 0.15:
            msg = self._random.choice(repeatable)
        else:
            msg = self.new()
        promise = self.promise(msg)
        answer = self._sim.engine.schedule(msg.message)
        then = partial(self._scheduled, msg, promise)
        self._sim.ask(f"schedule {msg.token}", answer, then, partial(self._checker.scheduled, msg))

    def _scheduled(self, msg: Msg, promise: Promise | None, answer: Answer[Any], unclear: bool) -> None:
        error = answer.error()
        if error is None:
            self._checker.scheduled(msg, answer.value())
        elif not unclear:
            self.refused(msg, promise, error)

    def refused(self, msg: Msg, promise: Promise | None, error: BaseException) -> None:
        """A request was refused, if it may be for this reason."""
        if isinstance(error, Conflict):
            if error.state == "reused":
                raise Violation(f"{msg.token}: the same request was taken for another") from error
            if msg.accepted is not None:
                raise Violation(f"{msg.token}: a repeated request got {error}") from error
        elif isinstance(error, TooManyPending):
            self._check_pending(msg, error)
        elif not isinstance(error, RateLimited | DelayTooLong | TooLarge | Unavailable):
            raise error
        self.forget(msg, promise)

    def forget(self, msg: Msg, promise: Promise | None) -> None:
        """A request was refused."""
        msg.asks -= 1
        if msg.accepted is None and promise is not None:
            msg.promises.remove(promise)

    def _check_pending(self, msg: Msg, error: TooManyPending) -> None:
        pending = [
            one
            for one in self._model.messages.values()
            if one.message.owner == msg.message.owner and one.asks and not (one.ended or one.cancelled)
        ]
        if len(pending) < error.limit:
            raise Violation(
                f"{msg.token}: {len(pending)} pending messages were taken for {error.limit}"
            ) from error

    def batch(self) -> None:
        """Several messages in one request."""
        msgs = [self.new() for _ in range(self._random.randint(1, 6))]
        promises = [self.promise(msg) for msg in msgs]
        answer = self._sim.engine.schedule_many([msg.message for msg in msgs])

        def then(of: Answer[Any], _: bool) -> None:
            for msg, promise, result in zip(msgs, promises, of.value(), strict=True):
                self._settle_row(msg, promise, result)

        fact = partial(self._all_scheduled, msgs)
        self._sim.ask("batch " + " ".join(msg.token for msg in msgs), answer, then, fact)

    def _all_scheduled(self, msgs: Sequence[Msg], results: Sequence[Scheduled | TarryError]) -> None:
        for msg, result in zip(msgs, results, strict=True):
            if isinstance(result, Scheduled):
                self._checker.scheduled(msg, result)

    def together(self) -> None:
        """Several messages of a group, all or none, perhaps with one that leads them."""
        random = self._random
        group = self._sim.token("together")
        msgs = [self.new(plain=True) for _ in range(random.randint(2, 5))]
        for at, msg in enumerate(msgs):
            delay_ms = random.choice((1, 50, 2_000, 60_000)) if not at or random.random() < 0.4 else None
            msg.message = msgspec.structs.replace(
                msg.message, owner="ann", group=group, delay_ms=delay_ms, due_at_ms=None, ttl_ms=None
            )
        if random.random() < 0.6:
            leader = self.new(plain=True)
            leader.message = msgspec.structs.replace(
                leader.message,
                owner="ann",
                leads=group,
                delay_ms=0,
                due_at_ms=None,
                destination=random.choice(HOSTS),
            )
            for msg in msgs:
                msg.leader = leader
            msgs.insert(0, leader)
        promises = [self.promise(msg) for msg in msgs]
        answer = self._sim.engine.schedule_many([msg.message for msg in msgs], all_or_none=True)

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            if error is None:
                self._all_scheduled(msgs, of.value())
            elif not unclear:
                self.refused(msgs[0], promises[0], error)
                for msg, promise in zip(msgs[1:], promises[1:], strict=True):
                    self.forget(msg, promise)

        fact = partial(self._all_scheduled, msgs)
        self._sim.ask("together " + " ".join(msg.token for msg in msgs), answer, then, fact)

    def arrow(self) -> None:
        """Several messages as a record batch."""
        msgs = [self.new(plain=True) for _ in range(self._random.randint(1, 6))]
        promises = [self.promise(msg) for msg in msgs]
        rows = [msg.message for msg in msgs]
        columns = {
            "destination": pa.array([row.destination for row in rows]),
            "payload": pa.array([row.payload for row in rows], pa.binary()),
            "due_at_ms": pa.array([row.due_at_ms for row in rows], pa.int64()),
            "delay_ms": pa.array([row.delay_ms for row in rows], pa.int64()),
            "key": pa.array([row.key for row in rows], pa.string()),
            "owner": pa.array([row.owner for row in rows], pa.string()),
            "ttl_ms": pa.array([row.ttl_ms for row in rows], pa.int64()),
            "headers": pa.array(
                [list(row.headers.items()) for row in rows], pa.map_(pa.string(), pa.string())
            ),
        }
        defaults = Message(destination="orders")
        answer = self._sim.engine.schedule_columns(columns_of(pa.record_batch(columns), defaults), defaults)

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            for row, (msg, promise) in enumerate(zip(msgs, promises, strict=True)):
                if error is not None:
                    if not unclear:
                        self.refused(msg, promise, error)
                    continue
                value = of.value()
                taken = Scheduled(value.ids[row].decode(), int(value.due_at_ms[row]))
                self._settle_row(msg, promise, value.errors.get(row, taken))

        self._sim.ask("arrow " + " ".join(msg.token for msg in msgs), answer, then)

    def _settle_row(self, msg: Msg, promise: Promise | None, result: Scheduled | TarryError) -> None:
        if not isinstance(result, TarryError):
            self._checker.scheduled(msg, result)
        elif not isinstance(result, Unavailable):
            # An Unavailable row may have been refused or may be stored: that is not told apart.
            self.refused(msg, promise, result)

    def reuse(self) -> None:
        """Another request under an idempotency key that was used."""
        used = [msg for msg in self._model.accepted() if msg.message.idempotency_key is not None]
        if not used:
            return
        first = self._random.choice(used)
        other = msgspec.structs.replace(first.message, payload=b"another")

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            if not unclear and not isinstance(error, Unavailable) and getattr(error, "state", "") != "reused":
                raise Violation(f"{first.token}: its idempotency key was used again: {error!r}")

        self._sim.ask(f"reuse {first.token}", self._sim.engine.schedule(other), then)

    # Commands

    def command(self) -> None:
        """A command on a message that was accepted; one at a time for each message."""
        random = self._random
        able = [msg for msg in self._model.accepted() if not msg.busy]
        if not able:
            return
        waiting = [msg for msg in able if not (msg.ended or msg.token in self._model.places)]
        msg = random.choice(waiting if waiting and random.random() < 0.9 else able)
        assert msg.accepted is not None
        self.act(msg, msg.accepted.id)

    def act(self, msg: Msg, id_: str) -> None:
        """A command on this message."""
        msg.busy = True
        msg.commands += 1
        match self._random.choice(("cancel", "cancel", "send", "restart", "restart", "get")):
            case "cancel":
                maybe, msg.cancel_maybe = msg.cancel_maybe, True
                answer = self._sim.engine.cancel(id_)
                then = partial(self._cancelled, msg, maybe)
                self._sim.ask(f"cancel {msg.token}", answer, then, lambda _: self._checker.cancelled(msg))
            case "send":
                self._send(msg, id_)
            case "restart":
                self._restart(msg, id_)
            case _:
                self._sim.ask(f"get {msg.token}", self._sim.engine.get(id_), partial(self._got, msg))

    def _send(self, msg: Msg, id_: str) -> None:
        before, frozen_ms = list(msg.promises), msg.frozen_ms
        now = Promise(0, self._sim.since())
        msg.touched, msg.frozen_ms = True, None
        msg.promises.append(now)

        def then(of: Answer[Any], unclear: bool) -> None:
            if of.error() is None:
                msg.promise(now)
            self._moved(msg, before, frozen_ms, of, unclear)

        self._sim.ask(f"send {msg.token}", self._sim.engine.send(id_), then)

    def _restart(self, msg: Msg, id_: str) -> None:
        now_ms = self._sim.clock.now_ms()
        since = self._sim.since()
        before, delays_before, frozen_ms = list(msg.promises), msg.delays, msg.frozen_ms
        new: dict[str, Any] = {}
        delays = msg.delays
        match self._random.choice(("again", "delay", "due")):
            case "delay":
                new["delay_ms"] = self.delay()
                delays = [new["delay_ms"]]
            case "due":
                new["due_at_ms"] = now_ms + self.delay()
                delays = [new["due_at_ms"] - now_ms]
                # If it has to wait for a verdict, or for its body from the index, less is left of it by then.
                delays.insert(0, 0)
        msg.touched, msg.frozen_ms = True, None
        dues = [new["due_at_ms"]] if "due_at_ms" in new else [now_ms + delay_ms for delay_ms in delays]
        for due_at_ms in dues:
            msg.promises.append(Promise(0 if msg.eager else due_at_ms, since))
            self._sim.note_due(due_at_ms)
        msg.delays = sorted({*delays_before, *delays})

        def then(of: Answer[Any], unclear: bool) -> None:
            if of.error() is None:
                msg.delays = delays
                self._restarted(msg, min(dues), since, of.value())
            elif not unclear:
                msg.delays = delays_before
            self._moved(msg, before, frozen_ms, of, unclear)

        self._sim.ask(f"restart {msg.token} {new}", self._sim.engine.restart(id_, **new), then)

    def _restarted(self, msg: Msg, low_ms: int, since: int, view: MessageView) -> None:
        self._sim.note_due(view.due_at_ms or 0)
        if msg.eager:
            msg.promise(Promise(0, since))
            return
        if view.due_at_ms is None or (view.due_at_ms < low_ms and not self._model.clock_set_back):
            raise Violation(
                f"{msg.token} was restarted for {low_ms} and is said to be due at {view.due_at_ms}"
            )
        msg.promise(Promise(view.due_at_ms, since))

    def _moved(
        self, msg: Msg, before: list[Promise], frozen_ms: int | None, answer: Answer[Any], unclear: bool
    ) -> None:
        msg.busy = False
        error = answer.error()
        if error is None:
            # A message that is given another time, or sent, is not paused any more.
            msg.maybe_paused = False
        elif not unclear:
            msg.promises, msg.frozen_ms = before, frozen_ms
            self.check_conflict(msg, error)

    def _cancelled(self, msg: Msg, maybe: bool, answer: Answer[Any], unclear: bool) -> None:
        msg.busy = False
        error = answer.error()
        if error is None:
            self._checker.cancelled(msg)
        elif not unclear:
            msg.cancel_maybe = maybe
            self.check_conflict(msg, error)

    def check_conflict(self, msg: Msg, error: BaseException) -> None:
        """A command was refused, if it may be for this reason."""
        if isinstance(error, Unavailable | DelayTooLong):
            return
        if isinstance(error, NotFound) and msg.doomed:
            # Of what ended with its whole batch nothing is remembered.
            return
        if not isinstance(error, Conflict):
            raise Violation(f"{msg.token}: a command got {error!r}") from error
        if error.state in ("sent", "cancelled", "failed"):
            self._checker.told(msg, error.state)
        elif error.state == "led":
            self._checker.led(msg)
        elif error.state not in ("uncertain", "untimed"):
            raise Violation(f"{msg.token}: a command got {error!r}") from error

    def _got(self, msg: Msg, answer: Answer[Any], _: bool) -> None:
        msg.busy = False
        error = answer.error()
        if error is None:
            self._checker.shown(msg, answer.value())
        elif not isinstance(error, Unavailable) and not (isinstance(error, NotFound) and msg.doomed):
            raise error

    # Looking, and policies

    def look(self) -> None:
        """Operators look at things: nothing may come of it, and what waits is all there."""
        engine = self._sim.engine
        engine.stats()
        for topic in engine.topics.names():
            engine.topics.stats(topic)
        # Between being replaced and being durable again a version is not listed.
        while self._sim.commit_frame():
            pass
        if (
            self._sim.failing
            or self._sim.cramped
            or self._sim.world.ledger.failed
            or self._random.random() < 0.5
        ):
            return
        listed: list[MessageView] = []
        query: MessageQuery | None = MessageQuery(limit=self._random.choice((1, 10, 1000)))
        while query is not None:
            answer = engine.list_messages(query)
            if not answer.settled:
                self._sim.work_last()
            if isinstance(answer.error(), Unavailable):
                # A file was replaced meanwhile: a client asks again.
                return
            page = answer.value()
            if page.next_page is not None and page.next_page == query.page:
                raise Violation("a page of the list leads to itself")
            listed += page.messages
            query = msgspec.structs.replace(query, page=page.next_page) if page.next_page else None
        self._checker.listed(listed)

    def policy(self) -> None:
        """Operators change their minds too."""
        random = self._random
        scope, name = random.choice(
            (("broker", ""), ("namespace", "public/default"), ("topic", random.choice(TOPICS)))
        )
        policy: Policy | None = random.choice(
            (
                None,
                Policy(tick_ms=random.choice((1, 10, 1000))),
                Policy(send_per_second=random.choice((0.0, 1.0, 50.0))),
                Policy(accept_per_second=random.choice((0.0, 2.0))),
                Policy(max_pending_per_owner=random.choice((0, 5))),
                Policy(max_delay_ms=random.choice((0, 3_600_000))),
            )
        )
        if random.random() < 0.2:
            scope, name, policy = "topic", EAGER, Policy(delayed_delivery=random.random() < 0.5)
        self.set_policy(scope, name, policy)

    def set_policy(self, scope: Any, name: str, policy: Policy | None) -> None:
        """Set it, whatever the answer is."""
        self._model.limited |= policy is not None and bool(policy.send_per_second)
        if policy is not None:
            self._model.tick_ms = max(self._model.tick_ms, policy.tick_ms or 1)
        answer = self._sim.engine.set_policy(scope, name, policy)
        self._sim.ask(f"policy {scope} {short(name)} {policy}", answer, lambda *_: None)
