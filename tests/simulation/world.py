"""One seeded run: clients, consumers, a receiver, faults, and the engine stepped by hand between them.

Everything random comes from the seed, so that a run can be had again. Each step is one small thing: a client's
request, a group commit, a turn of the engine, a verdict, a fault. The order in which they come is what is tested.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

from tarry.core.errors import Conflict, Damage, NotFound, TarryError, Unavailable
from tarry.core.messages.delivery import Delivered, Delivery, Outlet, Refused, Retry, Verdict
from tarry.core.messages.message import MessageView
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer, failed
from tarry.engine.bodies.bodies import AGAIN_MS
from tarry.engine.dispatch.awaited_bodies import ORDER_WAITS_MS
from tarry.engine.engine import Engine
from tarry.engine.flights.flights import OnVerdicts
from tarry.testing.clock import SimulatedClock
from tarry.testing.disk import SimulatedCrash
from tarry.testing.log import SimulatedLog
from tarry.testing.outlet import Attempt, SimulatedOutlet
from tarry.testing.registry import IMAGES
from tarry.testing.world import World
from tests.simulation.bulk import Bulk
from tests.simulation.bulk_commands import BulkCommands
from tests.simulation.checker import Checker, Violation
from tests.simulation.clients import Clients
from tests.simulation.cluster import NAMES, Cluster
from tests.simulation.consumers import Consumers
from tests.simulation.coverage import Coverage
from tests.simulation.faults import Faults
from tests.simulation.model import FLEETING, TOPICS, Model, Msg, Publication, token_of
from tests.simulation.names import Names
from tests.simulation.pauses import Pauses
from tests.simulation.recalls import Recalls
from tests.simulation.repeats import Repeats
from tests.simulation.replay import check_replay
from tests.simulation.retries import Retries
from tests.simulation.settings import (
    dead_block_bits,
    engine_settings,
    index_piece,
    ledger_settings,
    shared_by_tenants,
    weights,
)

DRAIN_ROUNDS = 400
LOST = (0, 0, 1, 3, IMAGES, IMAGES)
"""How many transactions of the registry a power loss takes away: now and then all that it can."""
EVERYTHING = -1
"""Instead of a number of transactions: the registry is gone."""
RESTARTED_APART = 0.05
"""The share of steps after which a second engine recovers from copies, if everything is on disk."""
FORGOTTEN_AFTER_MS = 700_000
"""So long after nobody needs them entries are surely forgotten."""
STARTS = 50
"""How often servers start until one runs, at the most, when nothing goes wrong any more."""
FETCHES = 5
"""How often a body is fetched from the index until it is there, at the most, when no files go any more."""


class WatchedOutlet(SimulatedOutlet):
    """Tells the simulation of each launch."""

    def __init__(self, outlet: SimulatedOutlet, watch: Callable[[Attempt], None]) -> None:
        super().__init__(outlet.clock, outlet.together)
        self._watch = watch

    def launch(self, outlet: Outlet, deliveries: Sequence[Delivery], told: OnVerdicts) -> None:
        super().launch(outlet, deliveries, told)
        for attempt in self.under_way[-len(deliveries) :]:
            self._watch(attempt)


class Simulation:
    """One run."""

    def __init__(
        self,
        seed: int,
        steps: int,
        trace: Callable[[str], None] | None = None,
        focus: Mapping[str, float] | None = None,
        *,
        replicated: bool = False,
    ) -> None:
        """`focus` sets how often some kinds of steps come; the seed says it for the others.

        A replicated run has several servers and one log; any other has one server and its disk.
        """
        self.random = Random(seed)
        self.steps = steps
        self.step = 0
        self.trace = trace
        self.refused: TarryError | None = None
        """Why the server would not start, if it rightly would not: the run is over then."""
        settings = engine_settings(self.random)
        made = partial(
            World,
            settings=settings,
            ledger_settings=ledger_settings(self.random),
            together=self.random.choice((1, 2, 16)),
            dead_block_bits=dead_block_bits(self.random),
            start=False,
        )

        shared = shared_by_tenants(seed)

        def make(node: str, log: SimulatedLog | None = None) -> World:
            # Each server has a disk of its own, with faults of its own.
            world = made(seed + ord(node[0]) - ord("a"), log=log, node=node)
            world.outlet = WatchedOutlet(world.outlet, partial(self._launched, world))
            world.shared = shared
            return world

        self._restarts = Random(seed)
        """Says when a restart is tried apart, without a word in what else happens."""
        self.cluster = Cluster(self, make) if replicated else None
        self.world = self.cluster.worlds[0] if self.cluster is not None else make(NAMES[0])
        """The server that clients talk to."""
        self.world.index.piece = index_piece(self.random)
        self.clock = self.world.clock
        """The clock of that server."""
        self.coverage = Coverage()
        self.model = Model()
        self.checker = Checker(self.model, self.clock, settings)
        self.checker.reads_late = self._reads_late
        self.checker.step = lambda: self.step
        self.checker.under_way = lambda: [
            token_of(attempt.delivery.headers) for attempt in self.world.outlet.under_way
        ]
        self.clients = Clients(self)
        self.consumers = Consumers(self)
        self.names = Names(self)
        self.recalls = Recalls(self)
        self.repeats = Repeats(self)
        self.bulk_commands = BulkCommands(self)
        self.retries = Retries(self)
        self.pauses = Pauses(self)
        self.bulk = Bulk(self)
        self.faults = Faults(self)
        self.open: list[tuple[str, Answer[Any]]] = []
        """Requests of this life that are not answered yet."""
        self.up = False
        self.failing = False
        """The disk has failed: the server takes nothing more, and will be restarted."""
        self.cramped = False
        """There was no room for some time in this life: ends may wait to be written."""
        self._why_not: TarryError | None = None
        """Why a server could not start."""
        self.draining = False
        self._last_due_ms = 0
        self._tokens = 0
        self._frames: deque[int] = deque([0, 0], maxlen=2)
        """The seqs at which the last two frames of the ledger end."""
        self._worked: deque[Callable[[], None]] = deque()
        """Work of the registry's thread that is done, and of which the engine was not told yet."""
        self._weights = {**weights(self.random, replicated=replicated), **(focus or {})}
        self.jumpy = self._weights["jump"] > 0 and self.random.random() < 0.5
        """Whether the clock is also set at points that are rarely met by chance."""
        self.fatal = self._weights["crash"] > 0 and self.random.random() < 0.5
        """Whether servers also crash at points that are rarely met by chance."""
        self.harsh = self.random.random() < 0.25
        """Whether the receiver refuses much: then messages fail that can be retried."""

    @property
    def engine(self) -> Engine:
        """The engine of this life."""
        return self.world.engine

    def _reads_late(self) -> bool:
        waited_ms = self.clock.now_ms() - self.world.awaited_since_ms
        return bool(self.world.awaited) and not 0 <= waited_ms < ORDER_WAITS_MS

    # What the parts of the simulation share

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(f"{self.step:4d} {self.clock._at_ms % 100_000_000:9d} {text}")

    def say_message(self, msg: Msg) -> None:
        """A message, in a line of the trace."""
        if self.trace is not None:
            message = msg.message
            names = (
                "destination",
                "namespace",
                "key",
                "owner",
                "due_at_ms",
                "delay_ms",
                "group",
                "ttl_ms",
                "idempotency_key",
            )
            said = {name: value for name in names if (value := getattr(message, name)) not in (None, "")}
            self.say(f"message {msg.token} " + " ".join(f"{name}={value}" for name, value in said.items()))

    def token(self, letter: str) -> str:
        """A name that was not used before."""
        self._tokens += 1
        return f"{letter}{self._tokens}"

    def since(self) -> int:
        """The place of the clock's present reading among all."""
        self.clock.now_ms()
        return len(self.clock.readings) - 1

    def note_due(self, due_at_ms: int) -> None:
        """Something is due then: the run is not over before."""
        self._last_due_ms = max(self._last_due_ms, due_at_ms)

    def ask(
        self,
        what: str,
        answer: Answer[Any],
        then: Callable[[Answer[Any], bool], object],
        fact: Callable[[Any], object] | None = None,
    ) -> None:
        """Wait for an answer; `then` is told whether an error leaves it open what became of the request.

        `fact` is told of a success that comes late, from a server that has been superseded meanwhile: it is a promise all the same.
        """
        at_once, life = answer.settled, self.checker.life
        if not at_once:
            self.open.append((what, answer))

        def settled(of: Answer[Any]) -> None:
            error = of.error()
            if self.trace is not None:
                self.say(f"{what} -> {of.value() if error is None else repr(error)}"[:400])
            if life != self.checker.life:
                if error is None:
                    # It may have been decided long after it was asked for.
                    due_at_ms = getattr(of.value(), "due_at_ms", None)
                    self.note_due(due_at_ms if isinstance(due_at_ms, int) else 0)
                if fact is not None and error is None:
                    self.coverage.note("answer of a superseded owner")
                    fact(of.value())
                return
            if not at_once:
                self.open.remove((what, of))
            if isinstance(error, Damage) and self.model.damaged:
                then(failed(Unavailable(str(error))), True)
                return
            then(of, isinstance(error, Unavailable) and not at_once)

        answer.then(settled)

    # The run

    def run(self) -> None:
        """Run all steps, then drain and judge."""
        Violation.noticed.clear()
        self.world.start()
        self.up = True
        self.consumers.found()
        self._begin_busy()
        own = {
            "tick": self.tick,
            "commit": self.commit,
            "work": self.work,
            "wait": self.wait,
            "rest": self.rest,
            "index": self.index,
            "verdict": self.verdict,
        }
        parts = (
            self.clients,
            self.names,
            self.consumers,
            self.recalls,
            self.repeats,
            self.bulk_commands,
            self.retries,
            self.pauses,
            self.bulk,
            self.faults,
        )
        actions = own | {name: act for part in parts for name, act in part.actions().items()}
        if self.cluster is not None:
            actions |= self.cluster.actions()
        chosen = [actions[name] for name in self._weights]
        odds = list(accumulate(self._weights.values()))
        self.steps += self.step
        while self.step < self.steps and self.refused is None:
            self.step += 1
            try:
                if self.up:
                    self.random.choices(chosen, cum_weights=odds)[0]()
                    _raise_noticed()
                    if self.up:
                        self.coverage.look(self)
                        self._restart_apart()
                        self.faults.jump_between()
                else:
                    self.boot()
            except SimulatedCrash as crash:
                self.coverage.note("crash within an operation of the disk")
                self.crash(f"at {crash}")
            except Damage as damage:
                if self.up or not self.model.damaged:
                    raise
                self.refuse(damage)
        if self.refused is None and not self.model.damaged:
            self._drain()

    def _restart_apart(self) -> None:
        """Now and then see that a restart would change nothing."""
        if self._restarts.random() < RESTARTED_APART and not self.model.damaged and check_replay(self.world):
            self.coverage.note("state compared with that of a restart")

    def _begin_busy(self) -> None:
        """Let a run begin with some good minutes: then there are segments to reclaim, and an index that is needed."""
        random = self.random
        busy = (
            self.clients.schedule,
            self.clients.batch,
            self.clients.command,
            self.bulk.adopt,
            self.consumers.publish,
            self.consumers.ack,
            self.index,
        )
        for _ in range(random.choice((0, 30, 50, 50, 80))):
            self.step += 1
            random.choice(busy)()
            if random.random() < 0.3:
                self.clock.advance(random.choice((1, 100, 3_000)))
            if random.random() < 0.2:
                self._all_at_once()
        if random.random() < 0.8:
            self._settle_down(random.random() < 0.8)
        if random.random() < 0.3:
            self.crash("after the beginning", power=True, lost=(IMAGES, EVERYTHING))

    def _settle_down(self, indexed: bool) -> None:
        """Some quiet time, in which the pipeline catches up, segments are reclaimed, and the dead are forgotten."""
        read = self.random.random() < 0.7
        if read:
            self.consumers.read_everything()
        for _ in range(12):
            if read:
                self.consumers.acknowledge_everything()
            if indexed and self.world.index.cursor < self.world.durable_seq:
                self.world.index.flush(self.world.ledger)
            self._all_at_once()
            self.clock.advance(self.random.choice((10, 10, 2_000)))

    def refuse(self, error: TarryError) -> None:
        """The server will not start, and that is right: the run is over."""
        self.say(f"refused: {error}")
        self.refused = error

    # Lives

    def boot(self, *, calm: bool = False, world: World | None = None) -> None:
        """Begin the next life, on some server or on this one, unless it crashes at once; a calm one does not."""
        if self.cluster is not None:
            self.world = world or self.cluster.candidate()
        if self.random.random() < 0.2 and not (calm or self.draining):
            self.world.disk.crash_at(self.random.randint(1, 12))
        try:
            self.world.start()
        except SimulatedCrash as crash:
            self.coverage.note("crash during recovery")
            self.crash(f"during recovery, at {crash}")
            return
        except (Unavailable, Conflict, NotFound) as error:
            if "restore the registry from its snapshot" in str(error):
                self._restore_registry(error)
            elif self.model.damaged:
                self.refuse(error)
            elif self.cluster is not None:
                self._why_not = error
                if isinstance(error, NotFound):
                    self.cluster.begin_anew(self.world)
                self.crash(f"at its start: {error}", power=False)
            else:
                raise
            return
        self._show(self.world.clock)
        self.up = True
        self.failing = self.cramped = self.checker.stopped = False
        ledger = self.world.ledger
        self.say(f"boot, ledger {ledger.first_seq}..{ledger.durable_seq}")
        if self.model.damaged and ledger.durable_seq < self._frames[-1]:
            self._lose_the_last_frame(ledger.durable_seq)
        self._note_frame()
        if any(one.phase == "running" for one in self.world.engine_state.command_book.by_number.values()):
            self.coverage.note("bulk command goes on after a crash")
        if self.cluster is not None:
            self.cluster.began(self.world)

    def _restore_registry(self, error: TarryError) -> None:
        """The power loss took more of the registry away than was kept of the ledger: take a snapshot, as an operator would."""
        path = self.random.choice(sorted(self.world.registry_disk.snapshots))
        self.say(f"restore {path}: {error}")
        self.coverage.note("registry restored from a snapshot")
        self.coverage.note("restore from a snapshot, an own or a shared one")
        self.world.registry_disk.restore(path)
        self.boot(world=self.world)

    def _boot_surely(self) -> None:
        """Start, as often as it takes when nothing goes wrong any more."""
        for _ in range(STARTS):
            if self.up:
                return
            self.boot()
        raise Violation(f"no server can start: {self._why_not}")

    def _show(self, clock: SimulatedClock) -> None:
        """Go by another clock: clients and judge go by that of the present owner."""
        if clock is self.clock:
            return
        before_ms = self.clock.now_ms()
        clock.readings, self.clock.readings = self.clock.readings, []
        self.clock = self.checker.clock = clock
        if clock.now_ms() < before_ms:
            self.coverage.note("takeover by a server whose clock is behind")
            self.note_due(before_ms)
            self.model.set_back()

    def supersede(self) -> None:
        """Another server has claimed the ledger: this life is over, though its server may not know."""
        for attempt in self.world.outlet.under_way:
            self._msg_of(attempt).lost = True
        self._end_life()
        # What the former owner reads on its clock from now on is nobody's time.
        self._show(self.clock.beside())

    def _end_life(self) -> None:
        self._worked.clear()
        self.up = False
        self.open.clear()
        self.model.new_life()
        self.bulk.new_life()
        self.bulk_commands.new_life()
        self.repeats.new_life()
        self.checker.new_life(self.step)

    def _lose_the_last_frame(self, durable_seq: int) -> None:
        """The one ambiguity: a frame that went bad, and a head that the power loss took. Nobody can judge what follows."""
        before, last = self._frames
        if durable_seq != before:
            raise Violation(
                f"the ledger ended at seq {last} with a frame from {before + 1} on, and ends at {durable_seq}"
            )
        self.refuse(
            Unavailable(f"the last frame, from seq {before + 1} on, went bad and was taken for unfinished")
        )

    def crash(self, why: str, power: bool | None = None, lost: Sequence[int] = LOST) -> None:
        """End this life: the power fails, and with it so many of the registry's transactions, or the process is killed."""
        random = self.random
        if power is None:
            power = random.random() < 0.7
        for attempt in list(self.world.outlet.under_way):
            self._msg_of(attempt).lost = True
            # What is on its way when the sender dies may still arrive.
            if random.random() < 0.5:
                self.arrive(attempt)
        self.coverage.note("power loss" if power else "kill")
        if power:
            transactions = random.choice(lost)
            self.world.crash(max(0, transactions))
            if transactions == EVERYTHING:
                self.coverage.note("registry lost as a whole")
                self.world.registry_disk.lose_everything()
        else:
            self.world.kill()
        self.world.disk.capacity_bytes = None
        self.world.registry_disk.failing = 0
        self.say(f"{'power loss' if power else 'killed'} {why}")
        self._end_life()
        if random.random() < 0.3:
            self.clock.advance(random.choice((1, 1000, 100_000)))
        elif random.random() < 0.1:
            self.faults.jump(-random.choice((1, 1000, 100_000)))
        self.checker.begin_life()

    # The engine's own steps

    def tick(self) -> int:
        """A turn of the engine; gives the instant at which it wants the next."""
        wake_ms = self.world.tick()
        self.checker.note_late_reads()
        return wake_ms

    def commit_frame(self) -> int:
        """The ledger writes a frame; gives the number of its records."""
        # What follows a frame may show already what is in it.
        self.checker.frames += 1
        records = self.world.commit()
        self._note_frame()
        return records

    def _note_frame(self) -> None:
        durable_seq = self.world.durable_seq
        if durable_seq > self._frames[-1]:
            self._frames.append(durable_seq)

    def commit(self) -> None:
        """A group commit."""
        if self.cluster is None:
            self.commit_frame()
        else:
            self.commit_some(wait=self.random.random() < 0.7)
        self._see_ledger()

    def _see_ledger(self) -> None:
        """See what a commit has come to."""
        ledger = self.world.ledger
        if ledger.low_space and not self.cramped:
            self.cramped = True
            self.coverage.note("full disk")
        if ledger.failed is not None:
            self.failing = self.checker.stopped = True
            if self.random.random() < 0.3 and not self.draining:
                self.crash("after the disk failed")
        elif ledger.durable_seq == ledger.next_seq - 1 and not self.cramped:
            self.checker.all_durable()

    def commit_some(self, *, wait: bool) -> None:
        """Frames go into the log, and some are heard of."""
        assert self.cluster is not None
        self.checker.frames += 1
        self.world.commit_some(wait=wait)
        self._note_frame()
        self.cluster.check(self.world)

    def work(self) -> None:
        """The registry's thread has its turn: one thing, some, or all that there is."""
        for _ in range(self.random.choice((1, 1, 4, 100))):
            if not self._worked and not self.world.offloaded:
                return
            self._work_once()

    def _work_once(self) -> None:
        """The registry's thread does something, or the engine hears of it."""
        if self._worked:
            self._worked.popleft()()
            return
        work, done = self.world.offloaded.popleft()
        error = _error_of(work)
        if self.random.random() < 0.5 or self.draining:
            done(error)
        else:
            self._worked.append(lambda: done(error))

    def work_last(self) -> None:
        """Do the work at once that was offloaded last."""
        work, done = self.world.offloaded.pop()
        done(_error_of(work))

    def index(self) -> None:
        """The pipeline does something: it indexes what is durable or a part of it, compacts, or cleans up."""
        index, ledger, random = self.world.index, self.world.ledger, self.random
        kind = random.random()
        if not index.cursor and kind < 0.2:
            self.say("begin the index")
            index.begin()
        elif kind < 0.6:
            upto = ledger.durable_seq
            # The first time it takes all that there is: that much was there when segments went that it does not find.
            if index.cursor and random.random() < 0.3:
                upto = random.randint(min(index.cursor, upto), upto)
            try:
                index.flush(ledger, upto)
            except Damage:
                # Its query stops at the place of the damage.
                return
            self.say(f"index up to {index.cursor}")
        elif kind < 0.85:
            self.say("compact the index")
            index.compact()
        else:
            self.say("vacuum the index")
            index.vacuum()

    def wait(self) -> None:
        """Time passes."""
        kind = self.random.random()
        if kind < 0.3:
            ahead_ms = self.tick() - self.clock.now_ms()
            if 0 < ahead_ms < 10_000:
                self.clock.advance(ahead_ms)
        elif kind < 0.9:
            self.clock.advance(self.random.choice((1, 1, 5, 50, 400)))
        else:
            self.clock.advance(self.random.choice((2_000, 61_000, 700_000)))

    def rest(self) -> None:
        """Nobody wants anything for a moment, so that what follows from all that was done comes to its end."""
        if self._weights["index"] > 0:
            self.index()
        for _ in range(self.random.choice((2, 5, 15))):
            self.tick()
            self.commit()
            while self.up and (self._worked or self.world.offloaded):
                self._work_once()
            if not self.up:
                return
            self.clock.advance(self.random.choice((0, 1, 10, 10, 2_000)))

    # The receiver

    def verdict(self) -> None:
        """Something comes of an attempt, or of several, one after another."""
        for _ in range(self.random.choice((1, 1, 2, 8))):
            if not self.world.outlet.under_way:
                return
            self._verdict_once()

    def _verdict_once(self) -> None:
        random = self.random
        attempt = random.choice(self.world.outlet.under_way)
        if random.random() < 0.1:
            self._answer_all(attempt)
            return
        kind = random.random()
        if self.harsh and not attempt.arrived and kind < 0.5:
            self._answer(attempt, Refused("nobody is let in"))
        elif kind < 0.1:
            self.arrive(attempt)
        elif attempt.arrived and kind < 0.5:
            self._answer(attempt, Retry("timed out", uncertain=True))
        elif attempt.arrived or kind < 0.6:
            self._answer(attempt, Delivered(random.choice((None, "ref"))))
        elif kind < 0.8:
            self._answer(attempt, Retry("busy", random.choice((None, None, 0, 30, 5_000, 100_000))))
        elif kind < 0.93:
            if random.random() < 0.5:
                self.arrive(attempt)
            self._answer(attempt, Retry("timed out", random.choice((None, 10)), uncertain=True))
        else:
            self._answer(attempt, Refused("no such door"))

    def _launched(self, world: World, attempt: Attempt) -> None:
        former = self.cluster.former_of(world) if self.cluster is not None else None
        if self.cluster is not None and former is not None:
            self.cluster.launched(former, attempt)
            return
        self.say(f"launch {attempt.delivery.headers.get('token')} attempt {attempt.delivery.attempt}")
        self.checker.launched(attempt.delivery)

    def _msg_of(self, attempt: Attempt) -> Msg:
        return self.model.messages[token_of(attempt.delivery.headers)]

    def arrive(self, attempt: Attempt, life: int | None = None) -> None:
        """The receiver gets an attempt, of this life or of another."""
        if not attempt.arrived:
            self.say(f"arrival of {attempt.delivery.headers['token']}")
            attempt.arrive()
            self.checker.arrived(self._msg_of(attempt), life)

    def _answer(self, attempt: Attempt, verdict: Verdict) -> None:
        self._tell(attempt, verdict)
        attempt.answer(verdict)

    def _tell(self, attempt: Attempt, verdict: Verdict) -> None:
        if isinstance(verdict, Delivered):
            self.arrive(attempt)
        msg = self._msg_of(attempt)
        if isinstance(verdict, Retry) and verdict.uncertain:
            self.coverage.note("attempt without a reply")
        self.say(f"verdict {msg.token} {verdict}")
        self.checker.answered(msg, attempt.delivery.attempt, verdict)

    def _answer_all(self, first: Attempt) -> None:
        """All that left with an attempt has a verdict at once, and not the same."""
        verdicts: list[tuple[Attempt, Verdict]] = []
        for attempt in self.world.outlet.under_way:
            if attempt.delivery.destination == first.delivery.destination:
                kinds = (Delivered(), Delivered("ref"), Retry("busy"), Retry("no", 100_000), Refused("never"))
                verdict: Verdict = Delivered() if attempt.arrived else self.random.choice(kinds)
                verdicts.append((attempt, verdict))
        for attempt, verdict in verdicts:
            self._tell(attempt, verdict)
        self.world.outlet.answer(verdicts)

    # The end

    def _drain(self) -> None:
        """Let everything come to its end without further faults, and judge."""
        self.draining = True
        self.say("--- drain ---")
        self._heal()
        for round_ in range(DRAIN_ROUNDS):
            self.step += 1
            self.pauses.resume_all()
            self.repeats.finish()
            self.bulk_commands.finish()
            wake_ms = self._all_at_once()
            now_ms = self.clock.now_ms()
            if (
                round_ > 12
                and not self.open
                and not self.engine.stats().pending
                and not self.repeats.missing()
                and now_ms > self._last_due_ms
            ):
                break
            if round_ % 40 == 39:
                # Past any wait that a receiver asked for.
                self.clock.set(max(now_ms, self._last_due_ms) + 150_000)
            elif now_ms < wake_ms < now_ms + 300_000:
                self.clock.set(wake_ms)
            else:
                self.clock.advance((1, 100, 10_000, 400_000)[round_ % 4])
        self._all_at_once()
        for what, _ in self.open:
            raise Violation(f"never answered: {what}")
        self._judge()

    def _heal(self) -> None:
        if self.cluster is not None:
            self.cluster.heal()
        while True:
            self._boot_surely()
            self.world.disk._crash_at = None
            self.world.disk._faults.clear()
            self.world.disk.capacity_bytes = None
            self.world.registry_disk.failing = 0
            if self.world.ledger.failed is None and not (self.cluster and self.cluster.lost_touch):
                break
            self.crash("because the disk had failed")
        self.clients.set_policy("broker", "", Policy(send_per_second=0.0))
        self.clients.set_policy("namespace", "public/default", None)
        for topic in TOPICS:
            self.clients.set_policy("topic", topic, None)
        self._all_at_once()
        self.consumers.read_everything()

    def _all_at_once(self) -> int:
        """Do all there is to do at this instant; gives the instant at which the engine wants to go on."""
        # However small its batches are, a turn sees to one thing that a client asked for.
        for _ in range(300 + 3 * self._tokens):
            wake_ms = self.tick()
            busy = wake_ms == 0
            while self.commit_frame():
                busy = True
            if self.cluster is None:
                self._see_ledger()
            else:
                self.commit()
            while self._worked or self.world.offloaded:
                busy = True
                self._work_once()
            for attempt in list(self.world.outlet.under_way):
                busy = True
                refused = self.harsh and not (self.draining or attempt.arrived) and self.random.random() < 0.3
                self._answer(attempt, Refused("nobody is let in") if refused else Delivered())
            _raise_noticed()
            self.coverage.look(self)
            if not busy:
                return wake_ms
        raise Violation("the engine does not come to rest")

    def _judge_entry(self, publication: Publication, id_: str) -> None:
        """Everything has had the time it needs: a delayed entry has ended, and how it ended is what was seen."""
        answer = self.engine.get(id_)
        if not answer.settled:
            self._all_at_once()
        try:
            view = answer.value()
        except NotFound as error:
            self.checker.not_found(publication, error)
            return
        self.checker.inquired(publication, view)
        if view.state == "scheduled":
            raise Violation(f"{publication.token} never ended")

    def _judge(self) -> None:
        views: dict[str, MessageView] = {}
        for msg in self.model.accepted():
            assert msg.accepted is not None
            answer = self.engine.get(msg.accepted.id)
            for _ in range(FETCHES):
                if answer.settled:
                    break
                # A file of the index that is gone is looked for again after a while, in a newer version.
                self._all_at_once()
                self.clock.advance(AGAIN_MS)
                self._all_at_once()
            try:
                views[msg.token] = answer.value()
            except NotFound:
                continue
            self.checker.shown(msg, views[msg.token])
        for publication in self.model.publications.values():
            if publication.id is not None and publication.topic != FLEETING:
                self._judge_entry(publication, publication.id)
        self.checker.check_ends(views)
        if missing := self.repeats.missing():
            raise Violation(f"occurrences of repeats never came: {missing}")
        self.checker.check_entries()
        stats = self.engine.stats()
        if stats.pending or stats.owners:
            raise Violation(
                f"all is done, but {stats.pending} messages of {stats.owners} owners are said to wait"
            )
        # Sometimes the pipeline is gone for good.
        self._settle_down(self.random.random() < 0.8)
        self.crash(
            "at the end, to see that nothing comes again",
            power=True,
            lost=(0, IMAGES, IMAGES, IMAGES, EVERYTHING, EVERYTHING),
        )
        self._boot_surely()
        # By an earlier clock a delayed entry that went out would wait.
        self.clock.advance(max(0, self.checker.highest_ms() - self.clock.now_ms()))
        for after_ms in (0, FORGOTTEN_AFTER_MS, FORGOTTEN_AFTER_MS):
            # A paused entry that nobody needs is forgotten after some minutes, of which this server may know nothing.
            self.clock.advance(after_ms)
            self._all_at_once()
        if self.engine.stats().pending:
            raise Violation("a restart brought messages back")
        if self.cluster is not None:
            self.cluster.check(self.world)
            self.cluster.judge.check_copy(self.world)


def _raise_noticed() -> None:
    """Raise a violation that the engine has caught."""
    if Violation.noticed:
        raise Violation.noticed[0]


def _error_of(work: Callable[[], Any]) -> Exception | None:
    """Do something on another thread, as it were; the engine is told of any error."""
    try:
        work()
    except Exception as raised:  # noqa: BLE001 - see above
        return raised
    return None
