"""`dapr run`: a server with the Dapr door open, and an application beside it, as Dapr's own command does it.

The two live and die together: when the application ends, the server is stopped and the exit code is the application's;
when the server ends, the application is told to end. A signal to stop is passed on to both.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tarry.cli.ports import first_free
from tarry.cli.server import Data, Ports, _Port
from tarry.cli.show import say
from tarry.config import load
from tarry.config.ports import port_variables

GRACE_S: Final = 30.0
"""How long an application or the server may take to end before it is killed."""

_dapr = typer.Typer(help="Run applications as Dapr does.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(_dapr, name="dapr")
    _dapr.command(context_settings={"allow_interspersed_args": False})(run)
    # A command alone would swallow its own name.
    _dapr.callback()(lambda: None)


def run(
    command: Annotated[
        list[str] | None, typer.Argument(help="The application; after -- if it has options.")
    ] = None,
    app_id: Annotated[str | None, typer.Option(help="The application's id.")] = None,
    app_port: Annotated[int | None, typer.Option(help="The application's port.")] = None,
    app_protocol: Annotated[
        str | None, typer.Option(help="The application's protocol: http or grpc.")
    ] = None,
    resources_path: Annotated[
        list[Path] | None, typer.Option(help="A folder or file of components and subscriptions.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A Dapr Configuration file.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Dapr's namespace of the application.")] = None,
    enable_app_health_check: Annotated[
        bool, typer.Option("--enable-app-health-check", help="Deliver only while the application is healthy.")
    ] = False,
    app_health_check_path: Annotated[
        str | None, typer.Option(help="Path of its health check, over HTTP.")
    ] = None,
    app_health_probe_interval: Annotated[int | None, typer.Option(help="Seconds between two checks.")] = None,
    app_health_probe_timeout: Annotated[int | None, typer.Option(help="Milliseconds for an answer.")] = None,
    app_health_threshold: Annotated[
        int | None, typer.Option(help="Bad answers in a row that make it unhealthy.")
    ] = None,
    disable_init_endpoints: Annotated[
        str | None, typer.Option(help="Endpoints not to ask at the start: subscribe, config.")
    ] = None,
    dapr_http_port: Annotated[int, typer.Option(help="Port of Dapr's HTTP API; -1: a free one.")] = -1,
    dapr_grpc_port: Annotated[int, typer.Option(help="Port of Dapr's gRPC API; -1: a free one.")] = -1,
    data: Data = None,
    port: _Port = None,
    ports: Ports = None,
    tarry_config: Annotated[str | None, typer.Option(metavar="FILE", help="Tarry's configuration.")] = None,
) -> None:
    """Run an application beside a server whose Dapr door is open.

    The application finds it by DAPR_HTTP_PORT and DAPR_GRPC_PORT, as it would find a sidecar.
    """
    http_port, grpc_port = (first_free([0]) if one == -1 else one for one in (dapr_http_port, dapr_grpc_port))
    given: dict[str, object] = {
        "enabled": "true",
        "port": http_port,
        "grpc_port": grpc_port,
        "app_id": app_id,
        "app_port": app_port,
        "app_protocol": app_protocol,
        "namespace": namespace,
        "app_health_check": "true" if enable_app_health_check else None,
        "app_health_check_path": app_health_check_path,
        "app_health_interval_ms": None
        if app_health_probe_interval is None
        else app_health_probe_interval * 1000,
        "app_health_timeout_ms": app_health_probe_timeout,
        "app_health_threshold": app_health_threshold,
        "disable_init_endpoints": disable_init_endpoints,
        "config": None if config is None else config.absolute(),
        "resources_path": ",".join(str(one.absolute()) for one in resources_path or ()) or None,
    }
    variables = {
        f"TARRY_DOORS__DAPR__{name.upper()}": str(one) for name, one in given.items() if one is not None
    }
    # What is wrong is told here, in one line, and not by a child.
    loaded = load(tarry_config, os.environ, {"http.port": port, "port_offset": ports}).config
    if loaded.port_offset:
        # Dapr's ports are the application's to know, and not shifted; all others are, as elsewhere.
        variables = {**port_variables(loaded), **variables}
        port = loaded.http.port
    settings = load(tarry_config, os.environ | variables, {"data": data, "http.port": port}).config.doors.dapr
    serve = [sys.executable, "-m", "tarry", "serve"]
    for option, value in (("--data", data), ("--port", port), ("--config", tarry_config)):
        serve += [] if value is None else [option, str(value)]
    for_app = {
        "APP_ID": settings.app_id,
        "DAPR_APP_ID": settings.app_id,
        "DAPR_HTTP_PORT": str(http_port),
        "DAPR_GRPC_PORT": str(grpc_port),
        "DAPR_HTTP_ENDPOINT": f"http://127.0.0.1:{http_port}",
        "DAPR_GRPC_ENDPOINT": f"127.0.0.1:{grpc_port}",
        "APP_PROTOCOL": settings.app_protocol,
    }
    if settings.app_port is not None:
        for_app["APP_PORT"] = str(settings.app_port)
    sys.exit(Together(serve, variables, command or [], for_app).run())


class Together:
    """The server and the application."""

    def __init__(
        self,
        serve: Sequence[str],
        variables: Mapping[str, str],
        command: Sequence[str],
        for_app: Mapping[str, str],
    ) -> None:
        self._serve = serve
        self._variables = variables
        self._command = command
        self._for_app = for_app
        self._stopping = threading.Event()
        self._running: list[subprocess.Popen[str]] = []

    def run(self) -> int:
        """Wait until the server or the application ends, or a signal comes; gives the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop())
        # In a group of its own: Ctrl-C must not end it before the application.
        server = subprocess.Popen(  # noqa: S603 - our own program
            self._serve,
            env={**os.environ, **self._variables},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.append(server)
        assert server.stdout is not None
        line = server.stdout.readline()
        if "ready on " not in line:
            return server.wait() or 1
        print(f"{line.rstrip()}; Dapr's ports are {self._ports()}", flush=True)
        if not self._command or self._stopping.is_set():
            return self._end(server.wait())
        try:
            application = subprocess.Popen(  # noqa: S603 - what the user asked for
                self._command, env={**os.environ, **self._for_app}, text=True
            )
        except OSError as error:
            say(f"cannot start {self._command[0]}: {error.strerror}")
            return self._end(127)
        self._running.append(application)
        threading.Thread(target=self._watch, args=(server,), daemon=True).start()
        return self._end(application.wait())

    def _ports(self) -> str:
        return f"{self._for_app['DAPR_HTTP_PORT']} (HTTP) and {self._for_app['DAPR_GRPC_PORT']} (gRPC)"

    def _watch(self, server: "subprocess.Popen[str]") -> None:
        """An application without its sidecar is of no use: it is told to end."""
        server.wait()
        if not self._stopping.is_set():
            say("the server has ended; the application is stopped")
            self._stop()

    def _stop(self) -> None:
        """The application first: it may still publish while it ends."""
        self._stopping.set()
        if self._running:
            self._running[-1].terminate()

    def _end(self, code: int) -> int:
        self._stopping.set()
        for process in self._running:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        # As a shell says it of a program that a signal ended.
        return code if code >= 0 else 128 - code
