"""`matrix`: the registration for a homeserver, what waits of its users, and the private one of `tarry up`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from tarry.cli import show
from tarry.cli.exits import NOT_INSTALLED
from tarry.cli.options import ConfigFile, JsonOption, Url, connect
from tarry.cli.server import Data
from tarry.client.blocking import Client
from tarry.client.shapes import MessageView
from tarry.config import load
from tarry.config.server import url_of
from tarry.core.errors import Conflict, Invalid, NotFound, RateLimited, TarryError, Unavailable

NAMESPACES: Final = ("matrix/events", "matrix/futures")
"""Namespaces of delayed events: those of MSC4140, and the futures of its older draft."""

User = Annotated[str | None, typer.Option("--user", help="Only this user's, like @alice:example.org.")]
Room = Annotated[str | None, typer.Option("--room", help="Only for this room, like !abc:example.org.")]

_matrix = typer.Typer(
    no_args_is_help=True, help="The Matrix door: its registration and its private homeserver."
)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    _matrix.command()(register)
    _matrix.command()(events)
    _matrix.command()(cancel)
    _matrix.command()(user)
    _matrix.command(hidden=True)(homeserver)
    app.add_typer(_matrix, name="matrix")


def register(
    server_name: Annotated[str, typer.Argument(help="The homeserver's server name, like example.org.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write; it must not exist. Else registration.yaml in the data folder.",
        ),
    ] = None,
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
            "server_name",
            f"{server_name!r} is not a server name; give the part after the colon of a user's id",
        )
    settings = load(config, os.environ).config
    path = Path(settings.data, "registration.yaml") if output is None else Path(output)
    made = registration.fresh(server_name, url or url_of(settings.doors.matrix))
    try:
        if output is None:
            # It holds secrets: beside the ledger, and not where somebody happens to stand.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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


def events(
    user: User = None, room: Room = None, json: JsonOption = False, url: Url = None, config: ConfigFile = None
) -> None:
    """List pending delayed events, the next due first."""
    now = show.now_ms()
    with connect(config, url) as client:
        found = list(_waiting(client, user, room))
    if json:
        for message in found:
            show.as_json(message)
        return
    if not found:
        show.err.print("no delayed events")
        return
    rows = [
        (
            message.id, show.brief_instant(message.due_at_ms), show.from_now(message.due_at_ms, now),
            message.owner, message.destination,
        )
        for message in found
    ]  # fmt: skip
    show.rows(("delay id", "due", "", "user", "room and type"), rows)


def cancel(
    user: User = None,
    room: Room = None,
    all_: Annotated[bool, typer.Option("--all", help="Events of all users, for all rooms.")] = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Cancel the delayed events of a user, for a room, or all.

    Each user's events can be managed only so fast (`manage_per_second`): then this waits, and goes on.
    """
    if (user is None and room is None) != all_:
        raise typer.BadParameter("give --user, --room or both; or --all")
    cancelled = 0
    with connect(config, url) as client:
        waiting = list(_waiting(client, user, room))
        try:
            for message in waiting:
                cancelled += _cancel(client, message.id)
        except TarryError:
            print(f"{cancelled} cancelled of {len(waiting)}")
            raise
    print(f"{cancelled} cancelled")


def _cancel(client: Client, id_: str) -> bool:
    """Cancel one event, as soon as its user's rate allows it; False if it was sent in the meantime."""
    while True:
        try:
            client.cancel(id_)
        except RateLimited as limit:
            time.sleep(max(limit.retry_after_ms, 1) / 1000)
        except (Conflict, NotFound):
            return False
        else:
            return True


def _waiting(client: Client, user: str | None, room: str | None) -> Iterator[MessageView]:
    return chain.from_iterable(
        client.list(state="scheduled", namespace=namespace, owner=user, key=room, limit=1000)
        for namespace in NAMESPACES
    )


def user(
    name: Annotated[str, typer.Argument(help="The local part of the user's id: alice for @alice:localhost.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="Make the user an administrator of the homeserver.")
    ] = False,
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
        raise Invalid("password", "is empty; give at least one character")
    try:
        made = private(settings).register(name, password, admin=admin)
    except FileNotFoundError:
        raise Unavailable("there is no private homeserver here; `tarry up` starts one") from None
    except UserError as error:
        raise Unavailable(str(error)) from None
    print(f"{made['user_id']} can log in at {url_of(settings.doors.matrix)}")


def homeserver(data: Data = None, config: ConfigFile = None) -> None:
    """Run the private homeserver in the foreground, as `tarry up` does if none is configured.

    The exit code is 7 where it cannot be installed: trying again at once helps nobody.
    """
    from tarry.cli.homeserver import private
    from tarry.homeserver import environment
    from tarry.homeserver.synapse import run

    synapse = private(load(config, os.environ, {"data": data}).config)
    # As an exception, so that an installation under way ends with this process and not after it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        interpreter = environment.ensure(synapse.environment, show.say)
    except environment.CannotInstall as error:
        show.say(
            f"the private homeserver cannot be installed: {error}. Start again with a network, or name your own "
            "in [doors.matrix] homeserver; until then the Matrix door has nothing behind it"
        )
        sys.exit(NOT_INSTALLED)
    run(synapse, interpreter)
