"""Messages as columns: requests, answers, and the units of the ledger in between."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.messages.message import Message
from tarry.core.rules.admission import Errors
from tarry.engine.records.changes import Written
from tarry.ledger.columns import Coded, Contents, Numbers


class Columns(Struct, frozen=True):
    """The rows of a batch, as one column for each field that they give."""

    destinations: Coded[str]
    due_at_ms: Numbers
    delay_ms: Numbers
    contents: Contents
    requests: Sequence[Message] = ()
    """The rows as messages, where each has an idempotency key; none of these was seen before."""


class ColumnsScheduled(Struct, frozen=True):
    """The answer to a batch, row by row."""

    ids: NDArray[np.bytes_]
    """The id of each row, empty where it was not taken."""
    due_at_ms: NDArray[np.int64]
    errors: Errors
    """Row -> why it was not taken."""


class Plan(Struct, frozen=True):
    """Rows that break no rule: a unit of their records, and which rows of the request they are."""

    written: Written
    rows: NDArray[np.int64]
    fire_at_ms: NDArray[np.int64]
    due_at_ms: NDArray[np.int64]
