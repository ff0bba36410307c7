"""Several servers on one replicated log: a seed decides who claims when, what the log loses, and who is paused for how long.

One of them is the present owner: clients talk to it, and the simulation steps it as it steps a lone server. The others stand by. A
server that was superseded while it was alive is a `Former` owner until its process ends: it is paused, and now and then it wakes
with due messages, consumers and answers that are open, and takes itself for the owner. Whatever it does then is judged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ESTALE
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, NotFound, TarryError, Unavailable
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, MessageQuery, OwnedQuery
from tarry.engine.answer import Answer
from tarry.engine.queries.commands import Ending
from tarry.engine.topics.entries import NewEntry, Received
from tarry.ledger.log.envelope import PART_BYTES, LogClaim, encode_claim
from tarry.ledger.log.fold import ValidClaim, ValidRelease, Void
from tarry.ledger.log.partition import LogRecord
from tarry.testing.disk import SimulatedCrash, SimulatedDisk
from tarry.testing.log import SimulatedLog
from tarry.testing.outlet import Attempt
from tarry.testing.registry import RegistryDisk
from tarry.testing.world import World
from tests.simulation.checker import Violation
from tests.simulation.log_judge import LogJudge
from tests.simulation.model import HOSTS, TOPICS, Reader, Sub
from tests.simulation.shared import Shared

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

NAMES = ("a", "b", "c")
STRANGER = "stranger"
"""A server that was given another id key than the others."""
TURNS_TO_LEARN = 40
"""After so many turns, with a log that can be reached, a server knows that it was superseded."""
WAKING = {"tick": 2, "commit": 2, "work": 1, "verdict": 1, "flow": 3, "look": 3, "ask": 1}
"""The steps of a superseded owner, and how often each comes."""


class Former:
    """A server that owned the ledger until another claimed it, and may not know."""

    def __init__(self, world: World, life: int, last_ms: int, readers: list[Reader]) -> None:
        self.world = world
        self.life = life
        """The life in which it was the owner."""
        self.last_ms = last_ms
        """The highest instant that its clock had shown to it by then."""
        self.since_ms = world.clock.elapsed_ms()
        """Elapsed time by then."""
        self.readers = readers
        """Its consumers."""
        self.durable_seq = world.durable_seq
        """The head that it knew to be durable before this step."""

    @property
    def gone_ms(self) -> int:
        """How long it has been superseded."""
        return self.world.clock.elapsed_ms() - self.since_ms


class Cluster:
    """The servers, the log between them, and its judge."""

    def __init__(self, sim: "Simulation", make: Callable[[str, SimulatedLog], World]) -> None:
        """`make` makes a server by its name."""
        self._sim = sim
        self._random = random = sim.random
        self.log = SimulatedLog(random, random.choice((0.0, 0.0, 0.2, 1.0)))
        self.judge = LogJudge()
        self.log.on_write = self._written
        self.worlds = [make(name, self.log) for name in NAMES]
        self.stranger = make(STRANGER, self.log)
        self.stranger.id_check = b"another key"
        self.formers: list[Former] = []
        self.shared = Shared(self)
        for world in (*self.worlds, self.stranger):
            world.on_snapshot = partial(self.shared.made, world)
        self._released = ""
        """The server that let go of the ledger last, if nothing came after that."""
        self.peace = False
        """Whether nothing goes wrong any more."""
        self._clocks(Random(random.random()))
        for world in (*self.worlds, self.stranger):
            world.in_flight = random.choice((1, 2, 5))
            world.part_bytes = random.choice((300, 2_000, PART_BYTES))

    def _clocks(self, random: Random) -> None:
        """Machines share their time and their index; what their clocks show may differ."""
        first = self.worlds[0]
        differ = random.random() < 0.4
        for world in (*self.worlds[1:], self.stranger):
            ahead_ms = random.choice((1, -1, 40, -40, 700, -700, 10_000, -10_000)) if differ else 0
            world.clock = world.outlet.clock = first.clock.beside(ahead_ms)
            world.index = first.index

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that only servers of a replicated log take."""
        return {
            "follow": self.follow,
            "arrive": self.arrive,
            "take_over": self.take_over,
            "wake": self.wake,
            "cut_off": self.cut_off,
            "sever": self.sever,
            "foreign": self.foreign,
            "spoil": self.spoil,
            "replace": self.replace,
        }

    # The log

    def _written(self, record: LogRecord) -> None:
        """A record has come into the log. With a valid claim the present owner is superseded, whoever it is."""
        void, before = self.judge.fold.void, dict(self.judge.fold.void)
        valid = self.judge.take(record)
        for reason, kind in (
            (Void.SUPERSEDED, "void frame of a superseded owner"),
            (Void.UNFINISHED, "frame without its last parts"),
            (Void.TAKEN, "claim of an epoch that was taken"),
        ):
            if void[reason] > before.get(reason, 0):
                self._sim.coverage.note(kind)
        if isinstance(valid, ValidClaim):
            if self._released not in ("", valid.claim.node):
                self._sim.coverage.note("planned hand-over")
            if self._sim.up:
                self._superseded()
        if valid is not None:
            self._released = valid.release.node if isinstance(valid, ValidRelease) else ""

    def _superseded(self) -> None:
        sim = self._sim
        world = sim.world
        assert world.connection is not None
        if world.connection.under_way:
            sim.coverage.note("frames in flight at a claim")
        readers = [reader for sub in sim.model.subs.values() for reader in sub.consumers]
        last_ms = max(sim.clock.readings[sim.checker.life_since :])
        self.formers.append(Former(world, sim.checker.life, last_ms, readers))
        sim.say(f"{world.node} is superseded")
        sim.supersede()

    def arrive(self) -> None:
        """Some records come into the log, of whomever they are."""
        for _ in range(self._random.choice((1, 1, 3))):
            self.log.step()

    def foreign(self) -> None:
        """Somebody who is no server writes into the log, or a claim comes twice."""
        if self._random.random() < 0.5:
            self.log.write(b"somebody else's")
        else:
            nobody = LogClaim("nobody", b"", b"", b"", 1, 1, 0)
            self.log.write(encode_claim(self.judge.epoch, nobody))

    # Servers that do not own it

    @contextmanager
    def _of(self, world: World) -> Iterator[None]:
        """A step of a server that is not the present owner: whatever becomes of it, it is about that one."""
        try:
            yield
        except SimulatedCrash:
            self._end(world, power=True)
        except Conflict:
            self._sim.coverage.note("claim lost to a quicker server")
        except NotFound as error:
            self._sim.say(f"{world.node}: {error}")
            self._end(world, power=False)
            self.begin_anew(world)
        except Unavailable as error:
            self._sim.say(f"{world.node}: {error}")
            self._end(world, power=False)

    def _end(self, world: World, *, power: bool) -> None:
        """The process of a server ends, or its machine."""
        for former in [one for one in self.formers if one.world is world]:
            self.formers.remove(former)
            for attempt in list(world.outlet.under_way):
                if self._random.random() < 0.5:
                    self._sim.arrive(attempt, former.life)
        if power:
            world.crash(self._random.choice((0, 0, 1, 3)))
        else:
            world.kill()
        world.disk.crash_at(1 << 60)

    def begin_anew(self, world: World) -> None:
        """The log was trimmed further than the copy of a server reads: it begins at a snapshot of the registry."""
        self._sim.coverage.note("server begins at a shared snapshot")
        self._sim.coverage.note("restore from a snapshot, an own or a shared one")
        self.shared.begin(world)

    def _others(self) -> list[World]:
        """Servers that neither own the ledger nor believe so."""
        taken = [self._sim.world, *(former.world for former in self.formers)]
        return [world for world in self.worlds if world not in taken]

    def follow(self) -> None:
        """A standby reads on, or a server begins to stand by."""
        others = [*self._others(), self.stranger]
        world = self._random.choice(others)
        with self._of(world):
            fresh = world.side is None
            side = world.side or world.stand_by()
            if fresh and self._random.random() < 0.5:
                self.shared.renew(world)
            if side.copy.notes:
                self._sim.coverage.note("copy healed from the log")
            if self._random.random() < 0.5:
                side.follow(0)
            else:
                world.follow()
            for _ in range(self._random.choice((0, 0, 1, 10))):
                world.work()

    def take_over(self) -> None:
        """A server claims the ledger, though its owner lives."""
        others = self._others()
        if self._random.random() < 0.15:
            others = [self.stranger]
        if not others:
            return
        world = self._random.choice(others)
        if self._random.random() < 0.6:
            self._work_on()
        with self._of(world):
            if self._random.random() < 0.4:
                world.follow()
            self._claim(world)
            if world.follows:
                self._sim.coverage.note("takeover by an engine that followed the log")
            self._sim.coverage.note("takeover while the owner lives")
            self._sim.boot(world=world)
        if self._random.random() < 0.5:
            # The former owner was paused for so long.
            self._sim.clock.advance(self._random.choice((0, 1, 1_000, 2_000, 10_000)))
            self.wake()

    def _work_on(self) -> None:
        """The owner is in the middle of something: some of it is in the log, and it has not heard of that."""
        sim = self._sim
        try:
            for _ in range(self._random.choice((0, 2, 5))):
                self._random.choice((sim.clients.schedule, sim.consumers.publish))()
            for _ in range(self._random.choice((0, 1, 3))):
                sim.tick()
                sim.commit_some(wait=False)
            ahead_ms = (sim.engine.stats().next_due_at_ms or 0) - sim.clock.now_ms()
            if 0 < ahead_ms < 70_000:
                sim.clock.advance(ahead_ms)
            sim.tick()
            for _ in range(self._random.choice((1, 3, 8))):
                sim.commit_some(wait=False)
        except SimulatedCrash as crash:
            sim.crash(f"at {crash}")
        for _ in range(self._random.choice((0, 1, 2, 5))):
            self.log.step()

    def _claim(self, world: World) -> None:
        if world.side is None:
            world.stand_by()
        assert world.connection is not None
        if not self.peace and self._random.random() < 0.4:
            world.connection.disturb = partial(self._disturb, world)
        try:
            world.claim()
        except Unavailable as error:
            if world is self.stranger and "another id key" in str(error):
                self._sim.coverage.note("claim of a server with another id key")
            raise
        finally:
            if world.connection is not None:
                world.connection.disturb = None

    def _disturb(self, claimant: World) -> None:
        """Something happens between a claim's reading and its record."""
        sim = self._sim
        assert claimant.connection is not None
        claimant.connection.disturb = None
        rivals = [world for world in self._others() if world is not claimant]
        match self._random.choice(("arrive", "commit", "rival")):
            case "rival" if rivals:
                rival = self._random.choice(rivals)
                with self._of(rival):
                    rival.claim()
                    self._end(rival, power=False)
            case "commit" if sim.up:
                try:
                    sim.commit()
                except SimulatedCrash as crash:
                    sim.crash(f"at {crash}")
            case _:
                self.arrive()

    def candidate(self) -> World:
        """A server to be the next owner; a former one only with a new process."""
        world = self._random.choice(self.worlds)
        for former in [one for one in self.formers if one.world is world]:
            self._end(former.world, power=False)
        return world

    def is_superseded(self, world: World) -> bool:
        """Whether a server that has just begun as the owner is not the owner any more."""
        assert world.side is not None
        return self.judge.epoch != world.side.epoch

    def began(self, world: World) -> None:
        """A server has begun as the owner."""
        if self.is_superseded(world):
            self._superseded()

    def check(self, world: World) -> None:
        """Hold a server that owns the ledger, or believes so, to what the log says."""
        self.judge.check(world)
        if world.side is not None and world.side.gaps:
            self._sim.coverage.note("gap read by an owner")

    @property
    def lost_touch(self) -> bool:
        """Whether the connection of the present owner is broken, which it may not know."""
        connection = self._sim.world.connection
        return connection is not None and connection.severed

    # Faults

    def cut_off(self) -> None:
        """A server cannot reach the log, or can again."""
        world = self._random.choice(self.worlds)
        if world.connection is not None:
            world.connection.unreachable = not world.connection.unreachable
            self._sim.coverage.note("server cut off from the log")
            self._sim.say(f"{world.node} {'cannot' if world.connection.unreachable else 'can'} reach the log")

    def sever(self) -> None:
        """A connection breaks: what was on its way may arrive in part."""
        world = self._random.choice(self.worlds)
        if world.connection is not None:
            world.connection.sever()
            self._sim.say(f"the connection of {world.node} breaks")

    def spoil(self) -> None:
        """A bit of a standby's copy goes bad, and its process ends."""
        world = self._random.choice([*self._others(), self.stranger])
        segments = world.side.copy.reader.segments if world.side is not None else []
        if segments:
            newest = segments[-1]
            world.disk.flip_bit(
                newest.path, self._random.randrange(newest.size_bytes), self._random.randrange(8)
            )
            self._end(world, power=False)

    def replace(self) -> None:
        """A standby's machine is gone, and another takes its place, with nothing on its disk."""
        others = self._others()
        if not others:
            return
        world = self._random.choice(others)
        self._end(world, power=True)
        world.disk = SimulatedDisk(self._random.getrandbits(32))
        world.registry_disk = RegistryDisk()
        self._sim.say(f"{world.node} has a new disk")

    # Former owners

    def former_of(self, world: World) -> Former | None:
        """The former owner that a server is, if it is one."""
        return next((former for former in self.formers if former.world is world), None)

    def wake(self) -> None:
        """A former owner does something, as if it were the owner."""
        for _ in range(self._random.choice((1, 4, 12))):
            if not self.formers:
                return
            former = self._random.choice(self.formers)
            with self._of(former.world):
                self._step(former)

    def _step(self, former: Former) -> None:
        world, random = former.world, self._random
        former.durable_seq = world.durable_seq
        if former.gone_ms > world.tenure_ms:
            self._sim.coverage.note("superseded owner wakes after a lapse")
        match random.choices(tuple(WAKING), tuple(WAKING.values()))[0]:
            case "tick":
                world.tick()
            case "commit":
                world.commit_some(wait=random.random() < 0.7)
            case "work":
                world.work()
            case "verdict" if world.outlet.under_way:
                self._verdict(former, random.choice(world.outlet.under_way))
            case "flow" if former.readers:
                self._sim.coverage.note("superseded owner has consumers")
                random.choice(former.readers).handle.flow(10)
            case "look":
                self._look(former)
            case "ask":
                self._ask(former)
        self.check(world)
        if world.ledger.failed is not None:
            self._learned(former)

    def _learned(self, former: Former) -> None:
        failed = former.world.ledger.failed
        assert failed is not None
        self._sim.coverage.note(
            "superseded owner learns of it" if failed.errno == ESTALE else "superseded owner stops"
        )
        if self._random.random() < 0.3:
            self._end(former.world, power=False)

    def _verdict(self, former: Former, attempt: Attempt) -> None:
        """An attempt of before comes to its end."""
        if self._random.random() < 0.5:
            self._sim.arrive(attempt, former.life)
        attempt.answer(Delivered() if attempt.arrived else Retry("busy", uncertain=True))

    def _look(self, former: Former) -> None:
        """A client that is still connected to it looks at a message, at many, or wants many to be ended."""
        accepted = self._sim.model.accepted()
        if not accepted:
            return
        msg = self._random.choice(accepted)
        assert msg.accepted is not None
        engine = former.world.engine
        stale = former.gone_ms > former.world.tenure_ms
        looks: dict[str, Callable[[], Answer[Any]]] = {
            f"shows {msg.token}": partial(engine.get, msg.accepted.id),
            "lists what waits": partial(engine.list_messages, MessageQuery()),
            "lists what has ended": partial(engine.list_messages, MessageQuery(state="finalised")),
            "lists what is tried again": partial(engine.list_messages, MessageQuery(state="retrying")),
            "lists what an owner has": partial(engine.list_owned, OwnedQuery(owner="ann")),
            "says that nothing is left of a subject": partial(
                engine.end_subject, "a subject", Ending(reason="it is over")
            ),
        }
        what = self._random.choice(tuple(looks))

        def then(of: Answer[Any]) -> None:
            if stale and of.error() is None:
                raise Violation(f"{former.world.node} {what}, {former.gone_ms} ms after it was superseded")

        looks[what]().then(then)

    def _ask(self, former: Former) -> None:
        """A client that is still connected to it schedules or publishes: that cannot be accepted any more."""
        token, engine = self._sim.token("z"), former.world.engine
        answer: Answer[Any]
        if self._random.random() < 0.5:
            answer = engine.schedule(
                Message(
                    destination=self._random.choice((*HOSTS, *TOPICS)),
                    headers={"token": token},
                    delay_ms=self._random.choice((0, 1, 1_000)),
                )
            )
        else:
            answer = engine.topics.publish(
                self._random.choice(TOPICS), [NewEntry(payload=b"z", headers={"token": token})]
            )

        def then(of: Answer[Any]) -> None:
            if not isinstance(of.error(), TarryError):
                raise Violation(
                    f"{former.world.node} accepts {token}, which was asked for after another's claim"
                )

        answer.then(then)

    def gives_out(self, life: int, sub: Sub, entries: list[Received]) -> None:
        """A former owner gives entries to a consumer of its: not for long, and none that the log does not have (R15)."""
        former = next((one for one in self.formers if one.life == life), None)
        if former is None:
            raise Violation(f"{sub.name} is given entries by a server that is gone")
        if former.gone_ms > former.world.tenure_ms:
            raise Violation(
                f"{former.world.node} gives entries of {sub.topic} to {sub.name}, {former.gone_ms} ms after it was superseded"
            )
        self._sim.coverage.note("entries of a superseded owner within the window")
        self._sim.checker.received_late(sub, entries)

    def launched(self, former: Former, attempt: Attempt) -> None:
        """A former owner sends: the record of the departure was in the log before the claim, and it has heard of that only now (R15)."""
        sim = self._sim
        msg = sim.checker.recognise(attempt.delivery)
        token = msg.token
        if former.world.durable_seq == former.durable_seq:
            raise Violation(f"{former.world.node} sends {token} without a record, and was superseded before")
        if msg.timed and msg.leader is None and all(one.due_at_ms > former.last_ms for one in msg.promises):
            raise Violation(
                f"{former.world.node} sends {token}, which became due after its last turn as the owner, at {former.last_ms}"
            )
        sim.coverage.note("attempt by a superseded owner within the window")
        sim.say(f"{former.world.node} sends {token} all the same")

    # The end

    def heal(self) -> None:
        """Nothing goes wrong any more: whoever was superseded learns of it, unless its process ends."""
        self.peace = True
        self.log.silence = 0.0
        for world in self.worlds:
            if world.connection is not None:
                world.connection.unreachable = False
        while self.log.step():
            pass
        for former in list(self.formers):
            with self._of(former.world):
                self._let_learn(former)
            self._end(former.world, power=False)

    def _let_learn(self, former: Former) -> None:
        world = former.world
        world.disk.crash_at(1 << 60)
        # An owner without space for a mark shows and sends nothing, and has no way to ask the log.
        world.disk.capacity_bytes = None
        for _ in range(TURNS_TO_LEARN):
            if world.ledger.failed is not None:
                return
            former.durable_seq = world.durable_seq
            world.tick()
            former.durable_seq = world.durable_seq
            world.commit_some(wait=True)
            self.check(world)
            world.clock.advance(500)
        raise Violation(f"{world.node} was superseded, and does not learn of it")
