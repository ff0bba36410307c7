"""Several servers and one replicated log: a seed decides who claims when, what is lost and in flight, and who is paused (R14).

Each server has a disk of its own with a copy of the log, and the real ledger over a `SimulatedLog`. The judge knows what was
answered to anybody. In the end, and at some points on the way, it folds the log: what was answered is there, once, in
dense seqs; and every copy holds what the log says, byte for byte.

    python -m tests.simulation.takeovers --seeds 10000 [--first 0]
"""

import argparse
import logging
from collections import Counter
from errno import ESTALE
from functools import partial
from random import Random

from tarry.core.errors import Conflict, Damage, NotFound, TarryError, Unavailable
from tarry.ledger.copy import LedgerCopy, begin_copy
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import Fold, LogPosition, ValidFrame
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog
from tarry.ledger.record import Encoded
from tarry.testing.disk import SimulatedCrash, SimulatedDisk
from tarry.testing.log import SimulatedLog, SimulatedPartition
from tests.unit.ledger_kit import FOLDER, LEDGER_ID, StandingClock, contents, record

SETTINGS = LedgerSettings(segment_bytes=4096 + 4096, spare_segments=2, commit_max_bytes=2000)
PART_BYTES = 300
STEPS = 250


class Wrong(AssertionError):
    """A promise that was broken."""


