"""A write-behind table: changes are seen at once, and reach SQLite at the next flush.

Changes live in memory until a flush takes them, and on in `_flushing` until that flush is done; a
look-up sees the newest. Two kinds of look-up are so frequent that they are spared SQLite, in tables that ask for it: for a
row that was written of late, and for one that was never there (see `sieve`).
Nothing here decides when to flush or what a value means.
"""

import functools
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

import google_crc32c
import msgspec

from tarry.core.errors import Damage, TarryError, Unavailable
from tarry.registry.sieve import Sieve

V = TypeVar("V")


class RegistryDamage(Damage):
    """A row of the registry differs from the one that was written. Its newest snapshot and the ledger hold all that it did."""

    code = "registry-damage"

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"registry table {table}", 0, reason)


_NOT_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
    }
)
"""An error: the disk or the system does not allow this at the moment. The file may be in the best order."""


def trouble(table: str, error: sqlite3.Error, path: str = "the file") -> TarryError:
    """The meaning of an error of SQLite: the registry is damaged, or only cannot be used now."""
    # The lowest byte is the kind; the rest says more about it.
    # Errors of the module itself have no code.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGE:
        return Unavailable(f"the registry cannot be used: {path}: {error}")
    return RegistryDamage(table, str(error))


_encode = msgspec.msgpack.encode

PROVED_AT_ONCE: Final = 500
"""Rows that are checked before other threads get their turn."""

SORTED_AT_ONCE: Final = 10_000
"""Rows that are sorted together: it takes some milliseconds."""

WRITTEN_AT_ONCE: Final = 25
"""Rows that are inserted by one statement."""

PAUSE_S: Final = 0.008
PAUSES: Final = 50
"""Between two of these statements other threads have the interpreter, and most of the time the processors, to themselves: a
thousand rows, half a second of a steady load, are written over that half second. But a long flush must go on."""

RECENT_ROWS: Final = 16_384
"""Number of recent rows kept of one table, and as many that were written before these: the heartbeats of ten thousand, with what has changed between."""

_REMOVED: Final[Any] = object()


