"""One seeded run: clients, consumers, a receiver, faults, and the engine stepped by hand between them.

Everything random comes from the seed, so that a run can be had again. Each step is one small thing: a client's
request, a group commit, a turn of the engine, a verdict, a fault. The order in which they come is what is tested.
"""

import errno
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tarry.core.delivery import Delivered, Delivery, Outlet, Refused, Retry, Verdict
from tarry.core.errors import (
    Conflict,
    Damage,
    DelayTooLong,
    NotFound,
    RateLimited,
    TarryError,
    TooManyPending,
    Unavailable,
)
from tarry.core.message import Message, MessageView
from tarry.core.policy import Policy
from tarry.engine.answer import Answer
from tarry.engine.settings import EngineSettings
from tarry.engine.topics import NewEntry, Received, Subscription
from tarry.ledger.ledger import LedgerSettings
from tarry.testing.disk import SimulatedCrash
from tarry.testing.outlet import Attempt, SimulatedOutlet
from tarry.testing.world import World
from tests.simulation.checker import Checker, Violation
from tests.simulation.model import (
    DEAD_LETTERS,
    EAGER,
    HOSTS,
    TOPICS,
    Model,
    Msg,
    Promise,
    Publication,
    Reader,
    Sub,
    full,
    short,
)

LETTERS = "letters"
OWNERS = ("ann", "bob", "")
KEYS = (None, None, "k1", "k2", "k3")
SUBSCRIPTIONS = {
    "x": ("exclusive", 0),
    "s": ("shared", 0),
    "f": ("failover", 0),
    "k": ("key_shared", 0),
    "d": ("shared", 2),
}
"""Name -> type, and how often an entry may be given back before it is a dead letter."""

AUDIT = "audit"
AUDITED = (*TOPICS, EAGER, DEAD_LETTERS, LETTERS)
DECADE_MS = 3_700 * 86_400_000


class WatchedOutlet(SimulatedOutlet):
    """Tells the simulation of each launch."""

    def __init__(self, outlet: SimulatedOutlet, watch: Callable[[Attempt], None]) -> None:
        super().__init__(outlet.clock)
        self._watch = watch

    def launch(self, outlet: Outlet, delivery: Delivery, verdict: Callable[[Verdict], None]) -> None:
        super().launch(outlet, delivery, verdict)
        self._watch(self.under_way[-1])


def settings_of(random: Random) -> EngineSettings:
    """Settings at which boundaries are met often."""
    backoff_ms = random.choice((1, 100, 1000))
    return EngineSettings(
        lead_ms=random.choice((2_000, 60_000, 600_000)),
        batch=random.choice((1, 2, 5, 1024)),
        concurrency=random.choice((1, 3, 256)),
        concurrency_per_host=random.choice((1, 2, 64)),
        attempts=random.choice((2, 4, 20)),
        backoff_min_ms=backoff_ms,
        backoff_max_ms=backoff_ms * random.choice((1, 16)),
        carry_after_ms=random.choice((0, 50, 2_000, 60_000)),
        mark_every_ms=random.choice((1, 50, 1_000)),
        clock_slack_ms=random.choice((0, 5, 5_000)),
        flush_every_ms=random.choice((1, 50, 500)),
        reclaim_every_ms=random.choice((1, 100, 10_000)),
        snapshot_every_ms=random.choice((1, 100, 300_000)),
        finalised_retention_ms=DECADE_MS,
        unread_retention_ms=DECADE_MS,
        idempotency_retention_ms=DECADE_MS,
        dead_letter_topic=random.choice(("", DEAD_LETTERS)),
    )


def ledger_settings_of(random: Random) -> LedgerSettings:
    """Segments so small that they roll often."""
    return LedgerSettings(
        segment_bytes=4096 + random.choice((4096, 8192, 65536)),
        commit_max_records=random.choice((1, 3, 8192)),
        commit_max_bytes=random.choice((1024, 8 << 20)),
        spare_segments=random.choice((1, 2)),
    )


def describe(msg: Msg) -> str:
    """A message in a line, for the trace."""
    fields = msg.message.__struct_fields__
    said = {name: getattr(msg.message, name) for name in fields if name not in ("payload", "headers", "door")}
    return f"message {msg.token} " + " ".join(f"{name}={value}" for name, value in said.items() if value)


