"""The index as the server reads it: a Delta table, read with pyarrow, without a JVM.

A view is pinned to one version: its cursor, and the files with the range of their due times as arrays. Files are chosen by
that range, so that slots of any size can lie side by side. Rows are read by Parquet row groups, with page checksums
verified (R3). A file that is gone means that a newer version replaced it: the caller pins that one and reads again (R8).

Everything here may be called from a worker thread; a view does not change.
"""

import os
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from numpy.typing import NDArray

from tarry.core.errors import Damage, Unavailable
from tarry.core.wheel import Due
from tarry.index.schema import DEL, KEY_COLUMNS
from tarry.index.table import CURSOR
from tarry.ledger.record import Key


class IndexMoved(Exception):
    """A file of this version is gone: a newer version has replaced it."""


class IndexView:
    """The index at one version."""

    def __init__(self, table: DeltaTable) -> None:
        self.version = table.version()
        self._root = table.table_uri.removeprefix("file://")
        self._cursor = table.transaction_version(CURSOR) or 0
        actions = pa.table(table.get_add_actions(flatten=True))
        self._paths: list[str] = actions.column("path").to_pylist()
        self._low = actions.column("min.fire_at_ms").to_numpy().astype(np.int64)
        self._high = actions.column("max.fire_at_ms").to_numpy().astype(np.int64)
        self.rows = int(np.sum(actions.column("num_records").to_numpy())) if self._paths else 0

    def cursor(self) -> int:
        """The seq up to which it is complete."""
        return self._cursor

    def files(self) -> int:
        """How many files it has."""
        return len(self._paths)

    def keys(self, low: Key, high: Key) -> Due:
        """Every version with low <= key < high that is not known here to be dead, in order."""
        parts = [
            self._key_rows(path, low, high) for path in self._overlapping(low.fire_at_ms, high.fire_at_ms)
        ]
        if not parts:
            return Due(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint16))
        fire, seq, op, lane = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        dead = seq[op == DEL]
        keep = (op != DEL) & ~np.isin(seq, dead)
        order = np.lexsort((seq[keep], fire[keep]))
        return Due(fire[keep][order], seq[keep][order], lane[keep][order].astype(np.uint16))

    def count(self, low: Key, high: Key) -> int:
        """About how many rows lie in a range: the bound that a budget is checked against."""
        return sum(
            len(self._key_rows(path, low, high)[1])
            for path in self._overlapping(low.fire_at_ms, high.fire_at_ms)
        )

    def bodies(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The bodies of versions, checked (R3); None where the index does not hold one."""
        found: dict[int, bytes] = {}
        wanted = sorted(keys)
        for path in self._overlapping(wanted[0].fire_at_ms, wanted[-1].fire_at_ms + 1) if wanted else ():
            missing = [key for key in wanted if key.seq not in found]
            if not missing:
                break
            found.update(self._bodies_in(path, missing))
        return [found.get(key.seq) for key in keys]

    def _overlapping(self, low_ms: int, high_ms: int) -> list[str]:
        """The files that hold due times in [low, high], which may be in the last millisecond too."""
        chosen = np.flatnonzero((self._low <= high_ms) & (self._high >= low_ms))
        return [self._paths[at] for at in chosen.tolist()]

    def _open(self, path: str) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(os.path.join(self._root, path), page_checksum_verification=True)
        except FileNotFoundError as error:
            raise IndexMoved(path) from error
        except (pa.ArrowInvalid, OSError) as error:
            raise Damage(os.path.join(self._root, path), 0, str(error)) from error

    def _groups(self, file: pq.ParquetFile, low_ms: int, high_ms: int) -> list[int]:
        """The row groups of a file whose due times touch a range."""
        metadata = file.metadata
        at = metadata.schema.to_arrow_schema().get_field_index("fire_at_ms")
        chosen = []
        for number in range(metadata.num_row_groups):
            statistics = metadata.row_group(number).column(at).statistics
            if statistics is None or (statistics.min <= high_ms and statistics.max >= low_ms):
                chosen.append(number)
        return chosen

    def _read(self, path: str, low_ms: int, high_ms: int, columns: Sequence[str]) -> Any:
        with self._open(path) as file:
            try:
                return file.read_row_groups(self._groups(file, low_ms, high_ms), columns=list(columns))
            except (pa.ArrowInvalid, OSError) as error:
                raise Damage(os.path.join(self._root, path), 0, str(error)) from error

    def _key_rows(self, path: str, low: Key, high: Key) -> tuple[NDArray[Any], ...]:
        table = self._read(path, low.fire_at_ms, high.fire_at_ms, KEY_COLUMNS)
        fire, seq, op, lane = (table.column(name).to_numpy() for name in KEY_COLUMNS)
        # Sorted by key: the range is one stretch.
        inside = slice(_rank(fire, seq, low), _rank(fire, seq, high))
        return fire[inside], seq[inside], op[inside], lane[inside]

    def _bodies_in(self, path: str, keys: list[Key]) -> dict[int, bytes]:
        table = self._read(path, keys[0].fire_at_ms, keys[-1].fire_at_ms, ("seq", "op", "crc", "body"))
        seqs = table.column("seq").to_numpy()
        rows = np.flatnonzero(
            np.isin(seqs, [key.seq for key in keys]) & (table.column("op").to_numpy() != DEL)
        )
        found: dict[int, bytes] = {}
        chosen = table.take(pa.array(rows))
        for seq, crc, body in zip(
            *(chosen.column(name).to_pylist() for name in ("seq", "crc", "body")), strict=True
        ):
            if google_crc32c.value(body) != crc:
                raise Damage(
                    os.path.join(self._root, path), 0, f"the checksum of the body of seq {seq} does not match"
                )
            found[seq] = body
        return found


class DeltaIndex:
    """Follows the table's versions and gives views of them."""

    def __init__(self, uri: str, ledger_id: bytes, options: dict[str, str] | None = None) -> None:
        self._uri = uri
        self._ledger_id = ledger_id
        self._options = options
        self._table: DeltaTable | None = None

    def newest(self) -> IndexView | None:
        """A view of the newest version; None while there is no table. Raises `Unavailable` if it cannot be read."""
        try:
            if self._table is None:
                if "://" not in self._uri and not os.path.isdir(os.path.join(self._uri, "_delta_log")):
                    return None
                table = DeltaTable(self._uri, storage_options=self._options)
                if self._ledger_id.hex() not in (table.metadata().description or ""):
                    raise Unavailable(
                        f"{self._uri}: the index belongs to another ledger; were two backups mixed?"
                    )
                self._table = table
            else:
                self._table.update_incremental()
            return IndexView(self._table)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise Unavailable(f"{self._uri}: the index cannot be read: {error}") from error


def _rank(fire: NDArray[Any], seq: NDArray[Any], key: Key) -> int:
    """The position of the first row whose key is not below this one."""
    low = int(np.searchsorted(fire, key.fire_at_ms))
    high = int(np.searchsorted(fire, key.fire_at_ms, "right"))
    return low + int(np.searchsorted(seq[low:high], key.seq))
