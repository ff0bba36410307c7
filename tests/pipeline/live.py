"""Living versions, computed from the files of one version of the index, with key and checksum.

For tests, which compare whole indexes; the server reads ranges (`tarry.index.delta`).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tarry.index.adopted import with_keys
from tarry.index.files import Folder
from tarry.index.schema import DEL
from tarry.index.state import CommitState
from tarry.index.table import IndexFile

COLUMNS = ("fire_at_ms", "seq", "op", "crc")


class Live(NamedTuple):
    """Versions in the order of their seqs."""

    seqs: NDArray[np.int64]
    fire_at_ms: NDArray[np.int64]
    crcs: NDArray[np.int64]


def live_versions(folder: Folder, files: Iterable[IndexFile], state: CommitState) -> Live:
    """The versions that neither a del, nor the watermark, nor the end of their batch has ended."""
    rows = [np.empty((4, 0), np.int64)]
    for file in files:
        # The floor changes bodies, and with them checksums: such files have to be read whole.
        columns = None if file.floor_ms > file.low else COLUMNS
        for table in folder.read(file.path, columns):
            table = with_keys(table, file)
            rows.append(np.stack([_integers(table, name) for name in COLUMNS]))
    fire, seq, op, crc = np.concatenate(rows, axis=1)
    lives = (op != DEL) & ~np.isin(seq, seq[op == DEL]) & ~state.is_cancelled(seq)
    lives &= ~state.passed.passed(fire, seq)
    order = np.argsort(seq[lives], kind="stable")
    return Live(seq[lives][order], fire[lives][order], crc[lives][order])


def _integers(table: pa.Table, name: str) -> NDArray[np.int64]:
    """A column as integers; a del has no checksum."""
    numbers: NDArray[np.int64] = table.column(name).cast(pa.int64()).fill_null(0).to_numpy()
    return numbers
