"""Sorted files read together in the order of their keys, and written anew, in memory that does not follow their size.

Each file is read by row groups. Of what is held, everything up to the lowest last key can be given away: no file has anything
below it any more.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tarry.index.files import ROW_GROUP_BYTES, ROW_GROUP_ROWS, FileWriter, Folder, runs
from tarry.index.schema import Layout
from tarry.index.table import IndexFile


def merged(sources: Iterable[Iterator[pa.Table]], first: str, second: str = "seq") -> Iterator[pa.Table]:
    """The rows of sorted sources in pieces, such that the keys of a piece are all above those of the piece before.

    Within a piece rows are not in order: whoever gives them their slots sorts them anyway.
    """
    held: dict[int, tuple[pa.Table, Iterator[pa.Table]]] = {}
    for number, source in enumerate(sources):
        _refill(held, number, source)
    while held:
        pivot = min(_key(table, -1, first, second) for table, _ in held.values())
        piece = []
        for number, (table, source) in list(held.items()):
            cut = _rank_after(table, pivot, first, second)
            if cut:
                piece.append(table.slice(0, cut))
            if cut == table.num_rows:
                del held[number]
                _refill(held, number, source)
            elif cut:
                held[number] = table.slice(cut), source
        yield pa.concat_tables(piece, promote_options="permissive")


def _refill(
    held: dict[int, tuple[pa.Table, Iterator[pa.Table]]], number: int, source: Iterator[pa.Table]
) -> None:
    for table in source:
        if table.num_rows:
            held[number] = table, source
            return


def _key(table: pa.Table, row: int, first: str, second: str) -> tuple[int, int]:
    return table.column(first)[row].as_py(), table.column(second)[row].as_py()


def _rank_after(table: pa.Table, key: tuple[int, int], first: str, second: str) -> int:
    """How many rows have a key that is not above this one."""
    values = table.column(first).to_numpy()
    low, high = (int(np.searchsorted(values, key[0], side)) for side in ("left", "right"))
    return low + int(np.searchsorted(table.column(second).to_numpy()[low:high], key[1], "right"))


class PartitionWriter:
    """Writes rows that come in pieces, in the order of their keys, into files of one partition each.

    For each size of slot one file is open: keys only rise, so that a slot that is left is never entered again.
    """

    def __init__(self, uri: str, layout: Layout, name: str) -> None:
        self._folder = Folder(uri)
        self._layout = layout
        self._name = name
        self._open: dict[str, tuple[str, FileWriter]] = {}
        """By size of slot: the partition, and its file."""
        self._held: dict[str, list[pa.Table]] = {}
        """By partition: rows that do not make a row group yet."""
        self._files: list[IndexFile] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows with their partition, sorted by it and by key, all above those before."""
        column = self._layout.partition
        for value, start, stop in runs(rows.column(column)):
            size = value.partition("_")[0]
            if size in self._open and self._open[size][0] != value:
                self._close(size)
            if size not in self._open:
                self._open[size] = value, FileWriter(self._folder, self._layout, value, self._name)
                self._held[value] = []
            self._held[value].append(rows.slice(start, stop - start).drop_columns([column]))
            held = self._held[value]
            if (
                sum(part.num_rows for part in held) >= ROW_GROUP_ROWS
                or sum(part.nbytes for part in held) >= ROW_GROUP_BYTES
            ):
                self._flush(size)

    def close(self) -> list[IndexFile]:
        """Finish and sync; gives the files."""
        for size in list(self._open):
            self._close(size)
        if self._files:
            self._folder.sync(self._folder.root)
        return self._files

    def _flush(self, size: str) -> None:
        value, writer = self._open[size]
        if not self._held[value]:
            return
        if writer.is_full:
            self._files.append(writer.close())
            writer = FileWriter(self._folder, self._layout, value, self._name)
            self._open[size] = value, writer
        writer.write(pa.concat_tables(self._held[value], promote_options="permissive"))
        self._held[value] = []

    def _close(self, size: str) -> None:
        self._flush(size)
        value, writer = self._open.pop(size)
        del self._held[value]
        self._files.append(writer.close())
