"""The registry: a SQLite view of live state, with the seq that it has reached in the same transaction (R13).

A flush is a consistent cut. The engine takes it between two operations (`begin`), it is written in a
transaction on the registry's own thread once the ledger is durable that far (`write`), and then the
changes are let go of (`done`). So the registry is never ahead of the ledger, and whatever it lacks is replayed.
It knows nothing of what its values mean, and never waits for a writer.
"""

import functools
import sqlite3
from collections.abc import Callable
from importlib.resources import files
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from tarry.core.errors import TarryError, Unavailable
from tarry.ledger.record import FIRST_BATCH_SEQ, Kept, Key, StagedFile, Tried, Unsent
from tarry.ledger.watermark import Ceiling
from tarry.registry.lines_row import LinesRow
from tarry.registry.migration import FORMAT_VERSION, migrate
from tarry.registry.snapshots import write_snapshot
from tarry.registry.table import RegistryDamage, Table, trouble

REGISTRY_FILE: Final = "registry.sqlite"
"""Its name in the folder where its snapshots are too."""
_APPLICATION_ID: Final = 0x54415252


class LiveRow(Struct, array_like=True, frozen=True):
    """Where the present version of a message is."""

    current: Key
    origin: Key


class EndedRow(Struct, array_like=True, frozen=True):
    """The outcome of a message, and of a listed one its content.

    Its fields are those of `Finalise` under the same names. Neither can be the beginning of the other: the record begins with the
    version that it ends, which the row has not, and both are on disks in this order (`tests/unit/test_shapes.py` compares them).
    """

    origin: Key
    outcome: str
    finalised_at_ms: int
    reason: str | None
    reference: str | None
    attempts: int
    due_at_ms: int | None
    accepted_at_ms: int
    namespace: str
    destination: str
    key: str | None
    owner: str
    door: str
    group: str | None
    error: str | None = None
    kept: Kept | None = None
    """The content of a listed message, and of a failed one of which there is no dead letter."""
    unsent: Unsent | None = None
    """The part of a failed message that a retry needs."""
    tried: Tried | None = None
    """Attempts that did not arrive."""


class MemberRow(Struct, array_like=True, frozen=True):
    """A waiting member of a group."""

    origin: Key
    current: Key
    timed: bool


class GroupRow(Struct, array_like=True, frozen=True):
    """The waiting members of a group; a closed one has sent its one message or was discarded."""

    members: list[MemberRow]
    closed_at_ms: int | None = None
    leader: Key | None = None
    """The origin of the message that the members wait for."""


class RepeatRow(Struct, array_like=True, frozen=True):
    """The answer that an idempotency key has got."""

    fingerprint: bytes
    origin: Key
    due_at_ms: int | None
    past_due: bool
    accepted_at_ms: int


class TopicRow(Struct, array_like=True, frozen=True):
    """A topic's bounds: the first entry still kept, and the next entry id."""

    first: int
    next: int
    partitions: int
    created_at_ms: int
    epoch: int = -1
    incarnation: int = 0
    """The seq of the record that made it; 0 in what an earlier version wrote."""


class SequencesRow(Struct, array_like=True, frozen=True):
    """Sequence numbers of a producer that are stored: where ranges start and stop, in turn, and batches known as a whole."""

    ranges: list[int]
    batches: list[tuple[int, int, int]]
    """The first number, the last, and how many messages."""
    last: int


class SubscriptionRow(Struct, array_like=True, frozen=True):
    """A durable subscription: every entry below `below` is acknowledged."""

    type: str
    below: int
    properties: dict[str, str]
    partial: dict[int, list[int]] = {}
    """The unacknowledged messages of entries that are acknowledged in part."""
    incarnation: int = 0
    """The seq of the record that made it; 0 in what an earlier version wrote."""


