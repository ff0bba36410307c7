"""Bringing a registry of an earlier format to the present one, in place: one transaction, so it happens or it does not.

From format 1 to 2: groups, idempotency keys and counts get the namespace into their keys. Their rows do not tell which one it
is, so it is left open (`UNSCOPED`); the engine knows what that means. Messages that the registry had seen by then stay counted
so (`Meta.scoped_from`).

From format 2 to 3 nothing is rewritten: chunks of places and blocks of bits may be shorter than they were, which an
earlier version would misread.

From format 3 to 4 the answers to lines of a request with an idempotency key go from rows of their own into pages.
"""

import logging
import sqlite3
from functools import partial
from typing import Any, Final

import google_crc32c
import msgspec

from tarry.core.messages.line_keys import place_of
from tarry.core.tenants.holder import UNSCOPED
from tarry.registry.lines_row import LinesRow
from tarry.registry.table import RegistryDamage

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 4
SCOPED_VERSION: Final = 2
"""The first format with the namespace in its keys."""
_BATCH_COUNTS: Final = (8, 9)
"""Where a row of a batch has its counts by owner."""

_SCOPED: Final = {
    "groups": (
        "namespace TEXT, owner TEXT, name TEXT, closed_at_ms INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,"
        " PRIMARY KEY (namespace, owner, name)"
    ),
    "idempotency": (
        "namespace TEXT, owner TEXT, key TEXT, accepted_at_ms INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,"
        " PRIMARY KEY (namespace, owner, key)"
    ),
    "owners": (
        "namespace TEXT, owner TEXT, body BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (namespace, owner)"
    ),
}
"""The tables of format 2 that differ from those of format 1."""


_LINES: Final = (
    "CREATE TABLE IF NOT EXISTS lines (namespace TEXT, owner TEXT, request TEXT, page INTEGER,"
    " accepted_at_ms INTEGER, body BLOB NOT NULL, crc INTEGER NOT NULL,"
    " PRIMARY KEY (namespace, owner, request, page)) WITHOUT ROWID"
)
"""The table that format 4 has more."""


def migrate(connection: sqlite3.Connection, version: int, meta: type[Any]) -> None:
    """Turn a registry of an earlier format into one of the present; `meta` is the type of the row that says how far it is.

    Raises `RegistryDamage`.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version < SCOPED_VERSION:
            for name, columns in _SCOPED.items():
                _scope(connection, name, columns)
            _rewrite(connection, "batches", _scoped_batch)
            _rewrite(connection, "meta", partial(_scoped_meta, meta))
        _put_lines_together(connection)
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    log.info("the registry was brought from format %d to format %d", version, FORMAT_VERSION)


def _scope(connection: sqlite3.Connection, name: str, columns: str) -> None:
    """Put a table in the place of one whose keys lack the namespace."""
    connection.execute(f"CREATE TABLE scoped_{name} ({columns}) WITHOUT ROWID")
    marks = ", ".join("?" * (columns.count(" TEXT") + columns.count(" INTEGER") + 1))
    connection.executemany(
        f"INSERT INTO scoped_{name} VALUES ({marks})",
        (_with_namespace(name, *row) for row in connection.execute(f"SELECT body, crc FROM {name}")),
    )
    connection.execute(f"DROP TABLE {name}")
    connection.execute(f"ALTER TABLE scoped_{name} RENAME TO {name}")


def _with_namespace(table: str, body: bytes, crc: int) -> tuple[Any, ...]:
    key, searched, value = _read(table, body, crc)
    key = [UNSCOPED, *key]
    return (*key, *searched, *_written(key, searched, value))


def _rewrite(connection: sqlite3.Connection, table: str, change: Any) -> None:
    for name, body, crc in connection.execute(f"SELECT name, body, crc FROM {table}").fetchall():
        key, searched, value = _read(table, body, crc)
        written = _written(key, searched, change(value))
        connection.execute(f"UPDATE {table} SET body = ?, crc = ? WHERE name = ?", (*written, name))


def _scoped_batch(row: list[Any]) -> list[Any]:
    """The counts of a batch by namespace, then by owner."""
    return [{UNSCOPED: field} if at in _BATCH_COUNTS else field for at, field in enumerate(row)]


def _scoped_meta(kind: type[Any], row: list[Any]) -> Any:
    meta = msgspec.convert(row, kind)
    return msgspec.structs.replace(meta, scoped_from=meta.applied_seq + 1)


def _put_lines_together(connection: sqlite3.Connection) -> None:
    """Move the answers to lines into pages; what other keys have got stays where it is."""
    connection.execute(_LINES)
    pages: dict[tuple[str, str, str, int], LinesRow] = {}
    newest: dict[tuple[str, str, str, int], int] = {}
    moved: list[tuple[str, str, str]] = []
    for body, crc in connection.execute("SELECT body, crc FROM idempotency WHERE key GLOB '*:[1-9]*'"):
        (namespace, owner, key), _, answer = _read("idempotency", body, crc)
        if (place := place_of(key)) is None:
            continue
        fingerprint, (fire_at_ms, seq), due_at_ms, _, accepted_at_ms = answer
        where = (namespace, owner, place.request, place.page)
        pages[where] = pages.get(where, LinesRow()).with_line(
            place.line, fingerprint, fire_at_ms, seq, due_at_ms, accepted_at_ms
        )
        newest[where] = max(newest.get(where, 0), accepted_at_ms)
        moved.append((namespace, owner, key))
    connection.executemany(
        "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((*where, newest[where], *_written(where, (newest[where],), page)) for where, page in pages.items()),
    )
    connection.executemany("DELETE FROM idempotency WHERE namespace = ? AND owner = ? AND key = ?", moved)


def _read(table: str, body: bytes, crc: int) -> list[Any]:
    if google_crc32c.value(body) != crc:
        raise RegistryDamage(table, "a row fails its checksum")
    row: list[Any] = msgspec.msgpack.decode(body)
    return row


def _written(key: Any, searched: Any, value: Any) -> tuple[bytes, int]:
    body = msgspec.msgpack.encode((key, searched, value))
    return body, google_crc32c.value(body)
