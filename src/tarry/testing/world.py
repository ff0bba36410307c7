"""A whole engine over simulated parts: time passes, disks fail and processes die only when a test says so.

    world = World()
    scheduled = world.settle(world.engine.schedule(Message(destination="sim://shop/1", delay_ms=60_000)))
    world.run(59_999)
    assert not world.outlet.arrivals
    world.crash()
    world.start()
    world.run(1)
    assert world.outlet.arrivals[0].delivery.id == scheduled.id

Nothing happens by itself. `run` does all there is to do; `tick`, `commit`, `work` and `outlet.under_way` are the
single steps, for tests that want to decide what comes between what. Deterministic: the same calls give the same
results.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tarry.core.messages.delivery import Delivered
from tarry.core.messages.ids import Ids
from tarry.core.rules.policy import Policy
from tarry.core.sets.seqset import BLOCK_BITS
from tarry.core.telemetry.tracing import Tracer
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine
from tarry.engine.settings import EngineSettings
from tarry.engine.upkeep.reclaim import SnapshotMade
from tarry.engine.wiring import Surroundings
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.log.envelope import PART_BYTES
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog
from tarry.testing.clock import SimulatedClock
from tarry.testing.disk import SimulatedDisk
from tarry.testing.index import SimulatedIndex
from tarry.testing.insides import Insides, InsidesOf
from tarry.testing.log import SimulatedLog, SimulatedPartition
from tarry.testing.outlet import SCHEME, SimulatedOutlet
from tarry.testing.registry import RegistryDisk, SimulatedRegistry

T = TypeVar("T")

_KEY = bytes(range(32))
_LEDGER_ID = bytes(range(16))
_TURNS = 10_000
_WAIT_S = 0.001
"""A simulated log brings at least one record whenever it is waited for."""


class World(Insides):
    """An engine, and everything around it in memory."""

    def __init__(
        self,
        seed: int = 0,
        *,
        settings: EngineSettings | None = None,
        ledger_settings: LedgerSettings | None = None,
        broker_policy: Policy | None = None,
        namespace_policies: Mapping[str, Policy] | None = None,
        together: int = 1,
        tracer: Tracer | None = None,
        dead_block_bits: int = BLOCK_BITS,
        log: SimulatedLog | None = None,
        node: str = "a",
        start: bool = True,
    ) -> None:
        """With a log the ledger is replicated: several worlds may share one, as nodes of different names."""
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk(seed)
        self.registry_disk = RegistryDisk()
        self.index = SimulatedIndex()
        """Empty until a test lets the pipeline work: `world.index.flush(...)`."""
        self.outlet = SimulatedOutlet(self.clock, together)
        self.has_outlet = True
        """Whether the next life has an outlet for `sim:`."""
        self.settings = settings or EngineSettings()
        self.ledger_settings = ledger_settings or LedgerSettings(segment_bytes=1 << 18)
        self.broker_policy = broker_policy
        self.namespace_policies = namespace_policies
        self.tracer = tracer
        self.dead_block_bits = dead_block_bits
        self.offloaded: deque[tuple[Callable[[], Any], Callable[[Exception | None], None]]] = deque()
        """Work for the registry's thread that was not done yet."""
        self.expects_errors = False
        """Whether errors that end one message are kept in `isolated`, instead of being raised."""
        self.isolated: list[tuple[int, Exception]] = []
        self.in_steps = False
        """Whether a life begins step by step, as that of a standby does, also without a log."""
        self.log = log
        self.node = node
        self.id_check = b""
        """Shows which id key this node has."""
        self.in_flight = 5
        """How many frames may be on their way to the log at once."""
        self.part_bytes = PART_BYTES
        """Most content of one record of the log."""
        self.on_snapshot: SnapshotMade | None = None
        """Told of each snapshot of the registry."""
        self.shared = False
        """Whether several tenants share the server."""
        self.tenure_ms = 1_500
        """So long a proof of ownership lasts."""
        self.connection: SimulatedPartition | None = None
        """To the log, in this life."""
        self.side: ReplicatedLog | None = None
        """This node's side of the log, in this life: a standby's, or the owner's after `claim`."""
        self._claims = 0
        self._seed = seed
        self._engine: Engine | None = None
        self._following: Engine | None = None
        """The engine of a standby, which follows the log."""
        if start:
            self.start()

    @property
    def engine(self) -> Engine:
        """The engine of this life."""
        if self._engine is None:
            raise RuntimeError("the engine is not running; start it")
        return self._engine

    # A life

    def start(self, set_aside: Sequence[int] = ()) -> Engine:
        """Begin a life: recover what the last one left, without some records. Raises what recovery raises.

        With a log, this node claims it, unless it has done so as a standby; what it has followed need not be read again.
        """
        engine, self._following = self._following, None
        if engine is None:
            engine = self._engine_on(self._open_ledger())
        else:
            if self.side is None or not self.side.owns:
                self.claim()
            engine.ledger.own()
        while self.in_steps and engine.follow(set_aside):
            pass
        engine.recover(set_aside)
        self._engine = engine
        return engine

    def _engine_on(self, ledger: Ledger) -> Engine:
        registry = SimulatedRegistry(self.registry_disk)
        given = Surroundings(
            ledger=ledger,
            registry=registry,
            index=self.index,
            clock=self.clock,
            ids=Ids(_KEY),
            outlets={SCHEME: self.outlet} if self.has_outlet else {},
            launch=self.outlet.launch,
            offload=lambda work, done: self.offloaded.append((work, done)),
            settings=self.settings,
            broker_policy=self.broker_policy or Policy(),
            namespace_policies=self.namespace_policies,
            snapshot_folder="snapshots",
            on_snapshot=self.on_snapshot,
            shared=lambda: self.shared,
            tenure_ms=self.tenure_ms,
            seed=self._seed,
            tracer=self.tracer,
            dead_block_bits=self.dead_block_bits,
            on_isolated=self._isolated,
        )
        return Engine(given)

    def _open_ledger(self) -> Ledger:
        if self.running:
            self._disconnect()
        self._end_engine()
        if self.log is None:
            return Ledger.open(
                self.disk, "ledger", self.ledger_settings, self.clock, new_ledger_id=_LEDGER_ID
            )
        side = self.side if self.side is not None and self.side.owns else self.claim()
        return Ledger.open(self.disk, "ledger", self.ledger_settings, self.clock, log=side)

    def stand_by(self) -> ReplicatedLog:
        """Begin a life as a standby, which follows the log into its copy: `world.side.follow()`."""
        assert self.log is not None
        self._end()
        self.connection = self.log.connect(self.node, self.in_flight)
        copy = LedgerCopy.open(self.disk, "ledger")
        self.side = ReplicatedLog(self.connection, copy, LogNode(self.node, self.id_check), self.part_bytes)
        return self.side

    def follow(self, set_aside: Sequence[int] = ()) -> None:
        """As a standby, read new records of the log, and let an engine follow it without some; `start` goes on from there."""
        side = self.side or self.stand_by()
        while side.follow(_WAIT_S):
            pass
        if self._following is not None:
            self._following.ledger.look()
        elif side.copy.reader.segments:
            ledger = Ledger.follow(self.disk, "ledger", self.ledger_settings, self.clock, side)
            self._following = self._engine_on(ledger)
        while self._following is not None and self._following.follow(set_aside):
            pass

    def claim(self) -> ReplicatedLog:
        """Become the owner of the log, as a standby or anew; `start` makes its engine. Raises what a claim raises."""
        side = self.side or self.stand_by()
        self._claims += 1
        side.claim(self.clock.now_ms(), f"{self.node} {self._claims}".encode(), _LEDGER_ID)
        return side

    def _isolated(self, seq: int, error: Exception) -> None:
        """An error about one message: in a simulation that is a bug, unless it is expected."""
        if not self.expects_errors:
            raise error
        self.isolated.append((seq, error))

    def stop(self) -> None:
        """End this life cleanly: everything enqueued is made durable, and the ledger is sealed."""
        self.ledger.close()
        self._end()

    def kill(self) -> None:
        """The process ends where it is; the machine goes on."""
        self._end()
        self.disk.kill()

    def crash(self, lose_transactions: int = 0) -> None:
        """The power fails: unsynced writes are kept, torn or lost, and so are the registry's newest transactions."""
        self._end()
        self.disk.crash()
        self.registry_disk.lose(lose_transactions)

    def _end(self) -> None:
        self._disconnect()
        self._end_engine()

    def _disconnect(self) -> None:
        """Let go of the log; records on their way there may still arrive."""
        self.side = None
        if self.connection is not None:
            self.connection.closed = True

    def _end_engine(self) -> None:
        engines, self._engine, self._following = (self._engine, self._following), None, None
        self.offloaded.clear()
        self.outlet.forget()
        for engine in engines:
            if engine is not None:
                InsidesOf(engine).registry.close()

    # Steps

    def tick(self) -> int:
        """One turn of the engine; the instant at which it wants the next, or 0 for at once."""
        return self.engine.tick()

    @property
    def follows(self) -> bool:
        """Whether there is an engine that follows the log."""
        return self._following is not None

    @property
    def following(self) -> InsidesOf:
        """Looks into the engine that follows the log."""
        if self._following is None:
            raise RuntimeError("no engine follows the log: call `stand_by` and `follow` first")
        return InsidesOf(self._following)

    @property
    def running(self) -> bool:
        """Whether there is an engine: not before `start`, nor after the end of its life."""
        return self._engine is not None

    def commit_some(self, *, wait: bool) -> int:
        """Give the log a frame and take outcomes of others; with a replicated log, more frames may then be on their way."""
        records = self.ledger.commit(_WAIT_S if wait else 0.0)
        self.engine.pump()
        return records

    def commit(self) -> int:
        """One group commit, and what follows it; the number of records."""
        ledger = self.ledger
        records = ledger.commit(_WAIT_S)
        while not ledger.settled and self.connection is not None and not self.connection.unreachable:
            records += ledger.commit(_WAIT_S)
        self.engine.pump()
        return records

    def work(self) -> bool:
        """Do the oldest offloaded work and tell the engine; False if there is none."""
        if not self.offloaded:
            return False
        work, done = self.offloaded.popleft()
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - the engine is told, as by a real thread
            error = raised
        done(error)
        return True

    # Everything

    def run(self, ms: int = 0) -> None:
        """Let so much time pass, with all the work of each instant; sent messages are delivered."""
        goal_ms = self.clock.now_ms() + ms
        while True:
            wake_ms = self._run_out()
            now_ms = self.clock.now_ms()
            if now_ms >= goal_ms:
                return
            self.clock.set(min(goal_ms, max(wake_ms, now_ms + 1)))

    def settle(self, answer: Answer[T]) -> T:
        """Do what there is to do at this instant, until an answer has come; gives its value or raises its error."""
        self._run_out()
        return answer.value()

    def _run_out(self) -> int:
        for _ in range(_TURNS):
            wake_ms = self.tick()
            busy = wake_ms == 0 or self.commit() > 0
            while self.work():
                busy = True
            for attempt in list(self.outlet.under_way):
                busy = True
                attempt.answer(Delivered())
            if not busy:
                return wake_ms
        raise RuntimeError("the engine does not come to rest")
