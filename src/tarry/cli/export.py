"""`export`: pending messages, or those that have ended, as plain rows in a Parquet or CSV file."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tarry.cli import show
from tarry.cli.audit import place_options
from tarry.cli.options import ConfigFile
from tarry.cli.pipeline import give_secrets, settings_of
from tarry.cli.progress import StepProgress
from tarry.cli.server import Data
from tarry.config import load
from tarry.core.errors import Forbidden

_File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A name that ends with .parquet or .csv; - is CSV to standard output."
    ),
]
_View = Annotated[
    Literal["scheduled", "history"],
    typer.Option(help="Messages that wait, or messages that have ended."),
]
_Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="COLUMN=VALUE", help="Only rows with this value; may be repeated."),
]
_From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="INSTANT", help="Only messages due (with --view history: ended) from then on."
    ),
]
_To = Annotated[
    str | None, typer.Option("--to", metavar="INSTANT", help="Only messages due, or ended, up to then.")
]
_Bodies = Annotated[
    bool, typer.Option("--bodies", help="Payloads too, and the headers of messages that wait.")
]
_IdsOption = Annotated[
    bool,
    typer.Option(
        "--ids", help="Ids too, for whoever can read the key in the data folder; they are credentials."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(export)


def export(
    file: _File,
    view: _View = "scheduled",
    where: _Where = None,
    from_: _From = None,
    to: _To = None,
    bodies: _Bodies = False,
    ids: _IdsOption = False,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Write messages to a file, as of now, with the server running or not; secrets in headers and addresses are masked.

    [bold]tarry export waiting.parquet --where owner=billing --to 2027-01-01T00:00:00Z[/bold]
    """
    form = _format(file)
    at = "due_at" if view == "scheduled" else "finalised_at"
    conditions = {
        f"{bound}.{at}": value for bound, value in (("min", from_), ("max", to)) if value is not None
    }
    for one in where or ():
        column, equals, value = one.partition("=")
        if not equals or not column:
            raise typer.BadParameter(f"{one!r} is not COLUMN=VALUE", param_hint="--where")
        conditions[f"is.{column}"] = value
    loaded = load(config, os.environ, {"data": data})
    # Late: nobody else waits for this to be loaded, or needs it to be there.
    from tarry.pipeline.export import ExportSettings
    from tarry.pipeline.export import export as written
    from tarry.serve.datafolder import LEDGER

    key = _key(Path(loaded.config.data)) if ids else None
    settings = ExportSettings(view, bodies, key)
    give_secrets(loaded.config)
    options = {**place_options(settings_of(loaded.config)), **conditions}
    if (Path(loaded.config.data) / LEDGER).is_dir():
        # Before there are tables, the ledger has all.
        options["path"], options["tables"] = loaded.config.data, options["path"]
    with StepProgress("reading messages") as progress:

        def step(rows: int) -> None:
            progress.step(f"{rows:,} messages")

        count = written(options, settings, sys.stdout.buffer if file == "-" else Path(file), form, step)
    show.say(f"{count:,} messages written" + ("" if file == "-" else f" to {file}"))


def _format(file: str) -> Literal["parquet", "csv"]:
    if file == "-" or file.endswith(".csv"):
        return "csv"
    if file.endswith(".parquet"):
        return "parquet"
    raise typer.BadParameter(f"{file} ends neither with .parquet nor with .csv", param_hint="FILE")


def _key(folder: Path) -> Any:
    from tarry.core.messages.ids import Ids
    from tarry.serve.datafolder import ID_KEY

    try:
        return Ids((folder / ID_KEY).read_bytes())
    except OSError as error:
        raise Forbidden(
            f"ids are made with {folder / ID_KEY}, which cannot be read ({(error.strerror or str(error)).lower()}):"
            " only the user of the server may; leave --ids away"
        ) from None
