"""Messages as columns: what is asked for, what is answered, and the units of the ledger in between."""

from collections import Counter

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.admission import Errors
from tarry.core.holder import Holder
from tarry.core.timers.run import Due
from tarry.ledger.columns import Coded, Contents, Numbers
from tarry.ledger.frame import Unit


class Columns(Struct, frozen=True):
    """The rows of a batch, as one column for each field that they give."""

    destinations: Coded[str]
    due_at_ms: Numbers
    delay_ms: Numbers
    contents: Contents


class ColumnsScheduled(Struct, frozen=True):
    """The answer to a batch, row by row."""

    ids: NDArray[np.bytes_]
    """The id of each row, empty where it was not taken."""
    due_at_ms: NDArray[np.int64]
    errors: Errors
    """Row -> why it was not taken."""


class Plan(Struct, frozen=True):
    """Rows that break no rule: a unit of their records, and which rows of the request they are."""

    unit: Unit
    sizes: NDArray[np.int32]
    """Sizes of the bodies."""
    rows: NDArray[np.int64]
    fire_at_ms: NDArray[np.int64]
    due_at_ms: NDArray[np.int64]
    lanes: NDArray[np.uint16]
    holders: Counter[Holder]

    def due(self, first_seq: int) -> Due:
        """Its entries for the wheel, once it is written."""
        seqs = np.arange(first_seq, first_seq + len(self.rows), dtype=np.int64)
        return Due(self.fire_at_ms, seqs, self.lanes)
