"""Ways to serve HTTP: the native door on the kit, without each of its tricks, and on uvicorn as plain ASGI, in one server, in turns.

All of them serve the same application with the same engine, on a thread of this process, so that the processor time of that thread
can be read; the load is a process of its own. Processor time a request says what a way costs wherever the machine is busy with
something else; the rate needs a quiet one.

    python -m bench.http_layers PORT SECONDS WHAT     the load: prints how many requests, in how many seconds
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop

from bench.asgi import AsAsgi
from bench.http_wire import HttpReply
from bench.plan import CONNECTIONS, PAYLOAD_BYTES
from bench.processes import ROOT, environment, python
from bench.run import TARRY, Run
from bench.tape import payload
from bench.tarry_server import DESTINATION
from bench.wire import connect, drive
from tarry.config import load
from tarry.config.settings import Http
from tarry.core.tricks import TRICKS
from tarry.http.application import Application, Endpoint, Given, Outcome
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.serve.composition.server import Server
from tarry.serve.datafolder import DataFolder
from tarry.serve.transport.listener import Listener

NO_HEADS: Final = "without known heads"
TASKS: Final = "without answers: a task for each request"
UVICORN: Final = "uvicorn, plain ASGI"
WAYS: Final = (TARRY, NO_HEADS, TASKS, UVICORN)
LOADS: Final = {"schedule": "POST /v1/messages", "health": "GET /healthz"}
"""Requests, by the name of the load."""


def measure(run: Run) -> None:
    """Every load on every way to serve it, in turns in which nobody is always first."""
    with run.place() as place, _Serving(place) as server:
        for what in LOADS:
            for who in WAYS:
                server.load(who, what, 0.5)
            for turn in range(run.plan.layer_turns):
                run.say(f"{LOADS[what]}, turn {turn + 1} of {run.plan.layer_turns}")
                first = turn % len(WAYS)
                for who in (WAYS[first:] + WAYS[:first])[:: 1 if turn % 2 else -1]:
                    per_s, cpu_us = server.load(who, what, run.plan.load_s / 2)
                    run.figures.add(who, f"{what} rate", per_s)
                    run.figures.add(who, f"{what} cpu", cpu_us)


@contextmanager
def _as(who: str) -> Iterator[None]:
    TRICKS.known_heads = who != NO_HEADS
    try:
        yield
    finally:
        TRICKS.known_heads = True


class _InTasks:
    """An application whose answers are awaited in a task, as every ASGI application's are."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def open(self, request: Request) -> Endpoint:
        """The endpoint, with the task around it."""
        found = self._app.open(request)

        def run(asked: Request) -> Outcome:
            return _awaited(found.run(asked))

        return Endpoint(run, found.max_body_bytes, streams=found.streams, timeout_ms=found.timeout_ms)

    def refuse(self, request: Request, error: Exception) -> Response:
        """See `Application`."""
        return self._app.refuse(request, error)


async def _awaited(outcome: Any) -> Given:
    found: Given = outcome if isinstance(outcome, Response) else await outcome
    return found


class _Serving:
    """A server with all ways to reach its native door, on a thread of this process; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), name="engine")
        self._ports: dict[str, int] = {}

    def __enter__(self) -> "_Serving":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        given = {"http.port": 0, "data": str(self._folder / "data")}
        config = load(environment={}, overrides=given).config
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        with DataFolder.open(Path(config.data)) as owned:
            server = Server(config, owned)
            tasks = Listener(Http(port=0))
            plain = socket.create_server(("127.0.0.1", 0), backlog=1024)
            try:
                port = _port(await server.start())
                assert server._app is not None
                self._ports = {TARRY: port, NO_HEADS: port, TASKS: _port(tasks.bind())}
                self._ports[UVICORN] = plain.getsockname()[1]
                await tasks.start(_InTasks(server._app))
                bare = uvicorn.Server(
                    uvicorn.Config(
                        AsAsgi(server._app), http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
                    )
                )  # fmt: skip
                serving = asyncio.create_task(bare.serve([plain]))
                self._ready.set()
                await self._over.wait()
                bare.should_exit = True
                await serving
                await tasks.stop()
            finally:
                self._ready.set()
                await server.stop()

    def load(self, who: str, what: str, seconds: float) -> tuple[float, float]:
        """Requests a second, and microseconds of the engine's thread for each."""
        with _as(who):
            before = time.clock_gettime(self._clock)
            command = python("bench.http_layers", str(self._ports[who]), str(seconds), what)
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), check=True, stdout=subprocess.PIPE
            ).stdout
            took_s = time.clock_gettime(self._clock) - before
        replies, in_s = json.loads(done)
        return replies / in_s, took_s / replies * 1e6


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1].strip("/"))


def main(port: int, seconds: float, what: str) -> None:
    """Ask again and again, on many connections, with the fields that HTTP clients send."""
    body = b""
    if what == "schedule":
        asked = {
            "destination": DESTINATION,
            "payload": payload(0, PAYLOAD_BYTES).decode(),
            "delay_ms": 3_600_000,
        }
        body = json.dumps(asked).encode()
    fields = (
        f"{LOADS[what]} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: */*\r\naccept-encoding: gzip, deflate\r\n"
        "connection: keep-alive\r\nuser-agent: bench/1.0\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    loaded = drive(connect(port, CONNECTIONS), repeat(fields.encode() + body), HttpReply, seconds)
    print(json.dumps([loaded.replies, loaded.seconds]))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
