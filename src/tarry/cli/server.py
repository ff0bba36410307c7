"""`serve` and `up`: start the server, alone or supervised."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tarry.cli.options import ConfigFile
from tarry.cli.show import say
from tarry.config import Config, load
from tarry.config.doors import DOORS
from tarry.config.server import server_url

Data = Annotated[str | None, typer.Option("--data", metavar="FOLDER", help="The data folder.")]
Host = Annotated[str | None, typer.Option("--host", help="The address to listen on.")]
_Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")]
Ports = Annotated[
    int | None,
    typer.Option(
        "--ports", metavar="OFFSET", help="Add this to every port, as in +10000; else $TARRY_PORT_OFFSET."
    ),
]

SetAside = Annotated[
    list[int] | None,
    typer.Option(
        "--set-aside", metavar="SEQ", min=1, help="Start without the record at this seq; may be given again."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(up)
    app.command()(serve)


def serve(
    data: Data = None,
    host: Host = None,
    port: _Port = None,
    ports: Ports = None,
    config: ConfigFile = None,
    set_aside: SetAside = None,
) -> None:
    """Run the server until it is told to stop (SIGTERM, Ctrl-C)."""
    given = {"data": data, "http.host": host, "http.port": port, "port_offset": ports}
    read = partial(load, config, dict(os.environ), given)
    # What is wrong with it is told before the engine is loaded.
    read()
    # Late, so that the other commands do not wait for the engine to be loaded.
    from tarry.serve import serve as run

    sys.exit(run(read, set_aside or ()))


def up(
    data: Data = None, host: Host = None, port: _Port = None, ports: Ports = None, config: ConfigFile = None
) -> None:
    """Run server and pipeline, and restart each when it ends: the way to use Tarry on one machine."""
    from tarry.cli.homeserver import beside
    from tarry.cli.ports import check_free
    from tarry.cli.supervisor import Child, Supervisor

    given: dict[str, object] = {"data": data, "http.host": host, "http.port": port, "port_offset": ports}
    loaded = load(config, os.environ, given)
    opened = [name for name in DOORS if getattr(loaded.config.doors, name).enabled is None]
    given |= {f"doors.{name}.enabled": True for name in opened}
    loaded = load(config, os.environ, given)
    settings = {f"TARRY_DOORS__{name.upper()}__ENABLED": "true" for name in opened}
    if ports is not None:
        settings["TARRY_PORT_OFFSET"] = str(ports)
    shared = _options(("--data", data), ("--config", config))
    serve = [sys.executable, "-m", "tarry", "serve", *shared, *_options(("--host", host), ("--port", port))]
    # Before anything is started: a server that cannot listen would be started again and again.
    trouble = check_free(
        loaded.config, lambda offset: load(config, os.environ, given | {"port_offset": offset}).config
    )
    if trouble is not None:
        for line in trouble.lines:
            say(line)
        say(f"stop that, or type: {_again(trouble.options)}")
        sys.exit(1)
    homeserver = beside(loaded.config, shared)
    children = [Child("serve", serve, settings=settings | (homeserver.settings if homeserver else {}))]
    if homeserver is not None:
        children.append(homeserver.child)
    if loaded.config.pipeline.enabled:
        # The server goes on without it: it is started again for as long as it takes, and never ends the whole.
        children.append(
            Child("pipeline", [sys.executable, "-m", "tarry", "pipeline", *shared], essential=False)
        )
    print(banner(loaded.config, ports), flush=True)
    if homeserver is not None:
        print(f"  {homeserver.advice}: {program()} matrix user alice\n", flush=True)
    sys.exit(Supervisor(children).run())


def _options(*given: tuple[str, object]) -> list[str]:
    """Options as they stand on a command line; those that were not given are left out."""
    return [text for option, value in given if value is not None for text in (option, str(value))]


def _again(options: Mapping[str, str]) -> str:
    """The command that was typed, with these options in place of its own."""
    kept: list[str] = []
    typed = iter(sys.argv[1:])
    for word in typed:
        option, equals, _ = word.partition("=")
        if option not in options:
            kept.append(word)
        elif not equals:
            next(typed, None)
    added = [word for option, value in options.items() for word in (option, value)]
    return shlex.join([program(), *kept, *added])


def banner(config: Config, ports: int | None = None) -> str:
    """First commands to try, as printed at the start. `ports` is the offset that the command line gave."""
    greeting = f"Tarry: messages go out when they are due. Data in {config.data}; Ctrl-C stops."
    if config.http.port == 0:
        # The server takes a free port, and says which.
        return greeting
    url = server_url(config)
    token = ' -H "authorization: Bearer $TARRY_TOKEN"' if config.tokens else ""
    return f"""{greeting}

  Dashboard: {url}/
{_for_other_shells(url, ports)}
  Schedule a message, and see it arrive five seconds later:
    curl -s {url}/v1/messages{token} -H 'content-type: application/json' \\
      -d '{{"destination": "persistent://public/default/hello", "payload": "good morning", "delay": "5s"}}'
    {program()} tail hello --from earliest
"""


def _for_other_shells(url: str, ports: int | None) -> str:
    """The variables by which a command in another terminal finds this server, as a line to paste; often empty."""
    told = {} if ports is None else {"TARRY_PORT_OFFSET": str(ports)}
    if server_url(load(environment={**os.environ, **told}).config) != url:
        told = {"TARRY_URL": url}
    exports = " ".join(f"{name}={value}" for name, value in told.items())
    return f"  In other terminals, first: export {exports}\n" if exports else ""


def program() -> str:
    """How this program can be called again from the shell that called it."""
    started = Path(sys.argv[0])
    if started.name != "tarry" or shutil.which("tarry") == str(started.absolute()):
        return "tarry"
    return os.path.relpath(started)
