"""How much waits in the index, and when, without reading a row.

The log says of each file which instants it spans, how many rows it has and how many of these are dels; the table of its row
groups says the same of each group, by door. Within a group versions are taken to be spread evenly, and dels to be
spread like them: between the instants of two groups a count is an estimate, beyond them it is exact.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage, Unavailable
from tarry.core.timers.slots import parse_slot
from tarry.index.index import IndexMoved, SlotFigures
from tarry.index.row_groups import RowGroup
from tarry.ledger.lanes import DOORS

Counts = NDArray[np.float64]
"""By stretch of due time, and by door."""


class CensusFile(NamedTuple):
    """A file of the index, and the columns that are added to its rows."""

    path: str
    low_ms: int
    high_ms: int
    base: int
    floor_ms: int
    rows: int = 0
    dels: int = 0
    size_bytes: int = 0
    slot: str = ""


def tallies(
    files: Sequence[CensusFile],
    groups: Callable[[CensusFile], Sequence[RowGroup]],
    from_ms: int,
    edges: NDArray[np.int64],
) -> Iterator[Counts]:
    """File by file, how many versions wait from an instant on between each two edges, by door."""
    for file in files:
        try:
            parts = groups(file)
        except (IndexMoved, Damage, Unavailable):
            # Whoever delivers from it will say what is wrong; for a count the log is enough.
            parts = [_whole(file)]
        yield sum((_spread(part, file.floor_ms, from_ms, edges) for part in parts), np.zeros(_shape(edges)))


def slots_of(files: Sequence[CensusFile]) -> list[SlotFigures]:
    """The slots that files are in, by size and start."""
    slots: dict[tuple[int, int], NDArray[np.int64]] = {}
    for file in files:
        found = slots.setdefault(parse_slot(file.slot), np.zeros(4, np.int64))
        found += (1, file.rows - file.dels, file.dels, file.size_bytes)
    return [SlotFigures(*slot, *figures.tolist()) for slot, figures in sorted(slots.items(), reverse=True)]


def _shape(edges: NDArray[np.int64]) -> tuple[int, int]:
    return len(edges) - 1, len(DOORS)


def _whole(file: CensusFile) -> RowGroup:
    return RowGroup(file.rows, file.low_ms, file.high_ms, (file.rows - file.dels, *(0,) * (len(DOORS) - 1)))


def _spread(group: RowGroup, floor_ms: int, from_ms: int, edges: NDArray[np.int64]) -> Counts:
    waiting = np.zeros(len(DOORS))
    waiting[: len(group.doors)] = group.doors
    puts = float(waiting.sum())
    if not puts:
        return np.zeros(_shape(edges))
    waiting *= max(0.0, puts - (group.rows - puts)) / puts
    low, high = max(group.low, floor_ms), max(group.high, floor_ms)
    reached = np.clip((np.maximum(edges, from_ms) - low) / (high - low + 1), 0.0, 1.0)
    return np.outer(np.diff(reached), waiting)