class Server:
    """One server: a standby that follows the log, or the owner of the ledger."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.disk = SimulatedDisk(world.random.getrandbits(32))
        self.connection: SimulatedPartition
        self.log: ReplicatedLog
        self.ledger: Ledger | None = None
        self.paused = False
        self.stand_by()

    def stand_by(self) -> None:
        """Start anew, as a standby."""
        self.connection = self.world.log.connect(self.name, self.world.random.choice((1, 2, 5)))
        self.log = ReplicatedLog(
            self.connection, LedgerCopy.open(self.disk, FOLDER), LogNode(self.name, b"key"), PART_BYTES
        )
        self.world.met["healed"] += bool(self.log.copy.notes)
        self.ledger = None

    def follow(self) -> None:
        """Read on, as a standby."""
        if self.ledger is None:
            self.log.follow(0)

    def claim(self) -> None:
        """Become the owner, if nobody else is quicker."""
        world, random = self.world, self.world.random
        if self.ledger is not None:
            return
        if not world.peace and random.random() < 0.3:
            self.connection.disturb = lambda: world.disturb(self)
        try:
            self.log.claim(0, random.randbytes(8), LEDGER_ID)
        except Conflict:
            world.met["claim lost"] += 1
            return
        finally:
            self.connection.disturb = None
        self.ledger = Ledger.open(self.disk, FOLDER, SETTINGS, StandingClock(), log=self.log)
        world.met["takeover"] += 1

    def append(self) -> None:
        """Accept an operation, if it takes itself for the owner."""
        ledger, random = self.ledger, self.world.random
        if ledger is None:
            return
        size = random.choice((0, 40, 40, 300, 900))
        unit = [record(random.randrange(1000), size) for _ in range(random.choice((1, 1, 2, 4)))]
        try:
            seq = ledger.next_seq
            ledger.append(unit, partial(self._answered, seq, unit))
        except TarryError:
            self.world.met["refused"] += 1

    def _answered(self, seq: int, unit: list[Encoded], error: TarryError | None) -> None:
        if error is not None:
            self.world.met["unknown outcome"] += 1
            return
        for at, one in enumerate(unit, seq):
            if self.world.answered.setdefault(at, one) is not one:
                raise Wrong(f"seq {at} was answered by two owners")

    def commit(self) -> None:
        """Let the writer work once."""
        if self.ledger is None:
            return
        for _ in range(self.world.random.choice((1, 1, 4))):
            self.ledger.commit(self.world.random.choice((0, 0.1)))
        if self.ledger.failed is not None:
            superseded = self.ledger.failed.errno == ESTALE
            self.world.met["superseded" if superseded else "stopped"] += 1
            self.world.judge()
            if superseded and self.world.fold.position.epoch == self.log.epoch:
                raise Wrong(f"{self.name} gave up, and nobody has claimed the log since")
            self.ledger.close()
            self.stand_by()

    def stop(self) -> None:
        """Stop cleanly, and come back."""
        if self.ledger is not None:
            self.ledger.close()
        else:
            self.log.close()
        self.stand_by()

    def die(self, power: bool) -> None:
        """The process or the machine dies; what it had sent may still arrive."""
        self.connection.closed = True
        self.world.met["gaps"] += self.log.gaps
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        self.stand_by()

    def seed(self) -> None:
        """Begin with a copy of another server's folder: the log does not go back as far as this one needs.

        If none of them goes further, this one begins where the newest shared snapshot does.
        """
        world = self.world
        furthest = max(world.servers, key=lambda one: one.log.copy.position.offset)
        self.connection.closed = True
        if furthest.log.copy.position.offset >= world.log.start:
            self.disk = furthest.disk.copy()
        elif world.snapshot is not None:
            self.disk = SimulatedDisk(world.random.getrandbits(32))
            begin_copy(self.disk, FOLDER, *world.snapshot)
        else:
            raise Wrong(f"the log begins at offset {world.log.start}, and nothing reaches so far")
        world.met["seeded"] += 1
        self.stand_by()

    def spoil(self) -> None:
        """Some bits of the newest segment of the copy go bad, and the process dies."""
        random = self.world.random
        segments = self.log.copy.reader.segments
        if segments:
            newest = segments[-1]
            self.disk.flip_bit(newest.path, random.randrange(newest.size_bytes), random.randrange(8))
        self.die(power=False)

    def reclaim(self) -> None:
        """Delete old segments, and let the log forget what everybody has."""
        if self.ledger is not None:
            self.log.trimmable_seq = self.world.followed_seq()
            self.world.trimmable_seq = max(self.world.trimmable_seq, self.log.trimmable_seq)
            self.ledger.reclaim(self.ledger.durable_seq - 5)
            self._share()

    def _share(self) -> None:
        """Share a snapshot of all that is before the ledger: by that alone the log is trimmed (R12)."""
        copy, known = self.log.copy, self.world.snapshot
        assert self.ledger is not None
        begin = copy.begin_of(self.ledger.first_seq, self.log.first_offset)
        if begin is None or copy.claim is None or begin.next_seq != self.ledger.first_seq:
            return
        if known is None or begin.offset > known[1].offset:
            self.world.snapshot = copy.claim, begin


class World:
    """The servers, the log between them, and the judge."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.met: Counter[str] = Counter()
        self.answered: dict[int, Encoded] = {}
        """Each record that was answered as durable, by its seq."""
        self.frames: list[tuple[LogPosition, ValidFrame]] = []
        self.fold = Fold()
        self.trimmable_seq = 0
        """Up to here every server had the log when somebody was told that it may be trimmed."""
        self.snapshot: tuple[LogClaim, LogPosition] | None = None
        """The newest claim of the server that shared the newest snapshot, and where the log goes on behind that."""
        self.peace = False
        """Whether nothing goes wrong any more."""
        self.log = SimulatedLog(self.random, self.random.choice((0.0, 0.0, 0.2, 1.0)))
        self.servers = [Server(self, name) for name in "abc"]
        weights = {name: self.random.choice((0, 0, 0.5, 1, 3)) for name in ACTS}
        self.weights = [max(weights[name], LEAST.get(name, 0)) for name in ACTS]

    def run(self) -> None:
        """Some steps, then peace, then the verdict."""
        self.act("claim", self.servers[0])
        for _ in range(STEPS):
            server = self.random.choice(self.servers)
            (name,) = self.random.choices(list(ACTS), self.weights)
            if server.paused and name not in ("arrive", "resume"):
                continue
            self.act(name, server)
        self.settle()

    def act(self, name: str, server: Server) -> None:
        """Do one thing."""
        try:
            ACTS[name](self, server)
        except SimulatedCrash:
            server.die(power=True)
        except NotFound:
            server.seed()
        except Unavailable:
            self.met["unavailable"] += 1
        self.judge()

    def disturb(self, claimant: Server) -> None:
        """Something happens between a claim's reading and its record."""
        other = self.random.choice([one for one in self.servers if one is not claimant])
        claimant.connection.disturb = None
        self.act(self.random.choice(("claim", "append", "commit", "arrive")), other)

    def arrive(self) -> None:
        """Let some record come into the log."""
        self.log.step()

    def followed_seq(self) -> int:
        """The seq up to which every server has the log."""
        return min(server.log.copy.last_seq for server in self.servers)

    def judge(self) -> None:
        """Fold what is new in the log. The judge reads at once, so that trims do not matter."""
        for one in self.log.records():
            if one.offset < self.fold.offset:
                continue
            valid = self.fold.take(*one)
            if isinstance(valid, ValidFrame):
                self.frames.append((valid.position, valid))
        needed = [at for at, _ in self.frames[-50:] if at.next_seq > self.trimmable_seq + 1]
        if needed and self.log.start > needed[0].offset - 1:
            raise Wrong(f"the log was trimmed to offset {self.log.start}, and {needed[0]} is needed")

    def settle(self) -> None:
        """Let everything come to its end, and compare."""
        self.peace = True
        while self.log.step():
            pass
        self.log.silence = 0.0
        for server in self.servers:
            server.connection.unreachable = False
            server.disk.crash_at(1 << 40)
            while server.ledger is not None and not server.ledger.failed and server.ledger._writer._sent:
                server.ledger.commit(0.1)
            if server.ledger is not None:
                server.ledger.close()
            self.met["gaps"] += server.log.gaps
            self.judge()
        self.judge()
        next_seq = 1
        for _, frame in self.frames:
            if frame.first_seq != next_seq:
                raise Wrong(f"seq {frame.first_seq} follows {next_seq - 1}")
            next_seq += frame.header.records
        self.check_copies()

    def check_copies(self) -> None:
        """Every server can take over in its turn, and has all that was answered to anybody."""
        for server in self.servers:
            server.connection.closed = True
            server.disk.kill()
            server.stand_by()
            self.act("claim", server)
            if server.ledger is None:
                self.act("claim", server)
            ledger = server.ledger
            assert ledger is not None
            self.judge()
            first = ledger.first_seq
            found = dict(enumerate(contents(ledger), first))
            if self.frames and ledger.durable_seq != self.frames[-1][0].next_seq - 1:
                raise Wrong(
                    f"{server.name} ends at seq {ledger.durable_seq}, the log at {self.frames[-1][0]}"
                )
            for seq, one in self.answered.items():
                if seq >= first and found.get(seq) != one:
                    raise Wrong(f"seq {seq} was answered, and {server.name} has {found.get(seq)}")
            for _, frame in self.frames:
                self.compare(server, frame)

    def compare(self, server: Server, frame: ValidFrame) -> None:
        """The bytes of a valid frame stand in the copy at their place."""
        segments = {one.number: one for one in server.log.copy.reader.segments}
        segment = segments.get(frame.segment)
        if segment is not None and segment.file.read(len(frame.data), frame.offset) != frame.data:
            raise Wrong(f"{server.name} has other bytes than the log at {frame.offset} of {segment.path}")