@functools.cache
def _decoder_of(value_type: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of rows whose values have a type."""
    return msgspec.msgpack.Decoder(tuple[tuple[Any, ...], tuple[Any, ...], value_type])


class Table(Generic[V]):
    """Rows by key; `searched` are further columns that queries may use."""

    def __init__(
        self,
        name: str,
        keys: tuple[str, ...],
        value_type: type[V],
        searched: tuple[str, ...] = (),
        *,
        recent: bool = False,
        sieved: bool = False,
    ) -> None:
        """`recent`: rows change by `put` and `remove` alone. `sieved`: they come by `put` alone."""
        self.name = name
        self._keeps_recent = recent
        self._recent: dict[tuple[Any, ...], Any] = {}
        """Changes that SQLite has; when there are enough of them, they take the place of the older ones."""
        self._older: dict[tuple[Any, ...], Any] = {}
        self._sieve = Sieve(name, keys) if sieved else None
        self._columns = len(keys) + len(searched)
        self._decoder = _decoder_of(value_type)  # type: ignore[arg-type]
        where = " AND ".join(f"{key} = ?" for key in keys)
        marks = ", ".join("?" * (self._columns + 2))
        self._select = f"SELECT body, crc FROM {name} WHERE {where}"
        insert = f"INSERT OR REPLACE INTO {name} ({', '.join((*keys, *searched))}, body, crc) VALUES "
        self._insert = f"{insert}({marks})"
        self._insert_many = insert + ", ".join([f"({marks})"] * WRITTEN_AT_ONCE)
        self._delete = f"DELETE FROM {name} WHERE {where}"
        self._changes: dict[tuple[Any, ...], Any] = {}
        self._flushing: dict[tuple[Any, ...], Any] = {}
        self._reader: sqlite3.Connection | None = None
        self.on_damage: Callable[[RegistryDamage], None] | None = None
        """Told of damage that a look-up found, before it is raised."""
        self._select_all = f"SELECT {', '.join((*keys, *searched))}, body, crc FROM {name}"

    def attach(self, reader: sqlite3.Connection) -> None:
        """Say which connection look-ups go through."""
        self._reader = reader

    def get(self, *key: Any) -> V | None:
        """The value at a key, or None."""
        change = self._changes.get(key)
        if change is None:
            change = self._flushing.get(key)
        if change is None and self._keeps_recent:
            change = self._recent.get(key) or self._older.get(key)
        if change is not None:
            return None if change is _REMOVED else change[1]
        if self._reader is None or (self._sieve is not None and self._sieve.lacks(key)):
            return None
        for row in self._fetch(self._select, key):
            return self._checked(row, key)
        return None

    def _checked(self, row: tuple[bytes, int], key: tuple[Any, ...]) -> V:
        found, _, value = self.decode(row[0], row[1])
        if found != key:
            raise self._tell(RegistryDamage(self.name, "the row holds another key"))
        return value

    def _tell(self, error: TarryError) -> TarryError:
        if self.on_damage is not None and isinstance(error, RegistryDamage):
            self.on_damage(error)
        return error

    def put(self, key: tuple[Any, ...], value: V, searched: tuple[Any, ...] = ()) -> None:
        """Set the value at a key."""
        self._changes[key] = (searched, value)
        if self._sieve is not None:
            self._sieve.add(key)

    def remove(self, *key: Any) -> None:
        """Remove the row at a key, if there is one."""
        self._changes[key] = _REMOVED

    def rows(self) -> Iterator[tuple[tuple[Any, ...], V]]:
        """Every row in SQLite, as key and value; for start-up, before there are changes."""
        if self._reader is None:
            return
        for body, crc in self._fetch(f"SELECT body, crc FROM {self.name}", ()):
            key, _, value = self.decode(body, crc)
            yield key, value

    def select(self, where: str, values: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], tuple[Any, ...], V]]:
        """Key, searched columns and value of the rows that a condition selects, as of the last flush."""
        query = f"SELECT body, crc FROM {self.name} WHERE {where}"
        return [self.decode(body, crc) for body, crc in self._fetch(query, values)]

    def _fetch(self, query: str, values: tuple[Any, ...]) -> Iterator[tuple[bytes, int]]:
        assert self._reader is not None
        try:
            # Not `yield from`: a look-up that stops early must not close the cursor, perhaps after its connection.
            for row in self._reader.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.DatabaseError as error:
            raise self._tell(trouble(self.name, error)) from error

    def decode(self, body: bytes, crc: int) -> tuple[tuple[Any, ...], tuple[Any, ...], V]:
        """Key, searched columns and value of a row; raises `Damage` if its bytes are damaged."""
        if google_crc32c.value(body) != crc:
            raise self._tell(RegistryDamage(self.name, "a row fails its checksum"))
        row: tuple[tuple[Any, ...], tuple[Any, ...], V] = self._decoder.decode(body)
        return row

    def prove(self, connection: sqlite3.Connection) -> None:
        """Check every row in a database: its checksum, and that its columns are those in its body."""
        for number, (*columns, body, crc) in enumerate(connection.execute(self._select_all)):
            key, searched, _ = self.decode(body, crc)
            if (*key, *searched) != tuple(columns):
                raise self._tell(RegistryDamage(self.name, "the columns of a row are not what they were"))
            if number % PROVED_AT_ONCE == 0:
                # Another thread has messages to deliver.
                time.sleep(0.001)

    @property
    def changed(self) -> int:
        """How many rows await the next flush."""
        return len(self._changes)

    def take(self) -> dict[tuple[Any, ...], Any]:
        """Begin a flush: the changes so far, which stay visible until `flushed`."""
        self._flushing, self._changes = self._changes, {}
        return self._flushing

    def flushed(self) -> None:
        """The flush is done: SQLite has them."""
        if self._keeps_recent:
            if len(self._recent) >= RECENT_ROWS:
                self._older, self._recent = self._recent, {}
            self._recent.update(self._flushing)
        if self._sieve is not None:
            self._sieve.flushed(self._changes)
        self._flushing = {}

    def undo(self) -> None:
        """The flush failed: its changes wait again, under those made since."""
        self._changes = {**self._flushing, **self._changes}
        self._flushing = {}

    def write(self, connection: sqlite3.Connection, changes: dict[tuple[Any, ...], Any]) -> None:
        """Write a flush's changes. Called on the registry's thread."""
        removed = [key for key, change in changes.items() if change is _REMOVED]
        if removed:
            connection.executemany(self._delete, removed)
        kept = (key for key, change in changes.items() if change is not _REMOVED)
        self.insert(connection, ((key, *changes[key]) for key in _in_order(kept)))
        if self._sieve is not None:
            self._sieve.learn(connection)

    def encode(self, rows: Iterable[tuple[tuple[Any, ...], tuple[Any, ...], V]]) -> Iterator[tuple[Any, ...]]:
        """Rows as they are inserted."""
        for row in rows:
            body = _encode(row)
            yield (*row[0], *row[1], body, google_crc32c.value(body))

    def insert(
        self, connection: sqlite3.Connection, rows: Iterable[tuple[tuple[Any, ...], tuple[Any, ...], V]]
    ) -> None:
        """Insert rows directly, past the changes. Called on the registry's thread."""
        encoded, pauses = self.encode(rows), 0
        # SQLite lets go of the interpreter once in a statement. Were each row one, this thread and those that have
        # messages to deliver would take it from each other a thousand times in a flush.
        while len(some := list(islice(encoded, WRITTEN_AT_ONCE))) == WRITTEN_AT_ONCE:
            connection.execute(self._insert_many, list(chain.from_iterable(some)))
            if pauses < PAUSES:
                pauses += 1
                time.sleep(PAUSE_S)
        connection.executemany(self._insert, some)


def _in_order(keys: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Keys in the order of the tree that they go into, some thousands at a time: neighbours there are written together.

    Sorting a million in one call would keep the interpreter from every other thread for a second.
    """
    left = iter(keys)
    while some := sorted(islice(left, SORTED_AT_ONCE)):
        yield from some