class Simulation:
    """One run."""

    def __init__(self, seed: int, steps: int = 250, trace: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.steps = steps
        self.step = 0
        self.trace = trace
        self.refused: Damage | Unavailable | None = None
        """Why the server would not start, if it rightly would not: the run is over then."""
        settings = settings_of(self.random)
        self.world = World(
            seed, settings=settings, ledger_settings=ledger_settings_of(self.random), start=False
        )
        self.world.outlet = WatchedOutlet(self.world.outlet, self._launched)
        self.clock = self.world.clock
        self.model = Model()
        self.checker = Checker(self.model, self.clock, settings.attempts, settings.carry_after_ms)
        self.open: list[tuple[str, Answer[Any]]] = []
        """What was asked in this life and is not answered yet."""
        self.up = False
        self.failing = False
        """The disk has failed: the server takes nothing more, and will be restarted."""
        self.cramped = False
        """There was no room for some time in this life: ends may wait to be written."""
        self.draining = False
        self.last_due_ms = 0
        """When the last of all messages is due."""
        self._tokens = 0
        self._sequences = {"p1": 0, "p2": 0}
        self._weights: dict[str, int] = {}

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.step:4d} {self.clock._at_ms % 100_000_000:9d} {text}")

    # The run

    def run(self) -> None:
        """Run all steps, then drain and judge."""
        self._choose_weights()
        self._found()
        actions = [getattr(self, f"do_{name}") for name in self._weights]
        weights = list(self._weights.values())
        while self.step < self.steps and self.refused is None:
            self.step += 1
            if not self.up:
                self._boot()
                continue
            action = self.random.choices(actions, weights)[0]
            try:
                action()
            except SimulatedCrash as crash:
                self._crash(f"during {action.__name__[3:]}: {crash}")
        if self.refused is None:
            self._drain()

    def _choose_weights(self) -> None:
        random = self.random
        self._weights = {
            "tick": 25,
            "commit": 25,
            "work": random.choice((3, 12)),
            "wait": 15,
            "verdict": random.choice((2, 12)),
            "schedule": 14,
            "batch": 2,
            "command": 10,
            "publish": 6,
            "subscribe": 3,
            "attach": 4,
            "flow": 5,
            "ack": 8,
            "nack": 3,
            "seek": random.choice((0, 1)),
            "close": 1,
            "policy": random.choice((0, 1)),
            "look": 2,
            "jump": random.choice((0, 0, 1)),
            "fault": random.choice((0, 0, 1)),
            "crash": random.choice((0, 1, 3)),
            "flip": random.choice((0, 0, 0, 0, 1)),
        }

    def _found(self) -> None:
        """The first life begins well: somebody reads every topic from its first entry on."""
        self.world.start()
        self.up = True
        for topic in AUDITED:
            self._subscribe(topic, AUDIT, "exclusive", 0, "earliest")
        while self.world.commit():
            pass
        for sub in self.model.subs.values():
            self._attach(sub, 1_000_000)

    # Lives

    def _boot(self) -> None:
        if self.random.random() < 0.1 and not self.draining:
            self.world.disk.crash_at(self.random.randint(1, 12))
        try:
            self.world.start()
        except SimulatedCrash as crash:
            self._crash(f"during recovery: {crash}")
            return
        except Unavailable as error:
            if "restore the registry from its snapshot" not in str(error):
                raise
            # The power loss took more of the registry away than was reclaimed of the ledger.
            path = self.random.choice(sorted(self.world.registry_disk.snapshots))
            self.say(f"restore {path}: {error}")
            self.world.registry_disk.restore(path)
            self._boot()
            return
        self.up = True
        self.failing = self.cramped = False
        self.say(f"boot, ledger {self.engine.journal.ledger.first_seq}..{self.engine.journal.ledger.durable_seq}")

    @property
    def engine(self) -> Any:
        return self.world.engine

    def _crash(self, why: str, power: bool | None = None) -> None:
        random = self.random
        if power is None:
            power = random.random() < 0.7
        for attempt in list(self.world.outlet.under_way):
            # What is on its way when the sender dies may still arrive.
            if random.random() < 0.5:
                self._arrive(attempt)
        if power:
            lost = random.choice((0, 0, 1, 3, 8))
            self.world.crash(lost)
        else:
            self.world.kill()
        self.world.disk.capacity_bytes = None
        self.world.registry_disk.failing = 0
        self.up = False
        self.open.clear()
        self.say(f"{'power loss' if power else 'killed'} {why}")
        for msg in self.model.messages.values():
            msg.busy = False
        for sub in self.model.subs.values():
            sub.new_life()
        if random.random() < 0.3:
            self.clock.advance(random.choice((1, 1000, 100_000)))
        elif random.random() < 0.1:
            self._jump(-random.choice((1, 1000, 100_000)))
        self.checker.new_life()

    def do_crash(self) -> None:
        if self.random.random() < 0.5:
            self.world.disk.crash_at(self.random.randint(1, 30))
            self.say("crash soon")
            return
        if self.random.random() < 0.1:
            self.say("stop cleanly")
            self.world.stop()
            self._crash("after a clean stop")
            return
        self._crash("between two steps")

    def do_fault(self) -> None:
        disk, random = self.world.disk, self.random
        kind = random.choice(("sync", "write", "prepare", "full", "registry"))
        self.say(f"fault {kind}")
        match kind:
            case "sync" | "write":
                disk.fail_next(kind, random.choice((errno.EIO, errno.ENOSPC)))
            case "prepare":
                disk.fail_next(random.choice(("create", "rename", "sync_folder")), errno.EIO)
            case "full":
                if disk.capacity_bytes is None:
                    disk.capacity_bytes = disk._used_bytes() + random.choice((0, 5_000, 20_000))
                else:
                    disk.capacity_bytes = None
            case "registry":
                self.world.registry_disk.failing = random.randint(1, 3)

    def do_flip(self) -> None:
        """The medium goes bad while the server is down."""
        if self.random.random() < 0.7:
            return
        self._crash("to flip a bit", power=False)
        disk = self.world.disk
        names = [name for name in disk.listdir("ledger") if name.endswith(".seg") or name == "head"]
        path = f"ledger/{self.random.choice(names)}"
        file = disk.open(path)
        used = len(file.read(file.size(), 0).rstrip(b"\0"))
        limit = max(1, used + 16 if self.random.random() < 0.9 else file.size())
        offset, bit = self.random.randrange(min(limit, file.size())), self.random.randrange(8)
        disk.flip_bit(path, offset, bit)
        self.say(f"flip bit {bit} of byte {offset} of {path}")
        try:
            self._boot()
        except Damage as damage:
            self.say(f"refused: {damage}")
            if damage.file != path:
                raise Violation(f"byte {offset} of {path} was flipped, but the damage is said to be: {damage}") from damage
            self.refused = damage
        except Unavailable as error:
            self.say(f"refused: {error}")
            self.refused = error

    # Time and the engine's own steps

    def do_tick(self) -> None:
        self.world.tick()

    def do_commit(self) -> None:
        journal = self.engine.journal
        self.world.commit()
        if journal.ledger.failed is not None:
            self.failing = True
            if self.random.random() < 0.3:
                self._crash("after the disk failed")
        self.cramped |= journal.ledger.low_space
        if journal.ledger.durable_seq == journal.ledger.next_seq - 1 and not self.cramped:
            self.checker.all_durable()

    def do_work(self) -> None:
        self.world.work()

    def do_wait(self) -> None:
        random = self.random
        kind = random.random()
        if kind < 0.3:
            wake_ms = self.world.tick()
            ahead_ms = wake_ms - self.clock.now_ms()
            if 0 < ahead_ms < 10_000:
                self.clock.advance(ahead_ms)
        elif kind < 0.9:
            self.clock.advance(random.choice((1, 1, 5, 50, 400)))
        else:
            self.clock.advance(random.choice((2_000, 61_000, 700_000)))

    def do_jump(self) -> None:
        self._jump(self.random.choice((-1, -50, -1_000, -70_000, -3_600_000, 50, 10_000, 3_600_000)))

    def _jump(self, ms: int) -> None:
        self.say(f"the clock jumps by {ms}")
        self.clock.jump(ms)
        if ms < 0:
            self.model.clock_set_back = True
            for msg in self.model.messages.values():
                if msg.busy:
                    # A command that waits for a verdict will count its delay from the new time.
                    msg.promises.append(Promise(0, 0))

    def do_verdict(self) -> None:
        random = self.random
        if not self.world.outlet.under_way:
            return
        attempt = random.choice(self.world.outlet.under_way)
        kind = random.random()
        if kind < 0.1:
            self._arrive(attempt)
        elif attempt.arrived and kind < 0.5:
            self._answer(attempt, Retry("timed out", uncertain=True))
        elif attempt.arrived or kind < 0.6:
            self._answer(attempt, Delivered(random.choice((None, "ref"))))
        elif kind < 0.85:
            self._answer(attempt, Retry("busy", random.choice((None, None, 0, 30, 5_000, 100_000))))
        elif kind < 0.93:
            if random.random() < 0.5:
                self._arrive(attempt)
            self._answer(attempt, Retry("timed out", random.choice((None, 10)), uncertain=True))
        else:
            self._answer(attempt, Refused("no such door"))

    def _launched(self, attempt: Attempt) -> None:
        self.say(f"launch {attempt.delivery.headers.get('token')} attempt {attempt.delivery.attempt}")
        self.checker.launched(attempt.delivery)

    def _msg_of(self, attempt: Attempt) -> Msg:
        return self.model.messages[attempt.delivery.headers["token"]]

    def _arrive(self, attempt: Attempt) -> None:
        if not attempt.arrived:
            self.say(f"arrival of {attempt.delivery.headers['token']}")
            attempt.arrive()
            self.checker.arrived(self._msg_of(attempt))

    def _answer(self, attempt: Attempt, verdict: Verdict) -> None:
        if isinstance(verdict, Delivered):
            self._arrive(attempt)
        msg = self._msg_of(attempt)
        self.say(f"verdict {msg.token} {verdict}")
        self.checker.answered(msg, verdict)
        attempt.answer(verdict)

    # Clients

    def _ask(self, what: str, answer: Answer[Any], then: Callable[[Answer[Any], bool], None]) -> None:
        """Wait for an answer; `then` is told whether an error leaves it open what became of the request."""
        at_once = answer.settled
        if not at_once:
            self.open.append((what, answer))

        def settled(of: Answer[Any]) -> None:
            error = of.error()
            if self.trace is not None:
                self.say(f"{what} -> {of.value() if error is None else repr(error)}"[:400])
            if not at_once:
                self.open.remove((what, of))
            then(of, isinstance(error, Unavailable) and not at_once)

        answer.then(settled)

    def _token(self, letter: str) -> str:
        self._tokens += 1
        return f"{letter}{self._tokens}"

    def _new_message(self) -> Msg:
        random = self.random
        now_ms = self.clock.now_ms()
        token = self._token("m")
        destination = random.choice((*HOSTS, *TOPICS, *HOSTS, *TOPICS, EAGER))
        fields: dict[str, Any] = {}
        delay_ms = self._delay()
        group = random.choice(("g1", "g2", "g3")) + str(self._tokens // 12) if random.random() < 0.25 else None
        if group is None or random.random() < 0.7:
            if random.random() < 0.5:
                fields["delay_ms"] = delay_ms
            else:
                fields["due_at_ms"] = now_ms + delay_ms - random.choice((0, 0, 0, 5_000))
        message = Message(
            destination=destination,
            payload=token.encode() * random.choice((1, 1, 5, 60, 300)),
            headers={"token": token},
            key=random.choice(KEYS),
            owner=random.choice(OWNERS),
            group=group,
            ttl_ms=random.choice((1, 100, 60_000)) if random.random() < 0.1 else None,
            idempotency_key=f"i{self._tokens}" if random.random() < 0.3 else None,
            listed=random.random() < 0.3,
            **fields,
        )
        msg = self.model.messages[token] = Msg(token, message, [], self.step)
        return msg

    def _delay(self) -> int:
        random = self.random
        return random.choice(
            (0, 1, 1, random.randint(1, 50), random.randint(1, 50), random.randint(1, 2_000),
             random.randint(1, 2_000), random.randint(1, 120_000), 3_600_000, 30 * 86_400_000)
        )  # fmt: skip

    def _promise(self, msg: Msg) -> Promise | None:
        """What is promised if the request is taken now; None if it has been taken already."""
        msg.asks += 1
        if msg.accepted is not None:
            return None
        now_ms = self.clock.now_ms()
        message = msg.message
        due_at_ms = message.due_at_ms if message.due_at_ms is not None else now_ms + (message.delay_ms or 0)
        if not msg.timed:
            # It goes out only by command.
            due_at_ms = 1 << 60
        elif message.delay_ms is not None:
            msg.delays.append(message.delay_ms)
        else:
            msg.delays.append(max(0, due_at_ms - now_ms))
        self.last_due_ms = max(self.last_due_ms, due_at_ms if msg.timed else 0)
        promise = Promise(0 if short(message.destination) == EAGER else due_at_ms, self._since())
        msg.promises.append(promise)
        return promise

    def _since(self) -> int:
        self.clock.now_ms()
        return len(self.clock.readings) - 1

    def do_schedule(self) -> None:
        repeatable = [
            msg for msg in self.model.messages.values() if msg.message.idempotency_key is not None and msg.asks
        ]
        if repeatable and self.random.random() < 0.15:
            msg = self.random.choice(repeatable)
        else:
            msg = self._new_message()
        promise = self._promise(msg)
        if self.trace is not None:
            self.say(describe(msg))
        answer = self.engine.schedule(msg.message)
        self._ask(f"schedule {msg.token}", answer, partial(self._scheduled, msg, promise))

    def _scheduled(self, msg: Msg, promise: Promise | None, answer: Answer[Any], unclear: bool) -> None:
        error = answer.error()
        if error is None:
            self.checker.scheduled(msg, answer.value())
        elif not unclear:
            self._schedule_refused(msg, promise, error)

    def _schedule_refused(self, msg: Msg, promise: Promise | None, error: BaseException) -> None:
        if not isinstance(error, RateLimited | TooManyPending | DelayTooLong | Conflict | Unavailable):
            raise error
        if isinstance(error, Conflict):
            if error.state == "reused":
                raise Violation(f"{msg.token}: the same request was taken for another") from error
            if msg.accepted is not None:
                raise Violation(f"{msg.token}: a repeated request got {error}") from error
        msg.asks -= 1
        if msg.accepted is None and promise is not None:
            msg.promises.remove(promise)

    def do_batch(self) -> None:
        msgs = [self._new_message() for _ in range(self.random.randint(1, 6))]
        promises = [self._promise(msg) for msg in msgs]
        if self.trace is not None:
            for msg in msgs:
                self.say(describe(msg))
        tokens = " ".join(msg.token for msg in msgs)
        answer = self.engine.schedule_many([msg.message for msg in msgs])

        def then(of: Answer[Any], _: bool) -> None:
            for msg, promise, result in zip(msgs, promises, of.value(), strict=True):
                if not isinstance(result, TarryError):
                    self.checker.scheduled(msg, result)
                elif not isinstance(result, Unavailable):
                    self._schedule_refused(msg, promise, result)

        self._ask(f"batch {tokens}", answer, then)

    def do_command(self) -> None:
        random = self.random
        able = [msg for msg in self.model.messages.values() if msg.accepted is not None and not msg.busy]
        if not able:
            return
        waiting = [msg for msg in able if not (msg.ended or msg.token in self.model.places)]
        msg = random.choice(waiting if waiting and random.random() < 0.9 else able)
        assert msg.accepted is not None
        msg.busy = True
        before = list(msg.promises)
        since = self._since()
        id_ = msg.accepted.id
        kind = random.choice(("cancel", "cancel", "send", "restart", "restart", "get"))
        match kind:
            case "cancel":
                maybe, msg.cancel_maybe = msg.cancel_maybe, True
                answer = self.engine.cancel(id_)
                self._ask(f"cancel {msg.token}", answer, partial(self._cancelled, msg, maybe))
            case "send":
                msg.touched = True
                msg.promises.append(Promise(0, since))
                answer = self.engine.send(id_)
                self._ask(f"send {msg.token}", answer, partial(self._moved, msg, before, None))
            case "restart":
                self._restart(msg, id_, before, since)
            case _:
                self._ask(f"get {msg.token}", self.engine.get(id_), partial(self._got, msg))

    def _restart(self, msg: Msg, id_: str, before: list[Promise], since: int) -> None:
        random = self.random
        now_ms = self.clock.now_ms()
        msg.touched = True
        new: dict[str, int] = {}
        match random.choice(("again", "delay", "due")):
            case "delay":
                new["delay_ms"] = self._delay()
                delays = [new["delay_ms"]]
            case "due":
                new["due_at_ms"] = now_ms + self._delay()
                delays = [new["due_at_ms"] - now_ms]
            case _:
                delays = msg.delays
        eager = short(msg.message.destination) == EAGER
        promises = [Promise(0 if eager else now_ms + delay_ms, since) for delay_ms in delays]
        self.last_due_ms = max(self.last_due_ms, *(now_ms + delay_ms for delay_ms in delays), 0)
        msg.promises = before + promises
        known = msg.delays
        msg.delays = sorted({*known, *delays})
        answer = self.engine.restart(id_, **new)

        def then(of: Answer[Any], unclear: bool) -> None:
            if of.error() is None:
                msg.delays = delays
            elif not unclear:
                msg.delays = known
            self._moved(msg, before, promises, of, unclear)

        self._ask(f"restart {msg.token} {new}", answer, then)

    def _moved(
        self, msg: Msg, before: list[Promise], after: list[Promise] | None, answer: Answer[Any], unclear: bool
    ) -> None:
        msg.busy = False
        error = answer.error()
        if error is None:
            view: MessageView = answer.value()
            if after is None:
                msg.promises = msg.promises[-1:]
                msg.sent_by_command = True
                return
            if short(msg.message.destination) != EAGER:
                low_ms = min(promise.due_at_ms for promise in after)
                if view.due_at_ms is None or (view.due_at_ms < low_ms and not self.model.clock_set_back):
                    raise Violation(f"{msg.token} was restarted for {low_ms} and is said to be due at {view.due_at_ms}")
                after = [Promise(view.due_at_ms, after[0].since)]
            msg.promises = after
        elif not unclear:
            msg.promises = before
            self._check_conflict(msg, error)

    def _cancelled(self, msg: Msg, maybe: bool, answer: Answer[Any], unclear: bool) -> None:
        msg.busy = False
        error = answer.error()
        if error is None:
            self.checker.cancelled(msg)
        elif not unclear:
            msg.cancel_maybe = maybe
            self._check_conflict(msg, error)

    def _check_conflict(self, msg: Msg, error: BaseException) -> None:
        if isinstance(error, Unavailable | DelayTooLong):
            return
        if not isinstance(error, Conflict):
            raise Violation(f"{msg.token}: a command got {error!r}") from error
        if error.state in ("sent", "cancelled", "failed"):
            self.checker.told(msg, error.state)
        elif error.state not in ("uncertain", "untimed"):
            raise Violation(f"{msg.token}: a command got {error!r}") from error

    def _got(self, msg: Msg, answer: Answer[Any], unclear: bool) -> None:
        msg.busy = False
        error = answer.error()
        if error is None:
            self.checker.shown(msg, answer.value())
        elif not isinstance(error, Unavailable):
            raise error

    def do_look(self) -> None:
        """Operators look at things: nothing may come of it."""
        self.engine.stats()
        for topic in self.engine.topics.names():
            self.engine.topics.stats(topic)

    def do_policy(self) -> None:
        random = self.random
        scope, name = random.choice((("broker", ""), ("namespace", "public/default"), ("topic", random.choice(TOPICS))))
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
        self._ask(f"policy {scope} {name} {policy}", self.engine.set_policy(scope, name, policy), lambda *_: None)

    # Publishing

    def do_publish(self) -> None:
        random = self.random
        topic = random.choice((*TOPICS, *TOPICS, EAGER))
        publications = [self._new_publication(topic) for _ in range(random.choice((1, 1, 3)))]
        if random.random() < 0.4:
            self._publish_in_sequence(topic, publications)
        else:
            self._publish(topic, publications)

    def _new_publication(self, topic: str) -> Publication:
        random = self.random
        token = self._token("p")
        deliver_at_ms = self.clock.now_ms() + self._delay() - random.choice((0, 5)) if random.random() < 0.4 else None
        self.last_due_ms = max(self.last_due_ms, deliver_at_ms or 0)
        publication = Publication(
            token, topic, token.encode() * random.choice((1, 20)), {"token": token}, random.choice(KEYS),
            deliver_at_ms, 1_000 if topic == EAGER and random.random() < 0.3 else None, self._since(),
        )  # fmt: skip
        self.model.publications[token] = publication
        return publication

    def _publish_in_sequence(self, topic: str, publications: list[Publication]) -> None:
        """A producer numbers what it publishes, and publishes again what was not answered before a crash."""
        producer = self.random.choice(("p1", "p2"))
        lost = [
            one
            for one in self.model.publications.values()
            if one.producer is not None and one.producer[0] == f"{producer}-{topic}" and one.maybe
        ]
        for publication in publications:
            self._sequences[producer] += 1
            publication.producer = (f"{producer}-{topic}", self._sequences[producer])
        if not any(what.startswith(f"publish {topic}") for what, _ in self.open):
            self._publish(topic, [*lost, *publications])
        else:
            for publication in publications:
                publication.maybe = False

    def _publish(self, topic: str, publications: list[Publication]) -> None:
        entries = [
            NewEntry(
                payload=one.payload,
                headers=one.headers,
                key=one.key,
                deliver_at_ms=one.deliver_at_ms,
                ttl_ms=one.ttl_ms,
                producer=one.producer[0] if one.producer else None,
                producer_sequence=one.producer[1] if one.producer else -1,
            )
            for one in publications
        ]
        before = {one.token for one in publications if one.producer and any(o is one for o in publications)}
        again = {token for token in before if self.model.publications[token].since < self._since()}
        answer = self.engine.topics.publish(topic, entries)

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            if error is None:
                for one, entry_id in zip(publications, of.value(), strict=True):
                    one.accepted, one.maybe = True, False
                    if entry_id >= 0:
                        one.entry_id = entry_id
                    elif one.token not in again:
                        raise Violation(f"{one.token} is said to be a duplicate, but is new")
            elif not isinstance(error, Unavailable | DelayTooLong):
                raise error
            elif not unclear:
                for one in publications:
                    if one.token not in again:
                        one.maybe = False

        self._ask(f"publish {topic} {' '.join(one.token for one in publications)}", answer, then)

    # Consuming

    def do_subscribe(self) -> None:
        random = self.random
        name = random.choice(sorted(SUBSCRIPTIONS))
        type_, limit = SUBSCRIPTIONS[name]
        topic = random.choice((*TOPICS, EAGER))
        self._subscribe(topic, name, type_, limit, random.choice(("earliest", "latest")))

    def _subscribe(self, topic: str, name: str, type_: str, limit: int, start: str) -> None:
        sub = self.model.subs.get((topic, name))
        if sub is None:
            sub = self.model.subs[topic, name] = Sub(topic, name, type_, start, limit)
        answer = self.engine.topics.subscribe(
            topic, name, type_, start=start, max_redeliveries=limit or None, dead_letter_topic=LETTERS if limit else None
        )
        self._ask(f"subscribe {topic}/{name}", answer, partial(self._subscribed, sub))

    def _subscribed(self, sub: Sub, answer: Answer[Any], unclear: bool) -> None:
        error = answer.error()
        if error is not None:
            if not isinstance(error, Unavailable):
                raise error
            return
        if not sub.accepted:
            sub.accepted = True
            stats = self.engine.topics.stats(sub.topic)
            sub.first = stats.first_entry if sub.name == AUDIT else stats.next_entry

    def _handle(self, sub: Sub) -> Subscription | None:
        try:
            return self.engine.topics.subscription(sub.topic, sub.name)  # type: ignore[no-any-return]
        except NotFound:
            if sub.accepted:
                raise Violation(f"the subscription {sub.topic}/{sub.name} is gone") from None
            return None

    def do_attach(self) -> None:
        if not self.model.subs:
            return
        sub = self.random.choice(list(self.model.subs.values()))
        self._attach(sub, self.random.choice((1, 5, 1_000_000)))

    def _attach(self, sub: Sub, permits: int) -> None:
        handle = self._handle(sub)
        if handle is None or not sub.accepted:
            return
        reader = Reader(sub, self._token("c"))
        priority = self.random.choice((0, 1))
        try:
            consumer = handle.attach(reader.name, partial(self._deliver, sub, reader), priority=priority)
        except Conflict:
            if sub.type == "exclusive" and sub.consumers:
                return
            raise
        self.say(f"attach {reader.name} to {sub.topic}/{sub.name} with {permits}")
        reader.handle = consumer
        reader.priority = priority
        self._joined(sub, reader)
        reader.permits = permits
        consumer.flow(permits)

    def _joined(self, sub: Sub, reader: Reader) -> None:
        active = sub.consumers[:1]
        sub.consumers.append(reader)
        if sub.type == "failover":
            sub.consumers.sort(key=lambda one: (one.priority, one.name))
            if active and sub.consumers[0] is not active[0]:
                active[0].held.clear()

    def _deliver(self, sub: Sub, reader: Reader, entries: list[Received]) -> None:
        self.say(f"{sub.topic}/{sub.name} gives {[entry.entry_id for entry in entries]} to {reader.name}")
        self.checker.received(sub, reader, entries)

    def _reader(self) -> Reader | None:
        readers = [reader for sub in self.model.subs.values() for reader in sub.consumers]
        return self.random.choice(readers) if readers else None

    def do_flow(self) -> None:
        reader = self._reader()
        if reader is not None:
            more = self.random.choice((1, 10))
            reader.permits += more
            reader.handle.flow(more)

    def do_ack(self) -> None:
        reader = self._reader()
        if reader is None or not reader.held:
            return
        sub, random = reader.sub, self.random
        held = sorted(reader.held)
        if sub.in_order and random.random() < 0.4:
            last = random.choice(held)
            below = last + 1
            for other in sub.consumers:
                for entry_id in [one for one in other.held if one < below]:
                    del other.held[entry_id]
            sub.excused_below = max(sub.excused_below, below)
            answer = reader.handle.ack_below(last)
            then = partial(self._acked, sub, [], below)
        else:
            ids = random.sample(held, random.randint(1, len(held)))
            for entry_id in ids:
                del reader.held[entry_id]
            sub.excused.update(ids)
            answer = reader.handle.ack(ids)
            then = partial(self._acked, sub, ids, 0)
        sub.busy += 1
        self._ask(f"ack {sub.topic}/{sub.name}", answer, then)

    def _acked(self, sub: Sub, ids: list[int], below: int, answer: Answer[Any], unclear: bool) -> None:
        sub.busy -= 1
        error = answer.error()
        if error is None:
            sub.acked.update(ids)
            sub.acked_below = max(sub.acked_below, below)
        elif not isinstance(error, Unavailable):
            raise error

    def do_nack(self) -> None:
        reader = self._reader()
        if reader is None or not reader.held or self.failing:
            return
        sub = reader.sub
        ids = self.random.sample(sorted(reader.held), self.random.randint(1, len(reader.held)))
        for entry_id in ids:
            del reader.held[entry_id]
            sub.nacks[entry_id] = sub.nacks.get(entry_id, 0) + 1
            if sub.max_redeliveries and sub.nacks[entry_id] > sub.max_redeliveries:
                sub.letters.add(entry_id)
        self.say(f"nack {sub.topic}/{sub.name} {ids}")
        reader.handle.nack(ids)

    def do_seek(self) -> None:
        subs = [sub for sub in self.model.subs.values() if sub.accepted and not sub.busy and sub.name != AUDIT]
        if not subs:
            return
        sub = self.random.choice(subs)
        handle = self._handle(sub)
        assert handle is not None
        to = self.random.randint(0, self.engine.topics.stats(sub.topic).next_entry)
        answer = handle.seek(to)
        if answer.settled:
            # Refused: nothing was changed.
            if not isinstance(answer.error(), Unavailable):
                raise Violation(f"a seek was answered at once: {answer.error()!r}")
            return
        sub.busy += 1
        sub.excused |= sub.acked
        sub.excused_below = max(sub.excused_below, to)
        sub.acked.clear()
        sub.acked_below = 0
        sub.rewound()

        def then(of: Answer[Any], unclear: bool) -> None:
            sub.busy -= 1
            if of.error() is None:
                sub.acked_below = to
            elif not isinstance(of.error(), Unavailable):
                raise of.error()  # type: ignore[misc]

        self._ask(f"seek {sub.topic}/{sub.name} {to}", answer, then)

    def do_close(self) -> None:
        reader = self._reader()
        if reader is not None:
            self._close(reader)

    def _close(self, reader: Reader) -> None:
        self.say(f"close {reader.name}")
        sub = reader.sub
        sub.consumers.remove(reader)
        reader.closed = True
        reader.held.clear()
        reader.handle.close()

    # The end

    def _drain(self) -> None:
        """Let everything come to its end without further faults, and judge."""
        self.draining = True
        self.say("--- drain ---")
        self._heal()
        for round_ in range(400):
            self.step += 1
            wake_ms = self._all_at_once()
            if self._at_rest() and round_ > 12:
                break
            now_ms = self.clock.now_ms()
            if round_ % 40 == 39:
                self.clock.set(max(now_ms, self.last_due_ms) + 1_000)
            elif now_ms < wake_ms < now_ms + 300_000:
                self.clock.set(wake_ms)
            else:
                self.clock.advance((1, 100, 10_000, 400_000)[round_ % 4])
        for what, _ in self.open:
            raise Violation(f"never answered: {what}")
        self._judge()

    def _heal(self) -> None:
        while True:
            while not self.up:
                self._boot()
            self.world.disk._crash_at = None
            self.world.disk._faults.clear()
            self.world.disk.capacity_bytes = None
            self.world.registry_disk.failing = 0
            if self.engine.journal.ledger.failed is None:
                break
            self._crash("because the disk had failed")
        self._ask("policy", self.engine.set_policy("broker", "", Policy(send_per_second=0.0)), lambda *_: None)
        for topic in TOPICS:
            self._ask("policy", self.engine.set_policy("topic", topic, None), lambda *_: None)
        self._ask("policy", self.engine.set_policy("namespace", "public/default", None), lambda *_: None)
        self._all_at_once()
        for sub in self.model.subs.values():
            if sub.type == "key_shared":
                # A key stays with the consumer that holds an entry of it: with one consumer, all keys can go on.
                for reader in list(sub.consumers):
                    self._close(reader)
            for reader in sub.consumers:
                reader.permits += 1_000_000
                reader.handle.flow(1_000_000)
            if not sub.consumers:
                self._attach(sub, 1_000_000)

    def _all_at_once(self) -> int:
        wake_ms = 0
        for _ in range(300):
            wake_ms = self.world.tick()
            busy = wake_ms == 0
            while self.world.commit():
                busy = True
            self.do_commit()
            while self.world.work():
                busy = True
            for attempt in list(self.world.outlet.under_way):
                busy = True
                self._answer(attempt, Delivered())
            if not busy:
                break
        else:
            raise Violation("the engine does not come to rest")
        return wake_ms

    def _at_rest(self) -> bool:
        return not self.open and self.engine.stats().pending == 0 and self.clock.now_ms() > self.last_due_ms

    def _judge(self) -> None:
        views: dict[str, MessageView] = {}
        for msg in self.model.accepted():
            assert msg.accepted is not None
            answer = self.engine.get(msg.accepted.id)
            self._all_at_once()
            try:
                views[msg.token] = answer.value()
            except TarryError as error:
                raise Violation(f"{msg.token} cannot be found any more: {error!r}") from error
            self.checker.shown(msg, views[msg.token])
        self.checker.check_ends(views)
        self.checker.check_entries()
        stats = self.engine.stats()
        if not self.model.damaged and (stats.pending or stats.owners):
            raise Violation(f"all is done, but {stats.pending} messages of {stats.owners} owners are said to wait")
        self._crash("at the end, to see that nothing comes again")
        while not self.up:
            self._boot()
        self._all_at_once()
        if self.engine.stats().pending:
            raise Violation("a restart brought messages back")
