"""Where the ledger and the tables are, and what they hold at one moment.

Runs in the driver and in its planner processes. Nothing here writes: a reader makes no table.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import NotFound, Unavailable
from tarry.index.schema import HISTORY, INDEX, Layout
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import Adopt, CancelBatch, Key, Kind, Mark, Topic, decode
from tarry.pipeline.source import Place as LedgerPlace

RECORD_BYTES = 300
"""A record of the ledger, about."""

FIRST_RUN = "run `tarry pipeline --once` to make the tables"


class Whereabouts(Struct, frozen=True):
    """Where to read."""

    tables: str
    """The folder or address of the two tables."""
    ledger: LedgerPlace | None
    """Without a ledger everything is as of the tables."""
    storage: dict[str, str] = {}
    """Options of the object store, as delta-rs knows them."""


def find(options: Mapping[str, str]) -> Whereabouts:
    """What the options of a read name: a data folder, or tables, with the ledger beside them, in `ledger` or at `server`."""
    storage = {
        name.removeprefix("storage."): value for name, value in options.items() if name.startswith("storage.")
    }
    path = options.get("path") or options.get("tables")
    ledger = _ledger_place(options.get("ledger"), options)
    if not path:
        raise NotFound("say where to read: load(PATH), of a data folder or of a folder of tables")
    if "://" in path and not path.startswith("file://"):
        return Whereabouts(path.rstrip("/"), ledger, storage)
    folder = os.path.abspath(path.removeprefix("file://"))
    if _is_folder(folder, "ledger") or _is_folder(folder, "tables"):
        tables = options.get("tables") or os.path.join(folder, "tables")
        return Whereabouts(tables, ledger or _ledger_beside(folder), storage)
    if _is_folder(folder, "index", "_delta_log") or _is_folder(folder, "history", "_delta_log"):
        return Whereabouts(folder, ledger or _ledger_beside(os.path.dirname(folder)), storage)
    raise NotFound(f"{path}: neither a data folder nor a folder of tables; {FIRST_RUN}")


def _is_folder(*parts: str) -> bool:
    return os.path.isdir(os.path.join(*parts))


def _ledger_place(folder: str | None, options: Mapping[str, str]) -> LedgerPlace | None:
    if folder is not None:
        return LedgerPlace(os.path.abspath(folder), None)
    return LedgerPlace.of(options) if "server" in options else None


def _ledger_beside(folder: str) -> LedgerPlace | None:
    return LedgerPlace(os.path.join(folder, "ledger"), None) if _is_folder(folder, "ledger") else None


class TableState(Struct, frozen=True):
    """One table at its newest version."""

    uri: str
    version: int
    cursor: int
    state: dict[str, Any]
    files: list[IndexFile]


def table_state(place: Whereabouts, name: str) -> TableState | None:
    """The table `index` or `history` as it is now; None while there is none."""
    layout: Layout = INDEX if name == "index" else HISTORY
    uri = f"{place.tables}/{name}"
    if "://" not in uri and not _is_folder(uri, "_delta_log"):
        return None
    try:
        table = GuardedTable(DeltaTable(uri, storage_options=place.storage or None), layout)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise Unavailable(f"{uri}: cannot be opened as a Delta table: {error}") from error
    return TableState(uri, table.version, table.cursor(), table.state(), table.files())


def filesystem_of(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """How to read below a folder or an address, and the path of its root."""
    if "://" in uri:
        filesystem, root = pyarrow.fs.FileSystem.from_uri(uri)
        return filesystem, root.rstrip("/")
    return pyarrow.fs.LocalFileSystem(), uri.rstrip("/")


class Tail(Struct, frozen=True):
    """What the records above a cursor say of versions below and above it."""

    first_seq: int
    head: int
    watermark: Key
    kills_seq: NDArray[np.int64]
    kills_fire_at_ms: NDArray[np.int64]
    adopted: list[Adopt]
    cancelled: list[CancelBatch]
    deleted: dict[str, int]
    """By topic: the seq of its deletion, which ends its delayed entries."""


def tail_of(place: Whereabouts, cursor: int) -> Tail:
    """Read the records above a cursor up to the durable head; bodies only where they are few."""
    seqs: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    fires: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    watermark = Key(0, 0)
    adopted: list[Adopt] = []
    cancelled: list[CancelBatch] = []
    deleted: dict[str, int] = {}
    if place.ledger is None:
        return Tail(cursor + 1, cursor, watermark, seqs[0], fires[0], [], [], {})
    follower = place.ledger.follower()
    head = follower.durable_seq()
    telling = (Kind.MARK, Kind.ADOPT, Kind.CANCEL_BATCH, Kind.TOPIC)
    for frame in follower.frames(cursor + 1, head) if head > cursor else ():
        kills = frame.fixed["kills_seq"] > 0
        seqs.append(frame.fixed["kills_seq"][kills].astype(np.int64))
        fires.append(frame.fixed["kills_fire_at_ms"][kills].astype(np.int64))
        for at in np.flatnonzero(np.isin(frame.fixed["kind"], telling)).tolist():
            match decode(frame.body(at)):
                case Mark(watermark=marked):
                    watermark = max(watermark, marked)
                case Adopt() as batch:
                    adopted.append(batch)
                case CancelBatch() as cancel:
                    cancelled.append(cancel)
                case Topic(name=name, deleted=True):
                    deleted[name] = frame.first_seq + at
    return Tail(
        cursor + 1, head, watermark, np.concatenate(seqs), np.concatenate(fires), adopted, cancelled, deleted
    )
