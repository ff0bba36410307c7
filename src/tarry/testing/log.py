"""A replicated log in memory: several nodes write and read one partition, and what they are told about it may be little.

`SimulatedLog` is the log, `SimulatedLog.connect` a node's connection. The faults, all drawn from the generator that is passed in:

- Records that were sent wait on their way: they come into the log in the order of sending, each connection's at its own pace,
  so that records of several nodes mix and parts of a frame have others between them. They come also while the node that
  sent them is paused, and after it has died.
- `silence`: how often a success does not tell its offset.
- `sever`: the connection breaks. Nothing more is told about what was sent; of what was on its way the first few records may
  still arrive, later, and the rest are lost: a frame may be left without its last parts.
- `unreachable`: whether this connection can send and read now. Whoever waits for it long enough is told that the outcome is unknown.
- `trim` really forgets, and `shorten` loses what was acknowledged last, as brokers do that lost power at once.
- `write`: somebody else writes something into it.

`on_write` sees every record that comes into it.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from tarry.core.errors import NotFound, Unavailable
from tarry.ledger.log.partition import LogDelivery, LogRecord

MAX_RECORD_BYTES: Final = 1 << 20
PATIENCE: Final = 20
"""So many waits for a log that cannot be reached until it is given up."""


class SimulatedPartition:
    """One node's connection to a simulated log."""

    def __init__(self, log: "SimulatedLog", name: str, in_flight: int) -> None:
        self.name = name
        self.in_flight = in_flight
        self.unreachable = False
        self.closed = False
        self.disturb: Callable[[], object] | None = None
        """Called before the next record is put on its way."""
        self._log = log
        self._tickets = 0
        self._told = 0
        self._under_way: deque[tuple[int, bytes]] = deque()
        self._reports: deque[LogDelivery] = deque()
        self._severed = ""
        self._waited = 0

    @property
    def severed(self) -> bool:
        """Whether the connection is broken."""
        return bool(self._severed)

    @property
    def under_way(self) -> int:
        """How many records are on their way."""
        return len(self._under_way)

    def send(self, data: bytes) -> int:
        """Put a record on its way."""
        assert len(data) <= MAX_RECORD_BYTES, "the log takes no record of that size"
        assert not self.closed
        if self.disturb is not None:
            self.disturb()
        ticket, self._tickets = self._tickets, self._tickets + 1
        if self._severed:
            self._reports.append(LogDelivery(ticket, None, self._severed))
        else:
            self._under_way.append((ticket, data))
        return ticket

    def deliveries(self, wait_s: float) -> list[LogDelivery]:
        """Outcomes of records; with a wait, at least one more record comes into the log, if it can be reached."""
        random = self._log.random
        if not self.unreachable:
            most = len(self._under_way)
            for _ in range(random.randint(min(1, most), most) if wait_s else random.randint(0, most)):
                self.arrive()
        elif wait_s:
            self._waited += 1
            if self._waited == PATIENCE:
                self.sever("the log said nothing in time")
        told = list(self._reports)
        self._reports.clear()
        self._told += len(told)
        return told

    def arrive(self) -> bool:
        """Let the oldest record that is on its way come into the log; return whether there was one."""
        if not self._under_way:
            return False
        ticket, data = self._under_way.popleft()
        offset: int | None = self._log.write(data)
        if not self._severed:
            if self._log.random.random() < self._log.silence:
                offset = None
                self._log.silent += 1
            self._reports.append(LogDelivery(ticket, offset))
        return True

    def read(self, offset: int, wait_s: float) -> list[LogRecord]:
        """Some records from this offset on."""
        self._check()
        return self._log.read(offset)

    def connect(self) -> None:
        """Get ready: it always is."""

    def renew(self) -> None:
        """Be whole again; deliveries that were reported are not told."""
        self._severed, self._waited = "", 0
        self._told += len(self._reports)
        self._reports.clear()

    def commit(self, offset: int) -> None:
        """Take note of where the node has read: nobody asks."""

    def identity(self) -> str:
        """The log's own name."""
        self._check()
        return self._log.identity

    def ends(self) -> tuple[int, int]:
        """The first offset that is there, and the one after the last."""
        self._check()
        return self._log.start, self._log.end

    def trim(self, offset: int) -> None:
        """Forget the records below, if the log can be reached."""
        if not (self.unreachable or self.closed):
            self._log.trim(offset)

    def sever(self, reason: str = "the connection is broken") -> None:
        """Break the connection; the first of the records on their way may still come into the log."""
        reported = self._told + len(self._reports)
        for ticket in range(reported, self._tickets):
            self._reports.append(LogDelivery(ticket, None, reason))
        self._severed = reason
        for _ in range(self._log.random.randint(0, len(self._under_way))):
            self._under_way.pop()

    def close(self) -> None:
        """Close the connection; records on their way may still arrive."""
        self.closed = True

    def _check(self) -> None:
        if self.unreachable or self.closed:
            raise Unavailable("the log cannot be reached; try again")


class SimulatedLog:
    """One partition of a replicated log; see the module."""

    def __init__(self, random: Random | int = 0, silence: float = 0.0) -> None:
        self.random = Random(random) if isinstance(random, int) else random
        self.silence = silence
        self.on_write: Callable[[LogRecord], object] | None = None
        self.silent = 0
        """How many successes did not tell their offset."""
        self.start = 0
        self.identity = "the first"
        """A log that is made anew has another."""
        self.connections: list[SimulatedPartition] = []
        self._records: list[bytes] = []

    @property
    def end(self) -> int:
        """The offset that the next record gets."""
        return self.start + len(self._records)

    def connect(self, name: str, in_flight: int = 5) -> SimulatedPartition:
        """A new connection."""
        connection = SimulatedPartition(self, name, in_flight)
        self.connections.append(connection)
        return connection

    def step(self) -> bool:
        """Let one record of some connection come into the log; return whether there was any on its way."""
        waiting = [one for one in self.connections if one._under_way]
        return bool(waiting) and self.random.choice(waiting).arrive()

    def write(self, data: bytes) -> int:
        """Put a record at the end; return its offset."""
        self._records.append(data)
        if self.on_write is not None:
            self.on_write(LogRecord(self.end - 1, data))
        return self.end - 1

    def read(self, offset: int) -> list[LogRecord]:
        """Some records from this offset on."""
        if not self.start <= offset <= self.end:
            # Kafka does not say on which side it is.
            raise NotFound(f"offset {offset} is not between {self.start} and {self.end}")
        at = offset - self.start
        some = self._records[at : at + self.random.randint(1, 8)]
        return [LogRecord(offset + i, data) for i, data in enumerate(some)]

    def records(self) -> list[LogRecord]:
        """All that is there."""
        return [LogRecord(self.start + i, data) for i, data in enumerate(self._records)]

    def copy(self) -> "SimulatedLog":
        """Another log with the same records, and with nobody connected."""
        other = SimulatedLog()
        other.start, other._records = self.start, list(self._records)
        return other

    def shorten(self, end: int = 0, start: int | None = None) -> None:
        """Lose the records from an offset on; with a `start`, be a log that was made anew and begins there."""
        if start is None:
            del self._records[end - self.start :]
        else:
            self.start, self._records = start, []

    def trim(self, offset: int) -> None:
        """Forget the records below."""
        if offset > self.start:
            del self._records[: offset - self.start]
            self.start = offset
