"""The Dapr door: scheduled publishes over HTTP and gRPC, one by one and in bulks of 100, and a burst that goes to Redis.

Every publish is durable before it is answered. Over gRPC there are two loads: gRPC's own client, in a process of its own, which
costs more processor time than the server's part of a call, and frames built ahead, which show the server. The same client
against gRPC's own server for Python, which answers at once and does nothing, is the limit that a server built on it would have.
"""

import asyncio
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from bench.grpc_wire import GrpcReply, calls, greeting
from bench.http_wire import HttpReply, request
from bench.peers import packages
from bench.peers.peer import Skipped
from bench.peers.redis import command
from bench.plan import CONNECTIONS, PAYLOAD_BYTES
from bench.processes import Process, environment, free_port, python, tarry_environment
from bench.run import Run
from bench.wire import RECV_BYTES, Loaded, connect, drive

BARE: Final = "grpcio"
"""gRPC's own server, with nothing behind it."""
REDIS: Final = "Redis behind the Dapr door"
BULK: Final = 100
BULK_CONNECTIONS: Final = 8
LATER: Final = "2045-11-05T08:15:30-05:00"
SETTLE_MS: Final = 3_000
"""From the last publish of a burst to its due instant."""
_COMPONENT: Final = """
apiVersion: dapr.io/v1alpha1
kind: Component
metadata: {{name: redis}}
spec:
  type: pubsub.redis
  version: v1
  metadata:
  - {{name: redisHost, value: "127.0.0.1:{port}"}}
  - {{name: enableDelayedMessaging, value: "true"}}
"""