class BatchRow(Struct, array_like=True, frozen=True):
    """A batch that was adopted, without its files."""

    adopt_seq: int
    first_seq: int
    count: int
    floor_ms: int
    adopted_at_ms: int
    high_ms: int
    """The last of its fire instants."""
    fingerprint: str
    namespaces: list[str]
    waiting: dict[str, dict[str, int]]
    """By namespace and owner: the messages that are as they were adopted."""
    apart: dict[str, dict[str, int]] = {}
    """By namespace and owner: the messages that end by records of their own."""
    cancelled_at_ms: int | None = None
    cancelled: int = 0
    """How many messages ended with the batch."""
    spared: list[Key] = []
    """Keys of messages that were being sent when the batch was cancelled."""
    past: bool = False
    """Whether the watermark has passed it, so that its seqs are forgotten."""
    trace: bytes | None = None
    """The trace context of its acceptance."""


class Relied(Struct, array_like=True, frozen=True):
    """The reclaimed part of the ledger that the index has: up to which seq, and in which index."""

    seq: int = 0
    index: str = ""


class Ahead(Struct, array_like=True, frozen=True):
    """How far a clock that was ahead may have come, and up to which seq versions were there then."""

    at_ms: int = 0
    seq: int = 0


class Meta(Struct, array_like=True, frozen=True):
    """Where the registry is: the seq it has reached, in which ledger, and the watermark at that moment."""

    ledger_id: bytes
    applied_seq: int
    watermark: Key
    counters: dict[str, int]
    next_batch_seq: int = FIRST_BATCH_SEQ
    """Seqs of messages in batches are never used again, also when their batch is forgotten."""
    relied: Relied = Relied()
    sizes: dict[int, int] = {}
    """Where the ledger has large bodies (`tarry.engine.bodies.body_sizes`)."""
    stranded: dict[str, int] = {}
    """By scheme: messages that wait for an outlet which a start did not have."""
    ceilings: list[Ceiling] = []
    """Ceilings of the watermark, where it was lowered (`tarry.ledger.watermark`)."""
    marked_at_ms: int = 0
    """The clock at the last mark."""
    ahead: Ahead = Ahead()
    set_aside: list[int] = []
    """Seqs of records that a start was told to go on without."""
    scoped_from: int = 0
    """Messages from this seq on are counted by namespace and owner; earlier ones, of format 1, by owner alone."""
    paused: dict[str, int] = {}
    """How many messages are paused: by a command on the message, or held by their place."""


class Flush:
    """One consistent cut on its way to SQLite."""

    def __init__(
        self, meta: Meta, changes: list[dict[tuple[Any, ...], Any]], ended: list[Callable[[], Any]]
    ) -> None:
        self.meta = meta
        self.changes = changes
        self.ended = ended


