"""The index as a Delta table, read with pyarrow and without a JVM.

A view is pinned to one version: its cursor, and its files with the range of their keys, as arrays. Files are chosen by
that range, so that slots of any size lie side by side. Each is in the order of its keys and read by Parquet row groups,
with page checksums verified (R3). The rows of an adopted batch are shifted as its record says (`tarry.index.schema`).
"""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from numpy.typing import NDArray

from tarry.core.errors import Damage, Unavailable
from tarry.core.timers.run import Due
from tarry.index.adopted import at_floor
from tarry.index.census import CensusFile, Counts, slots_of, tallies
from tarry.index.index import NOTHING, IndexMoved, LoadedRows, SlotFigures, StagedBatch
from tarry.index.row_groups import RowGroup, read_groups
from tarry.index.schema import DEL, KEY_COLUMNS
from tarry.index.table import CURSOR
from tarry.ledger.record import Key

BROKEN = (pa.ArrowException, OSError, ValueError, KeyError)
"""Errors that pyarrow raises where a file is not what it should be."""

MAX_KEPT_GROUPS = 10_000
"""Files whose row groups are kept for counting."""

BODY_COLUMNS = ("fire_at_ms", "seq", "op", "crc", "body")


class KeyColumns(NamedTuple):
    """Key columns of rows in the order of their keys."""

    fire_at_ms: NDArray[np.int64]
    seqs: NDArray[np.int64]
    op: NDArray[np.int32]
    lanes: NDArray[np.int32]


