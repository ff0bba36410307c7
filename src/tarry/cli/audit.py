"""`audit`: whether the books balance."""

import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from tarry.cli import show
from tarry.cli.options import ConfigFile, JsonOption
from tarry.cli.pipeline import give_secrets, settings_of
from tarry.cli.progress import StepProgress, spark_tasks
from tarry.cli.server import Data
from tarry.config import load
from tarry.core.errors import TarryError

_Place = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATH]",
        help="A data folder, or a folder of tables; else the configured one.",
        show_default=False,
    ),
]

CANNOT_TELL = 2


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(audit)


def audit(
    path: _Place = None, json: JsonOption = False, data: Data = None, config: ConfigFile = None
) -> None:
    """Prove that the books balance, from the ledger, the index and the history; with Spark.

    Every accepted message is scheduled or finalised exactly once, none was sent before its due instant, none after its cancel.
    Exit codes: 0 all checks passed, 1 a check failed, 2 not enough data to check.
    """

    def job(spark: Any, options: dict[str, str], step: Callable[[str], None]) -> Any:
        from tarry.pipeline.audit.audit import audit as judged

        return judged(spark, options, step=step)

    try:
        verdict = run_job(job, "tarry-audit", path, data, config)
    except TarryError as error:
        show.err.print(f"tarry: cannot tell: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(CANNOT_TELL) from None
    if json:
        show.as_json(verdict)
    else:
        _print(verdict)
    raise typer.Exit(0 if verdict.balanced else 1)


def run_job(
    job: Callable[[Any, dict[str, str], Callable[[str], None]], Any],
    name: str,
    path: str | None,
    data: str | None,
    config: str | None,
) -> Any:
    """Run a job over a folder, or over the configured tables, in a small Spark of its own; the job names its steps."""
    loaded = load(config, os.environ, {"data": data})
    settings = settings_of(loaded.config)
    give_secrets(loaded.config)
    # Late: nobody else waits for Spark to be loaded, or needs it to be there.
    from tarry.pipeline.jobs import job_session
    from tarry.pipeline.views.place import find, need_tables

    options = {"path": path} if path else place_options(settings)
    # Before Spark is started: whoever has no tables yet is told at once.
    need_tables(find(options))
    with (
        StepProgress("starting Spark") as progress,
        job_session(settings, name) as spark,
        progress.following(partial(spark_tasks, spark)),
    ):
        return job(spark, options, progress.step)


def place_options(settings: dict[str, Any]) -> dict[str, str]:
    """The ledger and the tables of a configuration, as options of a read."""
    ledger = settings["ledger"]
    source = {"ledger": ledger["folder"]} if "folder" in ledger else ledger
    storage = {f"storage.{name}": value for name, value in settings["storage_options"].items()}
    return {"path": settings["tables"], **source, **storage}


def _print(verdict: Any) -> None:
    show.rows(("messages", "count"), [(name, f"{number:,}") for name, number in verdict.counts.items()])
    for note in verdict.notes:
        show.out.print(f"note: {note}", markup=False, soft_wrap=True)
    if verdict.balanced:
        show.out.print("[green]The books balance.[/]")
        return
    from tarry.pipeline.audit.checks import OFFENCES

    show.out.print("[bold red]The books do not balance.[/]")
    show.rows(
        ("offence", "count", "meaning"), [(name, n, OFFENCES[name]) for name, n in verdict.offences.items()]
    )
    show.rows(
        ("offence", "seq", "message", "detail"),
        [(one.offence, one.seq, one.origin_seq, one.detail) for one in verdict.shown],
    )
