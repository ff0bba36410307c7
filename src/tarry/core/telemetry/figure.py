"""A figure of `/metrics`, as a part of the server tells it to the door that shows it."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """A gauge or a counter, by the values of one label or without any."""

    name: str
    text: str
    values: Callable[[], Mapping[str, float]]
    """Values by the value of the label; a figure without a label has the empty one."""
    label: str | None = None
    counts: bool = False
    """Whether the figure only ever rises."""


class Histogram:
    """Counts of values by bounds; one thread observes, and any may read."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Rising; a value belongs to the first that it does not exceed."""
        self.counts = [0] * (len(bounds) + 1)
        """Values for each bound, and those beyond the last."""
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class HistogramFigure(Struct, frozen=True, kw_only=True):
    """A histogram without labels."""

    name: str
    text: str
    of: Callable[[], Histogram]


AnyFigure = Figure | HistogramFigure
