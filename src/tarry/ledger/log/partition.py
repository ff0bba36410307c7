"""The interface of a replicated log: one partition of records with offsets, which several nodes read and write.

Kafka's partition is one, `tarry.testing.log.SimulatedLog` makes others. An implementation translates and decides nothing: which
records count, who owns, and what is durable is decided in `fold`, `ownership` and `replicated_log`.
"""

from typing import NamedTuple, Protocol


class LogRecord(NamedTuple):
    """A record of the log, as it stands there."""

    offset: int
    data: bytes


class LogDelivery(NamedTuple):
    """The outcome of a record that was sent."""

    ticket: int
    offset: int | None
    """Where it is; None if the log took it and does not tell where, as after a retry that it knew already."""
    error: str = ""
    """Why it is not known whether the log took it; empty if the log did."""


class LogPartition(Protocol):
    """One connection to a partition. All methods are called on one thread at a time."""

    name: str
    """For people, such as `tarry-0 at k1:9092`."""
    in_flight: int
    """How many frames may be on their way at once."""

    def send(self, data: bytes) -> int:
        """Hand a record to the log without waiting; return its ticket, which is one more than that of the record before.

        Records stand in the log in the order in which they were sent, each at most once. Where one is left out, its outcome is told
        as unknown before that of any behind it.
        """

    def deliveries(self, wait_s: float) -> list[LogDelivery]:
        """Outcomes of records that were sent, in the order of their tickets; waits up to so long for the first."""

    def read(self, offset: int, wait_s: float) -> list[LogRecord]:
        """Records from this offset on, in order; waits up to so long for the first.

        Only committed ones: those that no failure that the log tolerates can take back. Raises `NotFound` if the offset
        has been trimmed or is behind the end, `Unavailable` if the log cannot be reached.
        """

    def identity(self) -> str:
        """A name that a log which is made anew in the place of this one does not have; empty where the log has none.

        Raises `Unavailable` if the log cannot be reached.
        """

    def ends(self) -> tuple[int, int]:
        """The first offset that has not been trimmed, and the one after the last committed record."""

    def trim(self, offset: int) -> None:
        """Let the log forget the records below this offset, soon or never."""

    def close(self) -> None:
        """Let go of the connection. What is in flight may still arrive."""
