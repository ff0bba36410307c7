"""Figures: the values of repeated measurements, and how they are said. Pure; knows nothing of what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lateness:
    """How late messages arrived after their due instants, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    early: int
    """How many came before their due instant."""

    @classmethod
    def of(cls, late_ms: NDArray[np.float64]) -> "Lateness":
        """The summary of single values."""
        p50, p99 = np.percentile(late_ms, [50, 99])
        return cls(len(late_ms), float(p50), float(p99), float(late_ms.max()), int((late_ms < 0).sum()))


@dataclass
class Figure:
    """One figure, measured once or several times."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The value in the middle."""
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return min(self.values), max(self.values)


class Figures:
    """Figures by who was measured and what."""

    def __init__(self, values: Mapping[str, Mapping[str, list[float]]] | None = None) -> None:
        self._figures = {
            (who, what): Figure(list(found))
            for who, measured in (values or {}).items()
            for what, found in measured.items()
        }
        self.skipped: dict[str, str] = {}
        """Peers that could not be measured, and why."""
        self.notes: dict[str, str] = {}
        """Facts about a peer, such as its version."""

    def add(self, who: str, what: str, value: float) -> None:
        """Take one more value."""
        self._figures.setdefault((who, what), Figure()).values.append(value)

    def add_lateness(self, who: str, what: str, late: Lateness) -> None:
        """Take a measurement of lateness."""
        self.add(who, f"{what} p50", late.p50_ms)
        self.add(who, f"{what} p99", late.p99_ms)
        self.add(who, f"{what} worst", late.worst_ms)
        self.add(who, f"{what} early", late.early)

    def get(self, who: str, what: str) -> Figure | None:
        """A figure, if it was measured."""
        return self._figures.get((who, what))

    def ratio(self, ours: tuple[str, str], theirs: tuple[str, str]) -> Figure | None:
        """One figure over another, turn by turn, for only what was measured side by side can be compared."""
        return turn_by_turn(self.get(*ours), self.get(*theirs))

    def take(self, other: "Figures") -> None:
        """Take the figures of another part, or of another turn, as well."""
        for (who, what), figure in other._figures.items():
            self._figures.setdefault((who, what), Figure()).values.extend(figure.values)
        self.skipped |= other.skipped
        self.notes |= other.notes

    def values(self) -> dict[str, dict[str, list[float]]]:
        """Every value by who and what, as the constructor takes them."""
        found: dict[str, dict[str, list[float]]] = {}
        for (who, what), figure in self._figures.items():
            found.setdefault(who, {})[what] = figure.values
        return found


def turn_by_turn(over: Figure | None, under: Figure | None) -> Figure | None:
    """One figure over another, value by value; nothing where one of them is missing or was nought."""
    if over is None or under is None or not all(under.values):
        return None
    return Figure([a / b for a, b in zip(over.values, under.values, strict=False)])


def short(value: float) -> str:
    """A value with three digits that count: 1.23 M, 45.6 k, 7.89."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == " k" else size)
            return f"{_three(scaled)}{unit}"
    return _three(value)


def _three(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def said(figure: Figure | None) -> str:
    """A figure as a table shows it: the median, and the spread if there were several values."""
    if figure is None:
        return "–"
    if len(figure.values) == 1:
        return short(figure.median)
    low, high = figure.spread
    if short(low) == short(high):
        return short(figure.median)
    return f"{short(figure.median)} ({short(low)} … {short(high)})"