class Registry:
    """The tables, and the flush that makes them durable."""

    def __init__(self, path: str, image: bytes | None = None) -> None:
        """Open or create the registry at a path; `:memory:`, and the database that it begins as, are for simulations."""
        self.path = path
        self.live: Table[LiveRow] = Table(
            "live", ("origin_seq",), LiveRow, ("owner", "due_at_ms"), recent=True
        )
        self.finalised: Table[EndedRow] = Table(
            "finalised", ("origin_seq",), EndedRow, ("owner", "finalised_at_ms")
        )
        self.groups: Table[GroupRow] = Table(
            "groups", ("namespace", "owner", "name"), GroupRow, ("closed_at_ms",)
        )
        self.subjects: Table[list[Key]] = Table("subjects", ("subject",), list[Key])
        self.idempotency: Table[RepeatRow] = Table(
            "idempotency", ("namespace", "owner", "key"), RepeatRow, ("accepted_at_ms",), sieved=True
        )
        self.lines: Table[LinesRow] = Table(
            "lines", ("namespace", "owner", "request", "page"), LinesRow, ("accepted_at_ms",), sieved=True
        )
        """Answers to lines of requests with an idempotency key, by page; the instant is the newest one of the page."""
        self.names: Table[Key] = Table("names", ("namespace", "name"), Key, ("origin_seq",), sieved=True)
        """By namespace and name: the origin of the message that was given the name last."""
        self.owners: Table[int] = Table("owners", ("namespace", "owner"), int)
        self.policies: Table[dict[str, Any]] = Table("policies", ("scope", "name"), dict[str, Any])
        self.topics: Table[TopicRow] = Table("topics", ("name",), TopicRow)
        self.chunks: Table[bytes] = Table("chunks", ("topic", "number"), bytes)
        self.waiting: Table[bytes] = Table("waiting", ("topic", "number"), bytes)
        self.subscriptions: Table[SubscriptionRow] = Table(
            "subscriptions", ("topic", "name"), SubscriptionRow
        )
        self.acks: Table[bytes] = Table("acks", ("topic", "subscription", "number"), bytes)
        self.producers: Table[int] = Table("producers", ("topic", "producer"), int)
        """As earlier versions wrote it: the last sequence number alone. Rows of `sequences` take their place."""
        self.sequences: Table[SequencesRow] = Table("sequences", ("topic", "producer"), SequencesRow)
        self.batches: Table[BatchRow] = Table("batches", ("name",), BatchRow)
        self.batch_files: Table[list[StagedFile]] = Table("batch_files", ("name",), list[StagedFile])
        self.catalogue: Table[bytes] = Table("catalogue", ("sort", "name"), bytes)
        self._meta: Table[Meta] = Table("meta", ("name",), Meta)
        self.tables: list[Table[Any]] = [
            self.live, self.finalised, self.groups, self.idempotency, self.owners, self.policies, self.topics,
            self.chunks, self.waiting, self.subscriptions, self.acks, self.producers, self.batches,
            self.batch_files, self.catalogue, self.subjects, self.sequences,
            self.names, self.lines,
        ]  # fmt: skip
        self._ended: list[Callable[[], Any]] = []
        try:
            self._writer = _connect(path, image)
            # A memory database belongs to its connection; there, one connection does both.
            self._reader = self._writer if path == ":memory:" else _connect(path)
        except sqlite3.DatabaseError as error:
            found = trouble("meta", error, path)
            if isinstance(found, RegistryDamage):
                found = RegistryDamage("meta", f"the file is not a registry: {error}")
            raise found from error
        self.on_damage: Callable[[RegistryDamage], None] | None = None
        """Told of damage that shows while the registry is in use; on whichever thread found it."""
        for table in (*self.tables, self._meta):
            table.attach(self._reader)
            table.on_damage = self._damaged
        self.renew()
        self.meta: Meta | None = self._meta.get("registry")

    def defer_ended(
        self, rows: Callable[[], list[tuple[tuple[Any, ...], tuple[Any, ...], EndedRow]]]
    ) -> None:
        """Give rows of `finalised` that are made only when flushed: in a burst there is no time for them."""
        self._ended.append(rows)

    @property
    def dirty(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._ended) or any(table.changed for table in self.tables)

    def begin(self, meta: Meta) -> Flush:
        """Take a consistent cut. On the engine's thread, between two operations."""
        ended, self._ended = self._ended, []
        return Flush(meta, [table.take() for table in self.tables], ended)

    def write(self, flush: Flush) -> None:
        """Write a cut in one transaction. On the registry's thread, once the ledger is durable that far."""
        try:
            with self._writer:
                for table, changes in zip(self.tables, flush.changes, strict=True):
                    table.write(self._writer, changes)
                self.finalised.insert(self._writer, chain.from_iterable(rows() for rows in flush.ended))
                self._meta.insert(self._writer, [(("registry",), (), flush.meta)])
        except sqlite3.DatabaseError as error:
            raise self._trouble(error) from error

    def done(self, flush: Flush) -> None:
        """Let go of a cut that SQLite has. On the engine's thread."""
        self.meta = flush.meta
        self.renew()
        for table in self.tables:
            table.flushed()

    def renew(self) -> None:
        """Let look-ups see the rows that were written since the last time. On the engine's thread.

        Until then they all read from one view: without a lock for each, and without SQLite's reading its pages again
        because another connection has written. That is most of what a look-up costs.
        """
        if self._reader is not self._writer:
            self._reader.rollback()
            self._reader.execute("BEGIN")

    def undo(self, flush: Flush) -> None:
        """Take a cut back that could not be written. On the engine's thread."""
        self._ended = flush.ended + self._ended
        for table in self.tables:
            table.undo()

    def prune(
        self,
        finalised_before_ms: int,
        finalised_rows: int,
        idempotency_before_ms: int,
        finalised_rows_per_owner: int,
    ) -> None:
        """Forget rows past their retention, a bounded number at a time. On the registry's thread."""
        with self._writer:
            self._forget(
                "WHERE finalised_at_ms < ? ORDER BY finalised_at_ms, origin_seq LIMIT 5000",
                finalised_before_ms,
            )
            (rows,) = self._writer.execute("SELECT count(*) FROM finalised").fetchone()
            if rows > finalised_rows:
                self._forget(
                    "ORDER BY finalised_at_ms, origin_seq LIMIT ?", min(rows - finalised_rows, 20_000)
                )
            crowded = self._writer.execute(
                "SELECT owner FROM finalised WHERE owner IS NOT NULL GROUP BY owner HAVING count(*) > ? LIMIT 100",
                (finalised_rows_per_owner,)).fetchall()  # fmt: skip
            for (owner,) in crowded:
                self._forget(
                    "WHERE owner = ? ORDER BY finalised_at_ms DESC, origin_seq DESC LIMIT -1 OFFSET ?",
                    owner, finalised_rows_per_owner,
                )  # fmt: skip
            self._writer.execute(
                "DELETE FROM idempotency WHERE accepted_at_ms < ?", (idempotency_before_ms,))  # fmt: skip
            self._writer.execute(
                "DELETE FROM lines WHERE accepted_at_ms < ?", (idempotency_before_ms,))  # fmt: skip
            self._writer.execute(
                "DELETE FROM groups WHERE closed_at_ms IS NOT NULL AND closed_at_ms < ?", (finalised_before_ms,))  # fmt: skip

    def _forget(self, which: str, *values: Any) -> None:
        """Forget outcomes, and with each the name that its message still has."""
        for table in ("names", "finalised"):
            self._writer.execute(
                f"DELETE FROM {table} WHERE origin_seq IN (SELECT origin_seq FROM finalised {which})",
                values,
            )

    def snapshot(self, path: str) -> None:
        """Write a checksummed copy (R12), after proving every row of it. On the registry's thread."""
        try:
            write_snapshot(self._writer, path, self._prove)
        except sqlite3.DatabaseError as error:
            raise self._trouble(error) from error

    def _prove(self, copy: sqlite3.Connection) -> None:
        """A copy of damage would take the place of a good snapshot, and the ledger would be reclaimed up to it."""
        (said,) = self._writer.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            damage = RegistryDamage("meta", str(said))
            self._damaged(damage)
            raise damage
        for table in (*self.tables, self._meta):
            table.prove(copy)

    def _trouble(self, error: sqlite3.Error) -> TarryError:
        found = trouble("meta", error, self.path)
        if isinstance(found, RegistryDamage):
            self._damaged(found)
        return found

    def _damaged(self, damage: RegistryDamage) -> None:
        if self.on_damage is not None:
            self.on_damage(damage)

    def serialize(self) -> bytes:
        """The whole database as bytes; for simulations."""
        return self._writer.serialize()

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        if self._writer is not self._reader:
            self._writer.close()


@functools.cache
def _schema() -> str:
    return files("tarry.registry").joinpath("schema.sql").read_text("utf-8")


def _connect(path: str, image: bytes | None = None) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, cached_statements=256)
    if image is not None:
        connection.deserialize(image)
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL may lose the newest transactions at a power loss, never the order: the ledger replays them.
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if 0 < version < FORMAT_VERSION:
        migrate(connection, version, Meta)
        version = FORMAT_VERSION
    if version in (0, FORMAT_VERSION):
        # Tables that came later are made in a registry that lacks them; the ledger fills them.
        connection.executescript(_schema())
    if version == 0:
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.commit()
    elif version != FORMAT_VERSION:
        connection.close()
        raise Unavailable(
            f"{path}: written by another version of Tarry (registry format {version}, this one reads {FORMAT_VERSION})"
        )
    return connection