class DeltaView:
    """The index at one version."""

    def __init__(
        self, place: "TableFolder", version: int, identity: str, cursor: int, files: list[CensusFile]
    ) -> None:
        self.version = version
        self.identity = identity
        self.cursor = cursor
        self._place = place
        self._files = files

    @cached_property
    def _ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first and the last fire instant of each file."""
        files = self._files
        low = np.fromiter((max(file.low_ms, file.floor_ms) for file in files), np.int64, len(files))
        high = np.fromiter((max(file.high_ms, file.floor_ms) for file in files), np.int64, len(files))
        return low, high

    @property
    def files(self) -> int:
        """How many files it has."""
        return len(self._files)

    def with_batches(self, batches: Sequence[StagedBatch]) -> "DeltaView":
        """A view that has the staged files of batches as well (R10)."""
        staged = [file for batch in batches for file in _staged(batch)]
        if not staged:
            return self
        return DeltaView(self._place, self.version, self.identity, self.cursor, [*self._files, *staged])

    def may_hold(self, low: Key, high: Key) -> bool:
        """Whether there may be anything in a range."""
        return bool(self._overlapping(low.fire_at_ms, high.fire_at_ms))

    def load(self, low: Key, high: Key, limit: int) -> LoadedRows:
        """The versions with low <= key < high that are not known here to be dead."""
        upto = high
        parts: list[KeyColumns] = []
        for file in self._overlapping(low.fire_at_ms, high.fire_at_ms):
            rows, reached = self._first_rows(file, low, high, limit)
            parts.append(rows)
            upto = min(upto, reached)
        if not parts:
            return LoadedRows(NOTHING, high)
        fire, seqs, op, lanes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        # A del has the key of its put, so that both are below the key up to which all files were read, or neither.
        keep = (op != DEL) & _below(fire, seqs, upto)
        dead = seqs[op == DEL]
        if len(dead):
            keep &= ~np.isin(seqs, dead)
        fire, seqs, lanes = fire[keep], seqs[keep], lanes[keep]
        if len(parts) > 1:
            order = np.lexsort((seqs, fire))
            fire, seqs, lanes = fire[order], seqs[order], lanes[order]
        if len(seqs) > limit:
            upto = Key(int(fire[limit]), int(seqs[limit]))
            fire, seqs, lanes = fire[:limit], seqs[:limit], lanes[:limit]
        return LoadedRows(Due(fire, seqs, lanes.astype(np.uint16)), upto)

    def bodies(self, keys: Sequence[Key], max_bytes: int) -> list[bytes | Damage | None]:
        """The bodies of the first of these versions, as many as fit."""
        found: dict[int, bytes | Damage] = {}
        dead: set[int] = set()
        room = max_bytes
        taken = 0
        # By stretches of due time, so that what does not fit any more is not read.
        for stretch in _stretches(keys):
            wanted = np.sort(np.array([key.seq for key in stretch], np.int64))
            low_ms = min(key.fire_at_ms for key in stretch)
            high_ms = max(key.fire_at_ms for key in stretch)
            for file in self._overlapping(low_ms, high_ms):
                self._read_bodies(file, low_ms, high_ms, wanted, found, dead)
            taken += len(stretch)
            room -= sum(len(body) for key in stretch if isinstance(body := found.get(key.seq), bytes))
            if room <= 0:
                break
        return [None if key.seq in dead else found.get(key.seq) for key in keys[:taken]]

    # How much there is

    def tallies(
        self, from_ms: int, edges: NDArray[np.int64], cancelled: Sequence[tuple[int, int]]
    ) -> Iterator[Counts]:
        """How many versions wait from an instant on between each two edges, by door; file by file."""
        files = [
            file
            for file in self._overlapping(max(from_ms, int(edges[0])), int(edges[-1]) - 1)
            if not any(first <= file.base <= last for first, last in cancelled)
        ]
        return tallies(files, self._place.groups_of, from_ms, edges)

    def slots(self) -> list[SlotFigures]:
        """Its slots, and how full they are."""
        return slots_of(self._files)

    def last_fire_at_ms(self) -> int:
        """The last instant that it has, or 0."""
        return int(self._ranges[1].max()) if self._files else 0

    # Files

    def _overlapping(self, low_ms: int, high_ms: int) -> list[CensusFile]:
        """The files that hold fire instants in [low, high]."""
        low, high = self._ranges
        return [self._files[at] for at in np.flatnonzero((low <= high_ms) & (high >= low_ms)).tolist()]

    def _first_rows(self, file: CensusFile, low: Key, high: Key, limit: int) -> tuple[KeyColumns, Key]:
        """The first rows of a file in a range, in whole row groups, and the key below which these are all."""
        parts: list[KeyColumns] = []
        count = 0
        reached = high
        with self._place.open(file) as parquet:
            chosen = self._place.groups(parquet, file, low.fire_at_ms, high.fire_at_ms)
            for number, group in chosen:
                table = self._place.read(parquet, file, number, group, KEY_COLUMNS)
                rows = _inside(_rows(table, file), low, high)
                parts.append(rows)
                count += len(rows.seqs)
                if count > limit and number != chosen[-1][0]:
                    reached = Key(int(rows.fire_at_ms[-1]), int(rows.seqs[-1]))
                    # Not if all that was read has one key: it must go forward.
                    if reached > low:
                        break
                    reached = high
        if not parts:
            return KeyColumns(*(np.empty(0, np.int64),) * 4), reached  # type: ignore[arg-type]
        return KeyColumns(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), reached

    def _read_bodies(
        self,
        file: CensusFile,
        low_ms: int,
        high_ms: int,
        wanted: NDArray[np.int64],
        found: dict[int, bytes | Damage],
        dead: set[int],
    ) -> None:
        try:
            with self._place.open(file) as parquet:
                for number, group in self._place.groups(parquet, file, low_ms, high_ms):
                    table = self._place.read(parquet, file, number, group, ("seq",))
                    if np.isin(table.column("seq").to_numpy() + file.base, wanted).any():
                        table = self._place.read(parquet, file, number, group, BODY_COLUMNS)
                        self._take_bodies(table, file, wanted, found, dead)
        except Damage as damage:
            for seq in wanted.tolist():
                found.setdefault(seq, damage)

    def _take_bodies(
        self,
        table: pa.Table,
        file: CensusFile,
        wanted: NDArray[np.int64],
        found: dict[int, bytes | Damage],
        dead: set[int],
    ) -> None:
        chosen = table.take(
            pa.array(np.flatnonzero(np.isin(table.column("seq").to_numpy() + file.base, wanted)))
        )
        for fire, seq, op, crc, body in zip(
            *(chosen.column(name).to_pylist() for name in BODY_COLUMNS), strict=True
        ):
            seq += file.base
            if op == DEL:
                dead.add(seq)
            elif google_crc32c.value(body) != crc:
                found[seq] = Damage(
                    self._place.name_of(file), 0, f"the checksum of the body of seq {seq} does not match"
                )
            else:
                found[seq] = body if fire >= file.floor_ms else at_floor(body, file.floor_ms).body


class TableFolder:
    """Where the table's files are."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._groups: dict[str, list[RowGroup]] = {}
        """By file: the row groups of those that were counted. A file never changes."""
        if "://" in uri:
            self._filesystem, self._root = pyarrow.fs.FileSystem.from_uri(uri)
        else:
            self._filesystem, self._root = pyarrow.fs.LocalFileSystem(), uri

    def name_of(self, file: CensusFile) -> str:
        """The whole path of a file."""
        return f"{self._root.rstrip('/')}/{file.path}"

    def open(self, file: CensusFile) -> pq.ParquetFile:
        """Open a file; raises `IndexMoved` if it is gone, `Damage` if its bytes are damaged."""
        path = self.name_of(file)
        try:
            return pq.ParquetFile(path, filesystem=self._filesystem, page_checksum_verification=True)
        except FileNotFoundError as error:
            raise IndexMoved(path) from error
        except BROKEN as error:
            raise _trouble(path, error) from error

    def groups_of(self, file: CensusFile) -> list[RowGroup]:
        """All row groups of a file. They are kept, for counting again soon; raises as `open` does."""
        found = self._groups.get(file.path)
        if found is None:
            with self.open(file) as parquet:
                found = read_groups(parquet, self.name_of(file))
            if len(self._groups) >= MAX_KEPT_GROUPS:
                self._groups.clear()
            self._groups[file.path] = found
        return found

    def groups(
        self, parquet: pq.ParquetFile, file: CensusFile, low_ms: int, high_ms: int
    ) -> list[tuple[int, RowGroup]]:
        """The row groups whose fire instants touch a range, in order."""
        return [
            (number, group)
            for number, group in enumerate(read_groups(parquet, self.name_of(file)))
            if max(group.low, file.floor_ms) <= high_ms and max(group.high, file.floor_ms) >= low_ms
        ]

    def read(
        self, parquet: pq.ParquetFile, file: CensusFile, number: int, group: RowGroup, columns: Sequence[str]
    ) -> pa.Table:
        """Some columns of one row group."""
        try:
            table = parquet.read_row_group(number, columns=list(columns), use_threads=False)
        except BROKEN as error:
            raise _trouble(self.name_of(file), error) from error
        if table.num_rows != group.rows or table.num_columns != len(columns):
            raise Damage(self.name_of(file), 0, f"row group {number} is not what was written")
        return table


