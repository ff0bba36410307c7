"""`backup` and `restore`: a copy of a running server, and a data folder from it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tarry.cli import show
from tarry.cli.options import ConfigFile, JsonOption, Url, connect
from tarry.cli.server import Data
from tarry.client.blocking import Client
from tarry.client.call import ClientCall, as_json, reads, reads_nothing
from tarry.config import Config, load
from tarry.core.errors import TarryError, Unavailable

HOLD_MS = 600_000
"""How long the server waits for a word from a backup; it gets one every half minute."""

_Target = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder for the backup; empty, or not there yet.")
]
_Source = Annotated[Path, typer.Argument(metavar="BACKUP", help="The folder of a backup.")]
NewData = Annotated[
    Path, typer.Option("--data", metavar="FOLDER", help="The data folder to make; empty, or not there yet.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(backup)
    app.command()(restore)


def backup(
    folder: _Target, json: JsonOption = False, data: Data = None, url: Url = None, config: ConfigFile = None
) -> None:
    """Copy a running server into a folder, consistently; the server goes on meanwhile.

    Run it on the server's machine, as its user: it reads the data folder. It needs a token with the role admin for all namespaces.
    """
    loaded = load(config, os.environ, {"data": data}).config
    # Late: nobody else waits for these to be loaded.
    from tarry.serve.backup.backup import Begun, back_up

    with connect(config, url, retry_for_s=10.0) as client:
        begun = client.run(ClientCall("POST", "/v1/backups", reads(dict[str, str | int]), _hold()))
        path = f"/v1/backups/{begun['name']}"

        def renew() -> None:
            client.run(ClientCall("PUT", path, reads(dict[str, str | int]), _hold(), repeatable=True))

        try:
            found = Begun(str(begun["snapshot"]), str(begun["ledger_id"]))
            key = loaded.cluster.id_key_file
            manifest = back_up(
                Path(loaded.data),
                loaded.tables(),
                loaded.pipeline.storage_options,
                folder,
                found,
                renew,
                Path(key) if key else None,
            )
        except OSError as error:
            raise Unavailable(f"the backup cannot be made: {error}") from error
        finally:
            _end(client, path)
    if json:
        show.as_json(
            {
                "folder": str(folder),
                "seq": manifest.seq,
                "files": len(manifest.files),
                "size_bytes": manifest.size_bytes,
            }
        )
        return
    print(
        f"{folder}: everything up to seq {manifest.seq}, {len(manifest.files)} files, {manifest.size_bytes:,} bytes"
    )


def restore(source: _Source, data: NewData, config: ConfigFile = None) -> None:
    """Make a data folder from a backup; every file is proved. Then start the server on that folder."""
    from tarry.serve.backup.restore import restore as make

    loaded: Config = load(config, os.environ, {"data": str(data)}).config
    try:
        manifest = make(source, data, loaded.tables())
    except OSError as error:
        raise Unavailable(f"the backup cannot be restored: {error}") from error
    print(f"{data}: everything up to seq {manifest.seq}; start the server on it")


def _hold() -> bytes:
    return as_json({"for_ms": HOLD_MS})


def _end(client: Client, path: str) -> None:
    try:
        client.run(ClientCall("DELETE", path, reads_nothing, repeatable=True))
    except TarryError:
        # The server lets go of it by itself.
        return
