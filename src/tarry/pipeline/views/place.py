"""The places of the ledger and the tables, and their contents at one moment.

Runs in the driver and in its planner processes. Nothing here writes: a reader makes no table.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import NotFound, Unavailable
from tarry.index.schema import HISTORY, INDEX, Layout
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import Adopt, CancelBatch, Kind, Lower, Mark, TopicSet, decode
from tarry.ledger.watermark import NOTHING_PASSED, Watermark
from tarry.pipeline.kafka import is_of_kafka
from tarry.pipeline.ledger_parts import LedgerAddress

RECORD_BYTES = 300
"""A record of the ledger, about."""

FIRST_RUN = "run `tarry pipeline --once` to make the tables"


class Moment(Struct, frozen=True):
    """A state of everything that can be read several times, as long as nothing of it is thrown away."""

    upto_seq: int
    """The durable head."""
    index: int
    """Versions of the tables."""
    history: int

    def option(self) -> str:
        """As the option `as_of`."""
        return f"{self.upto_seq},{self.index},{self.history}"


class Whereabouts(Struct, frozen=True):
    """Where to read."""

    tables: str
    """The folder or address of the two tables."""
    ledger: LedgerAddress | None
    """Without a ledger everything is as of the tables."""
    source: dict[str, str] = {}
    """The options with which the data source `tarry-ledger` reads the same one."""
    storage: dict[str, str] = {}
    """Options of the object store, as delta-rs knows them."""
    moment: Moment | None = None
    """The moment to read as of; None is now."""


def find(options: Mapping[str, str]) -> Whereabouts:
    """The place that the options of a read name: a data folder, or tables, with the ledger beside them, in `ledger` or at `server`."""
    storage = {
        name.removeprefix("storage."): value for name, value in options.items() if name.startswith("storage.")
    }
    moment = Moment(*map(int, options["as_of"].split(","))) if "as_of" in options else None
    path = options.get("path") or options.get("tables")
    source = {
        name: value
        for name, value in options.items()
        if name in ("server", "token_file") or is_of_kafka(name)
    }
    if "ledger" in options:
        source = {"folder": os.path.abspath(options["ledger"])}
    if not path:
        raise NotFound("say where to read: load(PATH), of a data folder or of a folder of tables")
    if "://" in path and not path.startswith("file://"):
        return _whereabouts(path.rstrip("/"), source, storage, moment)
    folder = os.path.abspath(path.removeprefix("file://"))
    if _is_folder(folder, "ledger") or _is_folder(folder, "tables"):
        tables = options.get("tables") or os.path.join(folder, "tables")
        return _whereabouts(tables, source or _beside(folder), storage, moment)
    if _is_folder(folder, "index", "_delta_log") or _is_folder(folder, "history", "_delta_log"):
        return _whereabouts(folder, source or _beside(os.path.dirname(folder)), storage, moment)
    raise NotFound(f"{path}: neither a data folder nor a folder of tables; {FIRST_RUN}")


def _is_folder(*parts: str) -> bool:
    return os.path.isdir(os.path.join(*parts))


def _beside(folder: str) -> dict[str, str]:
    return {"folder": os.path.join(folder, "ledger")} if _is_folder(folder, "ledger") else {}


def _whereabouts(
    tables: str, source: dict[str, str], storage: dict[str, str], moment: Moment | None
) -> Whereabouts:
    ledger = LedgerAddress.of(source) if source else None
    return Whereabouts(tables, ledger, source, storage, moment)


class LedgerPart(Struct, frozen=True):
    """A range of the ledger, as a part of a view."""

    ledger: LedgerAddress
    first_seq: int
    last_seq: int

    @property
    def size_bytes(self) -> int:
        """The cost of reading it, about."""
        return (self.last_seq - self.first_seq + 1) * RECORD_BYTES


class TableState(Struct, frozen=True):
    """One table at one version."""

    uri: str
    version: int
    cursor: int
    state: dict[str, Any]
    files: list[IndexFile]


def table_state(place: Whereabouts, name: str) -> TableState | None:
    """The table `index` or `history`, now or as of the moment to read; None while there is none."""
    layout: Layout = INDEX if name == "index" else HISTORY
    uri = f"{place.tables}/{name}"
    if "://" not in uri and not _is_folder(uri, "_delta_log"):
        return None
    version = None if place.moment is None else getattr(place.moment, name)
    try:
        table = GuardedTable(DeltaTable(uri, version, storage_options=place.storage or None), layout)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise Unavailable(f"{uri}: cannot be opened as a Delta table: {error}") from error
    return TableState(uri, table.version, table.cursor(), table.state(), table.files())


def need_tables(place: Whereabouts) -> tuple[TableState, TableState]:
    """The index and the history as they are now; raises `NotFound`, saying what to do, where there is one missing."""
    index, history = table_state(place, "index"), table_state(place, "history")
    if index is None or history is None:
        raise NotFound(f"{place.tables}: there are no tables yet; {FIRST_RUN}")
    return index, history


class Tail(Struct, frozen=True):
    """The facts about versions below and above a cursor in the records above it."""

    first_seq: int
    head: int
    passed: Watermark
    kills_seq: NDArray[np.int64]
    kills_fire_at_ms: NDArray[np.int64]
    adopted: list[Adopt]
    cancelled: list[CancelBatch]
    deleted: dict[str, int]
    """By topic: the seq of its deletion, which ends its delayed entries."""


def tail_of(place: Whereabouts, cursor: int, passed: Watermark = NOTHING_PASSED) -> Tail:
    """Read the records above a cursor, where the watermark was as given, up to the durable head; bodies only where they are few."""
    seqs: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    fires: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    adopted: list[Adopt] = []
    cancelled: list[CancelBatch] = []
    deleted: dict[str, int] = {}
    if place.ledger is None:
        return Tail(cursor + 1, cursor, passed, seqs[0], fires[0], [], [], {})
    follower = place.ledger.follower()
    head = follower.durable_seq() if place.moment is None else place.moment.upto_seq
    telling = (Kind.MARK, Kind.LOWER, Kind.ADOPT, Kind.CANCEL_BATCH, Kind.TOPIC)
    for frame in follower.frames(cursor + 1, head) if head > cursor else ():
        kills = frame.fixed["kills_seq"] > 0
        seqs.append(frame.fixed["kills_seq"][kills].astype(np.int64))
        fires.append(frame.fixed["kills_fire_at_ms"][kills].astype(np.int64))
        for at in np.flatnonzero(np.isin(frame.fixed["kind"], telling)).tolist():
            match decode(frame.body(at)):
                case Mark() | Lower() as change:
                    passed = passed.after(frame.first_seq + at, change)
                case Adopt() as batch:
                    adopted.append(batch)
                case CancelBatch() as cancel:
                    cancelled.append(cancel)
                case TopicSet(name=name, deleted=True):
                    deleted[name] = frame.first_seq + at
    return Tail(
        cursor + 1, head, passed, np.concatenate(seqs), np.concatenate(fires), adopted, cancelled, deleted
    )
