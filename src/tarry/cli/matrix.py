"""`matrix`: the registration for a homeserver, and the private one of `tarry up`: running it, and its users."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tarry.cli.options import ConfigFile, url_of
from tarry.cli.server import Data
from tarry.cli.supervisor import CANNOT_RUN_HERE
from tarry.config import load
from tarry.core.errors import Conflict, Invalid, Unavailable

_matrix = typer.Typer(
    no_args_is_help=True, help="The Matrix door: its registration and its private homeserver."
)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    _matrix.command()(register)
    _matrix.command()(user)
    _matrix.command(hidden=True)(homeserver)
    app.add_typer(_matrix, name="matrix")


def register(
    server_name: Annotated[str, typer.Argument(help="The homeserver's server name, like example.org.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; it must not exist.")
    ] = "tarry-registration.yaml",
    url: Annotated[
        str | None, typer.Option("--url", help="Where the homeserver reaches the door; else as configured.")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Write the registration that makes Tarry an application service of a homeserver.

    It holds two secret tokens; only its owner can read it, and a file that is there is never overwritten.
    """
    from tarry.homeserver import registration

    if not server_name or set(server_name) & set("@/ \t\n"):
        raise Invalid(
            "server_name", f"{server_name!r} is none; it is what stands after the colon of a user's id"
        )
    path = Path(output)
    made = registration.fresh(server_name, url or url_of(load(config, os.environ).config.doors.matrix))
    try:
        registration.write(path, made)
    except FileExistsError:
        raise Conflict(
            f"{path} is there already, and a homeserver may use its tokens; name another"
        ) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from None
    print(f"""{path} is written. Name it
  - in the homeserver's configuration (Synapse: app_service_config_files), and restart the homeserver;
  - in Tarry's: [doors.matrix] homeserver = "http://HOST:PORT", registration = "{path}".""")


def user(
    name: Annotated[str, typer.Argument(help="The local part of the user's id: alice for @alice:localhost.")],
    admin: Annotated[bool, typer.Option("--admin", help="An administrator of the homeserver.")] = False,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input, without asking.")
    ] = False,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Register a user of the private homeserver that `tarry up` runs."""
    from tarry.cli.homeserver import private
    from tarry.homeserver.synapse import UserError

    settings = load(config, os.environ, {"data": data}).config
    if settings.doors.matrix.homeserver is not None:
        raise Conflict("the homeserver is your own (doors.matrix.homeserver): register users there")
    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    if not password:
        raise Invalid("password", "is empty")
    try:
        made = private(settings).register(name, password, admin=admin)
    except FileNotFoundError:
        raise Unavailable("there is no private homeserver here; `tarry up` starts one") from None
    except UserError as error:
        raise Unavailable(str(error)) from None
    print(f"{made['user_id']} can log in at {url_of(settings.doors.matrix)}")


def homeserver(data: Data = None, config: ConfigFile = None) -> None:
    """Run the private homeserver in the foreground: what `tarry up` does where none is configured.

    The exit code is 7 where it cannot be installed: trying again at once helps nobody.
    """
    from tarry.cli.homeserver import private
    from tarry.homeserver import environment
    from tarry.homeserver.synapse import run

    synapse = private(load(config, os.environ, {"data": data}).config)
    try:
        interpreter = environment.ensure(synapse.environment, _say)
    except environment.CannotInstall as error:
        _say(
            f"the private homeserver cannot be installed: {error}. Start again with a network, or name your own "
            "in [doors.matrix] homeserver; until then the Matrix door has nothing behind it"
        )
        sys.exit(CANNOT_RUN_HERE)
    run(synapse, interpreter)


def _say(line: str) -> None:
    print(f"tarry: {line}", file=sys.stderr, flush=True)
