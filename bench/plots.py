"""Plots: bars with the spread of their values, drawn as SVG by hand, so that they are small and a diff shows what changed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from bench.aims import AIMS
from bench.figures import Figure, Figures, short
from bench.peers.entrants import ENTRANTS
from bench.results import Result
from bench.run import TARRY

PLOT_PX, VALUE_PX, ROW_PX, LETTER_PX = 430, 80, 22, 6.6
TOP_PX, BOTTOM_PX = 44, 30
OURS, THEIRS, LOST, INK, FAINT = "#0b6e99", "#9aa5ab", "#b3541e", "#1c2226", "#d5dbde"
SYNAPSE: Final = "Synapse"
PULSAR: Final = "Pulsar"


@dataclass(frozen=True)
class Bar:
    """One bar: a label, the middle value, the spread, and its colour."""

    label: str
    middle: float
    low: float
    high: float
    colour: str

    @classmethod
    def of(cls, label: str, figure: Figure, colour: str) -> "Bar":
        """From a figure."""
        return cls(label, figure.median, *figure.spread, colour)


def bars(title: str, shown: Sequence[Bar], line: float | None = None) -> str:
    """A picture of bars on a logarithmic scale, with an optional line at a value."""
    positive = [
        value for bar in shown for value in (bar.low, bar.high, bar.middle, line or bar.middle) if value > 0
    ]
    first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    last = max(last, first + 1)

    begin = round(LETTER_PX * max(len(bar.label) for bar in shown)) + 20

    def x(value: float) -> float:
        share = (math.log10(max(value, 10.0**first)) - first) / (last - first)
        return begin + PLOT_PX * min(1.0, share)

    width, foot = begin + PLOT_PX + VALUE_PX, TOP_PX + ROW_PX * len(shown)
    height = foot + BOTTOM_PX
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
    parts = [
        f'<svg {box} font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(first, last + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {TOP_PX - 6}V{foot}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{at:.1f}" y="{foot + 16}" text-anchor="middle">{short(10.0**power)}</text>')
    for number, bar in enumerate(shown):
        parts += _bar(bar, TOP_PX + number * ROW_PX, x)
    if line is not None:
        parts.append(f'<path d="M{x(line):.1f} {TOP_PX - 6}V{foot}" stroke="{LOST}" stroke-width="1.5"/>')
    parts.append(f'<text x="10" y="{foot + 16}" fill="#5c676d">logarithmic</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, y: float, x: Callable[[float], float]) -> list[str]:
    middle, begin, end = y + ROW_PX / 2, x(0), x(bar.middle)
    return [
        f'<text x="{begin - 8:.1f}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{begin:.1f}" y="{y + 4}" width="{max(1.0, end - begin):.1f}" height="{ROW_PX - 8}" fill="{bar.colour}"/>',
        f'<path d="M{x(bar.low):.1f} {middle}H{x(bar.high):.1f}" stroke="{INK}" stroke-width="1.5"/>',
        f'<text x="{max(end, x(bar.high)) + 6:.1f}" y="{middle + 4}">{short(bar.middle)}</text>',
    ]


def draw(results: Sequence[Result]) -> dict[str, str]:
    """Every plot for which there are figures, by the name of its file."""
    figures = Figures()
    for result in results:
        figures.take(result.figures)
    bursts = next((result.plan.bursts for result in results if result.part == "lateness"), (10_000,))
    pulsar_bursts = next(
        (result.plan.pulsar_bursts for result in results if result.part == "pulsar"), (10_000,)
    )
    peers = [entrant.name for entrant in ENTRANTS]
    due, pulsar_due = bursts[0], f"pulsar burst {pulsar_bursts[0]}"
    matrix = [f"{action} {clients}" for action in ("schedule", "restart", "cancel") for clients in (1, 16)]
    wanted: dict[str, tuple[str, list[Bar], float | None]] = {
        "aims.svg": ("How many times better than its aim (left of the line: missed)", _aims(figures), 1.0),
        "schedule-single.svg": (
            "Schedules a second, one a request, 64 connections",
            _beside(figures, {TARRY: "single"}, peers, "single"),
            None,
        ),
        "schedule-batched.svg": (
            "Messages scheduled a second, many at once",
            _beside(figures, {"Tarry, NDJSON": "ndjson", "Tarry, Arrow": "arrow"}, peers, "batched"),
            None,
        ),
        "lateness.svg": (
            f"{due:,} due at one instant: p99 in milliseconds late (shorter is better)",
            _beside(figures, {TARRY: f"burst {due} p99"}, peers, f"burst {due} p99"),
            None,
        ),
        "matrix.svg": (
            "Matrix: requests a second",
            [
                bar
                for what in matrix
                for bar in _pair(figures, SYNAPSE, what, f"matrix {what}", f"matrix {what}")
            ],
            None,
        ),
        "pulsar-rates.svg": (
            "Pulsar: messages a second",
            [
                bar
                for what in ("replay", "client", "consume")
                for bar in _pair(figures, PULSAR, what, f"pulsar {what}", f"pulsar {what}")
            ],
            None,
        ),
        "pulsar-lateness.svg": (
            f"Pulsar's client, {pulsar_bursts[0]:,} due at one instant: p99 in milliseconds late",
            _beside(figures, {TARRY: f"{pulsar_due} p99"}, [], "")
            + [
                Bar.of(f"{PULSAR}, tick {tick_ms:,} ms", figure, THEIRS)
                for tick_ms in (1, 1_000)
                if (figure := figures.get(PULSAR, f"{pulsar_due} tick {tick_ms} p99")) is not None
            ],
            None,
        ),
    }
    return {name: bars(title, shown, line) for name, (title, shown, line) in wanted.items() if len(shown) > 1}


def _aims(figures: Figures) -> list[Bar]:
    found = [
        (aim.text, share)
        for aims in AIMS.values()
        for aim in aims
        if (share := aim.share(figures)) is not None
    ]
    return [Bar(text, share, share, share, OURS if share >= 1 else LOST) for text, share in found]


def _beside(figures: Figures, ours: dict[str, str], peers: Sequence[str], theirs: str) -> list[Bar]:
    """Tarry's figures, then the peers'."""
    found = [(label, figures.get(TARRY, what), OURS) for label, what in ours.items()]
    found += [(peer, figures.get(peer, theirs), THEIRS) for peer in peers]
    return [Bar.of(label, figure, colour) for label, figure, colour in found if figure is not None]


def _pair(figures: Figures, peer: str, label: str, ours: str, theirs: str) -> list[Bar]:
    """Tarry's figure, and below it the peer's."""
    found = [(f"{label}, {TARRY}", figures.get(TARRY, ours), OURS)]
    found.append((f"{label}, {peer}", figures.get(peer, theirs), THEIRS))
    return [Bar.of(name, figure, colour) for name, figure, colour in found if figure is not None]