class DeltaIndex:
    """Follows the versions of the table, and gives views of each."""

    def __init__(self, uri: str, ledger_id: bytes, options: dict[str, str] | None = None) -> None:
        self._place = TableFolder(uri)
        self._ledger_id = ledger_id
        self._options = options
        self._table: DeltaTable | None = None
        self._view = DeltaView(self._place, -1, "", 0, [])

    def newest(self) -> DeltaView:
        """A view of the newest version; an empty one while there is no table. Raises `Unavailable`."""
        try:
            if self._table is None:
                self._table = self._open()
            else:
                self._table.update_incremental()
            if self._table is not None and self._view.version != self._table.version():
                self._view = _view_of(self._place, self._table)
            return self._view
        except (DeltaError, OSError) as error:
            raise Unavailable(f"{self._place.uri}: the index cannot be read: {error}") from error

    def staged(self, batches: Sequence[StagedBatch]) -> DeltaView:
        """A view of the staged files of batches alone."""
        return DeltaView(self._place, -1, "", 0, []).with_batches(batches)

    def _open(self) -> DeltaTable | None:
        uri = self._place.uri
        if "://" not in uri and not os.path.isdir(os.path.join(uri, "_delta_log")):
            return None
        try:
            table = DeltaTable(uri, storage_options=self._options)
        except TableNotFoundError:
            return None
        if self._ledger_id.hex() not in (table.metadata().description or ""):
            raise Unavailable(f"{uri}: the index belongs to another ledger; were two backups mixed?")
        return table


def _view_of(place: TableFolder, table: DeltaTable) -> DeltaView:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = (
        "path", "min.fire_at_ms", "max.fire_at_ms", "partition.base", "partition.floor_ms",
        "num_records", "null_count.body", "size_bytes", "partition.slot",
    )  # fmt: skip
    files: list[CensusFile] = []
    if actions.num_rows:
        files = [
            CensusFile(*row)
            for row in zip(*(actions.column(name).to_pylist() for name in names), strict=True)
        ]
    cursor = table.transaction_version(CURSOR) or 0
    return DeltaView(place, table.version(), str(table.metadata().id), cursor, files)


def _staged(batch: StagedBatch) -> Iterator[CensusFile]:
    """The files of a batch, each with the number of its first row."""
    base = batch.first_seq
    for file in batch.files:
        yield CensusFile(
            file.path,
            file.low_ms,
            file.high_ms,
            base,
            batch.floor_ms,
            file.rows,
            0,
            file.size_bytes,
            file.slot,
        )
        base += file.rows


def _rows(table: pa.Table, file: CensusFile) -> KeyColumns:
    fire, seqs, op, lanes = (table.column(name).to_numpy() for name in KEY_COLUMNS)
    if file.floor_ms:
        fire = np.maximum(fire, file.floor_ms)
    return KeyColumns(fire, seqs + file.base if file.base else seqs, op, lanes)


def _inside(rows: KeyColumns, low: Key, high: Key) -> KeyColumns:
    """The rows in a range: one stretch, for they are in the order of their keys."""
    chosen = slice(_rank(rows, low), _rank(rows, high))
    fire, seqs, op, lanes = rows
    return KeyColumns(fire[chosen], seqs[chosen], op[chosen], lanes[chosen])


def _rank(rows: KeyColumns, key: Key) -> int:
    """The position of the first row whose key is not below this one."""
    low = int(np.searchsorted(rows.fire_at_ms, key.fire_at_ms))
    high = int(np.searchsorted(rows.fire_at_ms, key.fire_at_ms, "right"))
    return low + int(np.searchsorted(rows.seqs[low:high], key.seq))


def _below(fire: NDArray[np.int64], seqs: NDArray[np.int64], key: Key) -> NDArray[np.bool_]:
    below: NDArray[np.bool_] = (fire < key.fire_at_ms) | ((fire == key.fire_at_ms) & (seqs < key.seq))
    return below


def _stretches(keys: Sequence[Key], size: int = 4096) -> Iterator[Sequence[Key]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def _trouble(path: str, error: Exception) -> Exception:
    """The error that an error while reading means: damage of the file, or a disk that does not answer now."""
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return Unavailable(f"{path}: cannot be read: {text}")
    return Damage(path, 0, text)