def _pause(world: World, server: Server) -> None:
    server.paused = True
    world.met["pause"] += 1


def _resume(world: World, server: Server) -> None:
    server.paused = False


def _sever(world: World, server: Server) -> None:
    server.connection.sever()
    world.met["sever"] += 1
    if server.ledger is None:
        server.die(power=False)


def _cut_off(world: World, server: Server) -> None:
    server.connection.unreachable = not server.connection.unreachable


def _foreign(world: World, server: Server) -> None:
    world.log.write(b"somebody else's")


def _crash_soon(world: World, server: Server) -> None:
    server.disk.crash_at(world.random.randint(1, 12))


ACTS = {
    "append": lambda world, server: server.append(),
    "commit": lambda world, server: server.commit(),
    "follow": lambda world, server: server.follow(),
    "arrive": lambda world, server: world.arrive(),
    "claim": lambda world, server: server.claim(),
    "stop": lambda world, server: server.stop(),
    "kill": lambda world, server: server.die(power=False),
    "power": lambda world, server: server.die(power=True),
    "crash soon": _crash_soon,
    "spoil": lambda world, server: server.spoil(),
    "pause": _pause,
    "resume": _resume,
    "sever": _sever,
    "cut off": _cut_off,
    "reclaim": lambda world, server: server.reclaim(),
    "foreign": _foreign,
}
LEAST = {"append": 24, "commit": 24, "follow": 8, "arrive": 8, "resume": 1, "claim": 2}
KINDS = (
    "takeover",
    "claim lost",
    "superseded",
    "unknown outcome",
    "healed",
    "gaps",
    "pause",
    "sever",
    "stopped",
)
"""Events that must happen in some of many seeds."""


def run_seed(seed: int) -> Counter[str]:
    """One run; raises with its seed."""
    world = World(seed)
    try:
        world.run()
    except (AssertionError, Damage, NotFound, TarryError) as error:
        error.add_note(f"python -m tests.simulation.takeovers --first {seed} --seeds 1")
        raise
    world.met["answered"] += len(world.answered)
    return world.met


def main() -> None:
    """Run many seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    logging.disable()
    met: Counter[str] = Counter()
    for seed in range(args.first, args.first + args.seeds):
        met += run_seed(seed)
    print(", ".join(f"{kind} {count}" for kind, count in met.most_common()))


if __name__ == "__main__":
    main()
