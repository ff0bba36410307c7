"""The program that starts servers for tests: it imports what they need once, and forks one for each order.

Orders come as packets on standard input, a socket, each with the two files of its server: the socket by which the test tells it
what to do, and its log. A server ends when that socket does, and this program when its own does, so that nothing is left of a run
that was killed. The clock of these servers can be moved; that of `tarry serve` cannot, by no setting.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from tarry.config import Config, load
from tarry.engine.engine import Engine
from tarry.serve.composition.logs import set_up
from tarry.serve.composition.process import raise_open_files
from tarry.serve.composition.server import Server
from tarry.serve.datafolder import DataFolder
from tarry.testing.insides import InsidesOf
from tarry.testing.moved_clock import MovedAlarm, MovedClock
from tarry.testing.passing import pass_time

MAX_ORDER_BYTES: Final = 1 << 20
REST_WITHIN_S: Final = 50.0
"""How long all that is due at an instant may take, with the attempts to send."""

LOOK_EVERY_S: Final = 0.005

SMALL: Final[dict[str, Any]] = {
    "http.port": 0,
    "doors.pulsar.port": 0,
    "doors.dapr.port": 0,
    "doors.dapr.grpc_port": 0,
    "doors.matrix.port": 0,
    # Segments that cost no time to make.
    "ledger.segment_bytes": 1 << 20,
    # The receivers of tests are on this machine.
    "webhook.allow": ["127.0.0.1", "::1"],
}
"""Settings of every test's server, where it has none of its own."""


def main() -> None:
    """Fork a server for each order, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whoever ended is gone at once.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    raise_open_files()
    with socket.socket(fileno=os.dup(0)) as orders:
        while True:
            packet, files, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 2)
            if not packet:
                return
            if os.fork() == 0:
                orders.close()
                _become_server(json.loads(packet), *files)
            for file in files:
                os.close(file)


def _become_server(order: dict[str, Any], control: int, log: int) -> None:
    """Be the server of a test, in a process that was forked for it."""
    os.dup2(log, 2)
    os.close(log)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        with socket.socket(fileno=control) as told:
            _serve(order, told)
        code = 0
    finally:
        sys.stderr.flush()
        # Nothing of the program that forked it is to be run.
        os._exit(code)


def _serve(order: dict[str, Any], control: socket.socket) -> None:
    # No file of settings in the folder of the tests means this server.
    os.chdir(order["folder"])
    try:
        config = load(environment=_as_variables({**SMALL, "data": "data", **order["settings"]})).config
        set_up(config.log)
        uvloop.run(_run(config, control))
    except Exception as error:  # noqa: BLE001 - the test is told, whatever it is
        control.setblocking(True)
        _tell(control, {"error": f"{type(error).__name__}: {error}"})


def _as_variables(settings: dict[str, Any]) -> dict[str, str]:
    """Settings in the form in which an unknown name is an error that knows a better one."""
    return {
        "TARRY_" + name.upper().replace(".", "__"): given if isinstance(given, str) else json.dumps(given)
        for name, given in settings.items()
    }


async def _run(config: Config, control: socket.socket) -> None:
    clock = MovedClock()
    with DataFolder.open(Path(config.data)) as folder:
        server = Server(config, folder, clock=clock, alarm=MovedAlarm(clock))
        server.on_fault = lambda: os._exit(1)
        url = await server.start()
        _tell(control, {"url": url, "doors": server.addresses})
        reader, writer = await asyncio.open_unix_connection(sock=control.dup())
        while line := await reader.readline():
            answer = await _obey(server, clock, json.loads(line))
            writer.write(json.dumps(answer).encode())


async def _obey(server: Server, clock: MovedClock, request: dict[str, Any]) -> dict[str, Any]:
    engine = server.engine
    match request["do"]:
        case "advance":
            try:
                async with asyncio.timeout(REST_WITHIN_S):
                    await pass_time(engine, clock, clock.now_ms() + request["ms"])
            except TimeoutError:
                return {"error": f"not all that is due was done within {REST_WITHIN_S:g} s"}
        case "drain":
            until_s = time.monotonic() + request["within_s"]
            while backlogs := _backlogs(engine):
                if time.monotonic() > until_s:
                    return {"error": f"entries that are not acknowledged: {', '.join(backlogs)}"}
                await asyncio.sleep(LOOK_EVERY_S)
        case "stop":
            clock.stop()
        case "start":
            clock.start()
            engine.wake()
    return {"now_ms": clock.now_ms()}


def _backlogs(engine: Engine) -> list[str]:
    """The subscriptions that have entries to acknowledge, each with their number."""
    return [
        f"{sub.backlog} of {topic.name} by {sub.name}"
        for topic in InsidesOf(engine).engine_state.topics.by_name.values()
        for sub in topic.subscriptions.values()
        if sub.backlog
    ]


def _tell(control: socket.socket, answer: dict[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