class Door:
    """A running Tarry with an open Dapr door; a context manager."""

    def __init__(self, folder: Path, resources: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.grpc_port = free_port(), free_port()
        (folder / "tarry.toml").write_text(
            f"[doors.dapr]\nenabled = true\nport = {self.port}\ngrpc_port = {self.grpc_port}\n"
            + (f'resources_path = ["{resources}"]\n' if resources else "")
        )
        self._process = Process(
            python("tarry", "serve", "--data", str(folder / "data"), "--port", "0"),
            folder / "log",
            env=tarry_environment(),
            cwd=folder,
        )
        self._process.wait_for_line("ready on")

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()


def measure(run: Run) -> None:
    """All of it, each load on a server of its own after a shorter one to warm it up."""
    seconds, burst = run.plan.load_s, run.plan.dapr_burst
    for _ in run.turns():
        with run.place() as place:
            with Door(place / "http") as door:
                http(door.port, seconds / 4)
                run.add("dapr http", http(door.port, seconds).per_s)
            with Door(place / "bulk") as door:
                http_bulk(door.port, seconds / 4)
                run.add("dapr http bulk", http_bulk(door.port, seconds).per_s * BULK)
            for what, many in (("dapr grpc", False), ("dapr grpc bulk", True)):
                with Door(place / what) as door:
                    grpc_load(door.grpc_port, seconds / 4, many)
                    run.add(what, grpc_load(door.grpc_port, seconds, many))
            with Door(place / "frames") as door:
                grpc_frames(door.grpc_port, seconds / 4)
                run.add("dapr grpc frames", grpc_frames(door.grpc_port, seconds).per_s)
            with BareServer(place / "bare") as bare:
                grpc_load(bare.port, seconds / 4, False)
                run.figures.add(BARE, "dapr grpc", grpc_load(bare.port, seconds, False))
            if REDIS not in run.figures.skipped:
                try:
                    run.add(f"dapr redis {burst}", redis_burst(place / "redis", burst))
                except Skipped as error:
                    run.skip(REDIS, str(error))


def http(port: int, seconds: float) -> Loaded:
    """One message a request."""
    body = json.dumps({"data": "x" * (PAYLOAD_BYTES - 12)}).encode()
    one = request("POST", f"/v1.0/publish/pubsub/bench?metadata.scheduledSendTime={LATER}", body)
    return drive(connect(port, CONNECTIONS), repeat(one), HttpReply, seconds)


def http_bulk(port: int, seconds: float) -> Loaded:
    """A hundred messages a request."""
    event = {"data": "x" * (PAYLOAD_BYTES - 12)}
    entries = [{"entryId": str(n), "event": event, "contentType": "application/json"} for n in range(BULK)]
    path = f"/v1.0/publish/bulk/pubsub/bench?metadata.scheduledSendTime={LATER}"
    one = request("POST", path, json.dumps(entries).encode())
    return drive(connect(port, BULK_CONNECTIONS), repeat(one), HttpReply, seconds)


def grpc_load(port: int, seconds: float, many: bool) -> float:
    """Messages a second over gRPC, from a process of its own."""
    arguments = [str(port), str(seconds), "bulk" if many else "single"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.dapr", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return float(done.stdout)


def grpc_frames(port: int, seconds: float) -> Loaded:
    """One message a call, in frames that are built ahead."""
    connections = connect(port, CONNECTIONS)
    for one in connections:
        one.sendall(greeting())
    path, body = _grpc_request(False)
    return drive(connections, calls(path, body), GrpcReply, seconds)


def _grpc_request(many: bool) -> tuple[str, bytes]:
    """The path and the message of a publish, or of a bulk publish."""
    from dapr.proto.runtime.v1 import pubsub_pb2

    metadata = {"scheduledSendTime": LATER}
    data = b"x" * PAYLOAD_BYTES
    one: Any
    if many:
        entry = pubsub_pb2.BulkPublishRequestEntry
        entries = [entry(entry_id=str(n), event=data, content_type="text/plain") for n in range(BULK)]
        one = pubsub_pb2.BulkPublishRequest(
            pubsub_name="pubsub", topic="bench", metadata=metadata, entries=entries
        )
    else:
        one = pubsub_pb2.PublishEventRequest(
            pubsub_name="pubsub", topic="bench", metadata=metadata, data=data
        )
    name = "BulkPublishEvent" if many else "PublishEvent"
    return f"/dapr.proto.runtime.v1.Dapr/{name}", one.SerializeToString()


async def _grpc(port: int, seconds: float, many: bool) -> float:
    import grpc

    path, body = _grpc_request(many)
    done = 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(path)
        began = time.monotonic()

        async def work() -> None:
            nonlocal done
            while time.monotonic() < began + seconds:
                await call(body)
                done += BULK if many else 1

        await asyncio.gather(*(work() for _ in range(BULK_CONNECTIONS if many else CONNECTIONS)))
        return done / (time.monotonic() - began)


class BareServer:
    """gRPC's own asyncio server in a process of its own, with a method that does nothing; a context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process = Process(
            python("bench.dapr", str(self.port), "0", "bare"), folder / "log", env=environment(), cwd=folder
        )
        self._process.wait_for_port(self.port)

    def __enter__(self) -> "BareServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()


async def _serve_bare(port: int) -> None:
    import grpc

    async def answer(_request: bytes, _context: object) -> bytes:
        return b""

    class Service(grpc.GenericRpcHandler):  # type: ignore[misc] # the library has no types
        def service(self, _details: object) -> object:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Service(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def redis_burst(folder: Path, count: int) -> float:
    """How long after their instant the last of so many messages is in its Redis stream, in milliseconds."""
    folder.mkdir(parents=True)
    port = free_port()
    server = packages.program("redis-server", "redis-server")
    redis = Process(
        [str(server), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        folder / "redis.log",
    )
    try:
        redis.wait_for_port(port)
        component = folder / "component.yaml"
        component.write_text(_COMPONENT.format(port=port))
        with Door(folder / "door", component) as door:
            due_ms = int(time.time() * 1000) + SETTLE_MS + count * 2
            drive(connect(door.port, BULK_CONNECTIONS), _bulks(count, due_ms), HttpReply)
            return _arrived_ms(port, count) - due_ms
    finally:
        redis.end()


def _bulks(count: int, due_ms: int) -> Iterator[bytes]:
    due = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due_ms // 1000)) + f".{due_ms % 1000:03}Z"
    path = f"/v1.0/publish/bulk/redis/bench?metadata.scheduledSendTime={due}"
    for first in range(0, count, BULK):
        entries = [
            {"entryId": str(n), "event": "x" * PAYLOAD_BYTES, "contentType": "text/plain"}
            for n in range(first, min(first + BULK, count))
        ]
        yield request("POST", path, json.dumps(entries).encode())


def _arrived_ms(port: int, count: int) -> float:
    """When the stream has so many entries: asked every millisecond."""
    (asked,) = connect(port)
    ask = command(b"XLEN", b"bench")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        asked.sendall(ask)
        select.select([asked], [], [])
        if int(asked.recv(RECV_BYTES)[1:]) >= count:
            asked.close()
            return time.time() * 1000
        time.sleep(0.001)
    raise AssertionError("the burst did not arrive in Redis")


if __name__ == "__main__":
    if sys.argv[3] == "bare":
        asyncio.run(_serve_bare(int(sys.argv[1])))
    else:
        print(asyncio.run(_grpc(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "bulk")))
