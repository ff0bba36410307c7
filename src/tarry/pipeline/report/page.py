"""The report as one HTML page: charts drawn here, nothing from elsewhere, light or dark as the reader likes it.

Everything that comes from messages is escaped, and the page's own policy lets it load and run nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from tarry.pipeline.report.report import Bar, LatenessFigures, Report

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #667085; --ground: #fff; --line: #d9dee7; --bar: #3867d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #98a2b3; --ground: #14171d; --line: #2e3440; --bar: #7aa2ff; }
}
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } p, caption { color: var(--dim); }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .axis { stroke: var(--line); }
"""

WIDTH: Final = 900
HEIGHT: Final = 190
FOOT: Final = 24
"""Room below the bars for their labels."""
LABELS: Final = 6
FORMS: Final = {"minute": "%H:%M", "hour": "%d %b %H:%M", "day": "%d %b"}


def page_of(report: Report) -> str:
    """The whole page."""
    summary = (
        f"As of {_instant(report.as_of_ms)}; {report.scheduled:,} messages wait, {report.entries:,} of them delayed"
        f" entries of topics, and {report.by_command:,} go out only by command."
    )
    parts = [
        f"<h1>Tarry: report</h1><p>{summary}</p>",
        *(
            f"<h2>Due by {unit}</h2>{chart(bars, FORMS[unit], f'Messages due by {unit}')}"
            for unit, bars in report.coming.items()
        ),
        "<h2>How messages ended</h2>",
        _table(("outcome", "messages"), sorted(report.outcomes.items())),
        "<h2>How late they were sent</h2>",
        _lateness(report.lateness),
        "<h2>Why they failed</h2>",
        _table(("reason", "messages"), [(one.reason, one.messages) for one in report.failures]),
        "<h2>Heaviest owners</h2>",
        _table(
            ("namespace", "owner", "scheduled", "sent", "failed"),
            [
                (one.namespace, one.owner or "(none)", one.scheduled, one.sent, one.failed)
                for one in report.owners
            ],
        ),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tarry: report</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def chart(bars: Sequence[Bar], form: str, title: str) -> str:
    """Bars over time as SVG. Each says what it is to whoever points at it or has it read out."""
    most = max((bar.messages for bar in bars), default=0)
    total = sum(bar.messages for bar in bars)
    step = WIDTH / max(len(bars), 1)
    drawn = []
    for at, bar in enumerate(bars):
        label = datetime.fromtimestamp(bar.at_ms / 1000, UTC).strftime(form)
        height = (HEIGHT - FOOT - 14) * bar.messages / most if most else 0
        if bar.messages:
            drawn.append(
                f'<rect class="bar" x="{at * step + 0.5:.1f}" y="{HEIGHT - FOOT - height:.1f}" width="{step - 1:.1f}"'
                f' height="{height:.1f}"><title>{escape(label)} UTC: {bar.messages:,}</title></rect>'
            )
        if at % max(len(bars) // LABELS, 1) == 0:
            drawn.append(f'<text x="{at * step:.1f}" y="{HEIGHT - 6}">{escape(label)}</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: {total:,} in all">'
        f'<text x="0" y="10">most: {most:,}; in all: {total:,}; times are UTC</text>{"".join(drawn)}'
        f'<line class="axis" x1="0" y1="{HEIGHT - FOOT}" x2="{WIDTH}" y2="{HEIGHT - FOOT}"/></svg>'
    )


def _lateness(rows: Sequence[LatenessFigures]) -> str:
    return _table(
        ("", "name", "messages", "p50 ms", "p99 ms", "p99.9 ms", "worst ms"),
        [
            (one.by or "all", one.name, one.messages, one.p50_ms, one.p99_ms, one.p999_ms, one.worst_ms)
            for one in rows
        ],
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    if not rows:
        return "<p>None.</p>"
    numeric = [isinstance(cell, int) for cell in rows[0]]
    head = "".join(_cell("th", text, is_number) for text, is_number in zip(heads, numeric, strict=True))
    lines = (
        "".join(_cell("td", cell, is_number) for cell, is_number in zip(row, numeric, strict=True))
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _cell(tag: str, value: str | int, is_number: bool) -> str:
    text = f"{value:,}" if isinstance(value, int) else value
    return f"<{tag}{' class=n' if is_number else ''}>{escape(text)}</{tag}>"


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
