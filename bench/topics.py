"""Topics: what very many of them cost, and how long the server keeps others waiting while it looks after them.

Each topic gets one message, some topics a subscription, and many owners one pending message each. Then messages go to
topics at random while somebody asks for the readiness, again and again: the longest time that an answer takes is how
long the loop was held up, by a flush of the registry or by anything else.
"""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.http_wire import Http, HttpReply, request
from bench.load_http import BATCH, HOUR_MS, NDJSON
from bench.plan import Plan
from bench.run import Run
from bench.tarry_server import TarryServer
from bench.wire import Refused, connect, drive

LINES: Final = 2_000
EVERY_S: Final = 0.005
"""Between two questions, and between two messages."""


def measure(run: Run) -> None:
    """One server with all of them."""
    plan = run.plan
    for _ in run.turns():
        with run.place() as place, TarryServer(place) as server:
            # Of one: the growth for the second half of them, when buffers and pools have their size.
            half = plan.topics // 2
            _make(server, 0, half)
            before = server.memory_bytes()
            _make(server, half, plan.topics)
            run.add(f"topics {plan.topics} memory", (server.memory_bytes() - before) / (plan.topics - half))
            run.add(f"topics {plan.topics} registry", _registry_bytes(place) / plan.topics)
            run.say("topics are made")
            _subscribe(server, plan.subscriptions)
            _send(server.port, (_line("topic-0", HOUR_MS, f"owner-{n}") for n in range(plan.owners)))
            run.say("owners have their messages")
            run.add(f"topics {plan.topics} stall", _longest_wait_s(server, plan) * 1000)


def _line(topic: str, delay_ms: int, owner: str = "") -> bytes:
    owned = f',"owner":"{owner}"' if owner else ""
    return f'{{"destination":"{topic}","delay_ms":{delay_ms},"payload":"x"{owned}}}\n'.encode()


def _send(port: int, lines: Iterator[bytes]) -> None:
    """Schedule these, one batch after another."""
    sent: list[int] = []

    def requests() -> Iterator[bytes]:
        while some := [line for _, line in zip(range(LINES), lines, strict=False)]:
            sent.append(len(some))
            yield request("POST", BATCH, b"".join(some), NDJSON)

    def check(body: bytes) -> None:
        if body.count(b'"past_due"') != sent.pop(0):
            raise Refused(f"not every line was accepted: {body[:500]!r}")

    drive(connect(port), requests(), lambda: HttpReply(check))


def _make(server: TarryServer, first: int, stop: int) -> None:
    """Make topics by a message for each, until every one is there and the registry has heard of it."""
    _send(server.port, (_line(f"topic-{n}", 0) for n in range(first, stop)))
    while server.status()["topics"] < stop:
        time.sleep(0.2)
    time.sleep(3)


def _subscribe(server: TarryServer, count: int) -> None:
    for number in range(count):
        path = f"/v1/topics/public/default/topic-{number}/subscriptions/sub"
        server.http.call("PUT", path, {"type": "shared", "start": "earliest"})


def _longest_wait_s(server: TarryServer, plan: Plan) -> float:
    """The longest time that the server took to say that it is ready, while messages came to its topics."""
    until = time.monotonic() + plan.steady_s
    chosen = random.Random(1)

    def publish() -> None:
        http = Http(server.port)
        while time.monotonic() < until:
            name = f"topic-{chosen.randrange(plan.topics)}"
            http.call("POST", f"/v1/topics/public/default/{name}/messages", {"payload": "y"})
            time.sleep(EVERY_S)
        http.close()

    load = threading.Thread(target=publish)
    load.start()
    longest = 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        server.http.call("GET", "/readyz")
        longest = max(longest, time.monotonic() - began)
        time.sleep(EVERY_S)
    load.join()
    return longest


def _registry_bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("registry.sqlite*"))
