"""`index verify` and `index rebuild`: is the index what it ought to be, and make it so."""

import json
import os
from typing import Annotated, Any

import typer

from tarry.cli.options import ConfigFile, JsonOption
from tarry.cli.pipeline import give_secrets, settings_of
from tarry.cli.server import Data
from tarry.config import load

Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Compare afterwards.")]

_index = typer.Typer(no_args_is_help=True, help="Compare the index with the ledger, or rebuild it.")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(_index, name="index")


@_index.command()
def verify(data: Data = None, config: ConfigFile = None, as_json: JsonOption = False) -> None:
    """Compare the index with the ledger; exit code 1 if they differ. A server may be running."""
    with _opened(data, config) as opened:
        _tell(opened.verify(), as_json)


@_index.command()
def rebuild(
    data: Data = None, config: ConfigFile = None, check: Verify = True, as_json: JsonOption = False
) -> None:
    """Make the index again, from the ledger and, where that does not reach back, the old index.

    The server may be running: it follows. Stop the pipeline first, or the two may get in each other's way.
    """
    with _opened(data, config) as opened:
        figures = opened.rebuild()
        if as_json:
            print(json.dumps(figures))
        else:
            print(f"{figures['rows']} rows in {figures['new_files']} files, up to seq {figures['cursor']}")
        if check:
            _tell(opened.verify(), as_json)


def _opened(data: str | None, config: str | None) -> Any:
    loaded = load(config, os.environ, {"data": data})
    # Late: nobody else waits for Spark to be loaded, or needs it to be there.
    from tarry.pipeline.program import PipelineSettings
    from tarry.pipeline.rebuild import open_index

    give_secrets(loaded.config)
    return open_index(PipelineSettings(**settings_of(loaded.config)))


def _tell(verdict: Any, as_json: bool) -> None:
    if as_json:
        import msgspec

        print(msgspec.json.encode(verdict).decode())
    else:
        print(
            f"{verdict.versions} versions up to seq {verdict.cursor}; {verdict.from_ledger} of those that ought to be "
            f"there are proved by the ledger, {verdict.index_alone} are older than it"
        )
        print(f"missing {verdict.missing}, ended but there {verdict.extra}, different {verdict.differing}")
        for line in verdict.examples:
            print(f"  {line}")
    if not verdict.agrees:
        raise typer.Exit(1)
