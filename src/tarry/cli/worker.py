"""`worker`: functions that handle the entries of topics."""

import importlib
import os
import sys
from typing import Annotated

import msgspec
import typer

from tarry.cli.options import ConfigFile, Url
from tarry.client.worker.worker import Worker
from tarry.config import load
from tarry.config.server import client_tls, server_url
from tarry.serve.composition.logs import set_up


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(worker)


def worker(
    app: Annotated[
        str, typer.Argument(metavar="MODULE:WORKER", help="The Worker, like app:worker; imported from here.")
    ],
    url: Url = None,
    config: ConfigFile = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show more of the log.")] = False,
) -> None:
    """Handle the entries of topics with the functions of a Worker, until SIGTERM or Ctrl-C.

    Entries are acknowledged when their functions return. At the end functions that run may finish.
    """
    settings = load(config, os.environ).config
    set_up(msgspec.structs.replace(settings.log, level="debug") if verbose else settings.log)
    # Where `python -m` would look first.
    sys.path.insert(0, os.getcwd())
    found = _find(app)
    if url is not None or config is not None:
        found.url = url or server_url(settings)
        found.token = found.token or settings.token
        found.tls = found.tls or client_tls(settings)
    found.run()


def _find(app: str) -> Worker:
    module_name, colon, name = app.partition(":")
    if not colon or not module_name or not name:
        raise typer.BadParameter(f"{app!r} is not MODULE:WORKER, like app:worker")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Its own imports may be missing, which is another matter.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise typer.BadParameter(f"there is no module {module_name} in {os.getcwd()}") from None
    found = getattr(module, name, None)
    if not isinstance(found, Worker):
        workers = [one for one, value in vars(module).items() if isinstance(value, Worker)]
        hint = f"; it has {', '.join(workers)}" if workers else ""
        raise typer.BadParameter(f"{name} in {module_name} is no tarry.Worker{hint}")
    return found
