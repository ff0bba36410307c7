"""Names of messages: how long a look-up, a command and a replace by name take, with few messages waiting and with very many.

The same operations, one at a time on one connection, on a server that holds a thousand messages with names and nothing else, and again
once millions wait beside them, of which many have names too.
"""

import json
import random
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from bench.http_wire import HttpReply, request
from bench.load_http import BATCH, HOUR_MS, NDJSON, NDJSON_LINES, fill
from bench.plan import SMALL_BYTES
from bench.run import Run
from bench.tarry_server import DESTINATION, TarryServer
from bench.wire import Refused, connect, drive

FEW: Final = 1_000
SETTLE_S: Final = 5.0
"""The registry has written what it lacked."""

OPERATIONS: Final = ("unnamed", "new", "get", "keep", "replace", "restart", "cancel", "again", "send")
"""In the order in which they are measured: `again` gives a name that a cancel has freed, `send` ends the messages of `new`."""


def measure(run: Run) -> None:
    """Look at the few names, then let the others wait beside them, and look again."""
    pending, named = run.plan.pending, run.plan.named
    for turn in run.turns():
        with run.place() as place, TarryServer(place) as server:
            _give(server.port, range(FEW))
            _operate(run, server, "few", FEW, turn)
            run.say(f"{named:,} names, and {pending:,} messages in all")
            began = time.monotonic()
            _give(server.port, range(FEW, named))
            run.add("names given", (named - FEW) / (time.monotonic() - began))
            far = time.time_ns() // 1_000_000 + np.random.default_rng(1).integers(
                HOUR_MS, 1000 * HOUR_MS, pending - named
            )
            fill(server.port, far, SMALL_BYTES)
            time.sleep(SETTLE_S)
            held = server.status()["pending"]
            if held < pending:
                raise AssertionError(f"{held} are pending, {pending} were expected")
            _operate(run, server, "many", named, turn)


def _give(port: int, numbers: range) -> None:
    """Schedule messages with names, as lines."""

    def requests() -> Any:
        for first in range(numbers.start, numbers.stop, NDJSON_LINES):
            some = range(first, min(first + NDJSON_LINES, numbers.stop))
            lines = (
                b'{"destination":"%b","delay_ms":%d,"name":"n%d"}\n'
                % (DESTINATION.encode(), 1000 * HOUR_MS, n)
                for n in some
            )
            yield request("POST", BATCH, b"".join(lines), NDJSON)

    def check(body: bytes) -> None:
        if b'"error"' in body:
            raise Refused(f"not every line was accepted: {body[:300]!r}")

    drive(connect(port), requests(), lambda: HttpReply(check))


def _operate(run: Run, server: TarryServer, what: str, names: int, turn: int) -> None:
    chosen = random.Random(turn).sample(range(names), k=min(names, run.plan.named_operations))
    path = "/v1/names/public/default/n"
    body = {"destination": DESTINATION, "delay_ms": 1000 * HOUR_MS}
    operations: dict[str, Callable[[int], bytes]] = {
        # A lone schedule without a name, to compare with.
        "unnamed": lambda _: _schedule(body),
        "get": lambda n: request("GET", f"{path}{n}"),
        "keep": lambda n: _schedule(body | {"name": f"n{n}", "on_conflict": "keep"}),
        "replace": lambda n: _schedule(body | {"name": f"n{n}", "on_conflict": "replace"}),
        "restart": lambda n: request("POST", f"{path}{n}/restart", b'{"delay":"40d"}'),
        "new": lambda n: _schedule(body | {"name": f"new-{what}-{n}"}),
        "cancel": lambda n: request("POST", f"{path}{n}/cancel"),
        "again": lambda n: _schedule(body | {"name": f"n{n}"}),
        "send": lambda n: request("POST", f"/v1/names/public/default/new-{what}-{n}/send"),
    }
    for name in OPERATIONS:
        _time(run, server, f"names {what} {name}", [operations[name](n) for n in chosen])


def _schedule(body: dict[str, Any]) -> bytes:
    return request("POST", "/v1/messages", json.dumps(body).encode())


def _time(run: Run, server: TarryServer, what: str, requests: list[bytes]) -> None:
    """Send one request after the other; take the median and the 99th percentile in microseconds."""
    took: list[float] = []
    reply = HttpReply()
    for one in requests:
        began = time.perf_counter()
        server.http.socket.sendall(one)
        while not reply.feed(server.http.socket.recv(1 << 16)):
            pass
        took.append((time.perf_counter() - began) * 1e6)
    p50, p99 = np.percentile(took, [50, 99])
    run.add(f"{what} p50", float(p50))
    run.add(f"{what} p99", float(p99))
