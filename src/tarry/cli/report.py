"""`report`: what is coming, how late deliveries were, what failed, who has most of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tarry.cli import show
from tarry.cli.audit import _Place, run_job
from tarry.cli.options import ConfigFile, JsonOption, duration_ms
from tarry.cli.server import Data

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="AGE", help="Count only ends of this last time, like 1h or 7d."),
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write one HTML page with charts.")]

SHOWN_BARS = 12
"""Rows of each table of what is coming: the next ones in which anything is due."""


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(report)


def report(
    path: _Place = None,
    since: Since = None,
    html: Html = None,
    json: JsonOption = False,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Report upcoming messages, lateness, failures and the heaviest owners; with Spark."""
    since_ms = 0 if since is None else show.now_ms() - duration_ms(since, "--since")

    def job(spark: Any, options: dict[str, str], step: Callable[[str], None]) -> Any:
        from tarry.pipeline.report.report import report as made

        return made(spark, options, since_ms, step)

    found = run_job(job, "tarry-report", path, data, config)
    if html is not None:
        from tarry.pipeline.report.page import page_of

        Path(html).write_text(page_of(found), encoding="utf-8")
    if json:
        show.as_json(found)
    elif html is None:
        _print(found)
    else:
        show.err.print(f"written: {html}", markup=False)


def _print(found: Any) -> None:
    show.facts(
        [
            ("as of", show.instant(found.as_of_ms)),
            ("scheduled", f"{found.scheduled:,}"),
            ("delayed entries", f"{found.entries:,}"),
            ("only by command", f"{found.by_command:,}"),
            *((outcome, f"{count:,}") for outcome, count in sorted(found.outcomes.items())),
        ]
    )
    for unit, bars in found.coming.items():
        due = [(show.brief_instant(bar.at_ms), f"{bar.messages:,}") for bar in bars if bar.messages]
        _titled(f"Due by {unit}", (unit, "messages"), due[:SHOWN_BARS])
    _titled(
        "How late they were sent, in ms",
        ("by", "name", "messages", "p50", "p99", "p99.9", "worst"),
        [
            (
                one.by or "all",
                one.name,
                f"{one.messages:,}",
                one.p50_ms,
                one.p99_ms,
                one.p999_ms,
                one.worst_ms,
            )
            for one in found.lateness
        ],
    )
    _titled(
        "Why they failed",
        ("reason", "messages"),
        [(one.reason, f"{one.messages:,}") for one in found.failures],
    )
    _titled(
        "Heaviest owners",
        ("namespace", "owner", "scheduled", "sent", "failed"),
        [
            (
                one.namespace,
                one.owner or "(none)",
                f"{one.scheduled:,}",
                f"{one.sent:,}",
                f"{one.failed:,}",
            )
            for one in found.owners
        ],
    )


def _titled(title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]] | list[Any]) -> None:
    show.out.print()
    show.out.print(f"[bold]{title}[/]")
    if rows:
        show.rows(columns, rows)
    else:
        show.out.print("none")
