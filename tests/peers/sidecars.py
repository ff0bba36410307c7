"""A real daprd and Tarry's Dapr door beside each other on one broker: each with an application, publishes and arrivals.

Both have components of the same name for the same broker; their applications have different ids, so that each gets every
message, through its own sidecar.
"""

import http.client
import json
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tests.processes import free_port

PUBSUB: Final = "pubsub"
READY_WITHIN_S: Final = 120
ARRIVES_WITHIN_S: Final = 60


class Arrival(Struct, frozen=True):
    """One event as an application got it."""

    at_s: float
    path: str
    headers: dict[str, str]
    event: dict[str, Any]


class Application:
    """An application that subscribes to topics and keeps what it is given."""

    def __init__(self, subscriptions: Sequence[Mapping[str, Any]]) -> None:
        self._arrived = threading.Condition()
        self._got: list[Arrival] = []
        application = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = self.path == "/dapr/subscribe"
                self._answer(200 if found else 404, json.dumps(subscriptions if found else []).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                application._take(Arrival(time.time(), self.path, headers, json.loads(body)))
                self._answer(200, b"{}")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, arrival: Arrival) -> None:
        with self._arrived:
            self._got.append(arrival)
            self._arrived.notify_all()

    def wait_for(self, mark: str, count: int = 1, within_s: float = ARRIVES_WITHIN_S) -> list[Arrival]:
        """The arrivals that carry a mark, once there are so many; fewer if they do not come in time."""

        def found() -> list[Arrival]:
            return [
                one for one in self._got if one.headers.get("mark") == mark or mark in json.dumps(one.event)
            ]

        with self._arrived:
            self._arrived.wait_for(lambda: len(found()) >= count, within_s)
            return found()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


class Sidecar:
    """A sidecar's process, started by flags that daprd has, and its HTTP API."""

    def __init__(self, program: Path, app_id: str, app_port: int, resources: Path, log: Path) -> None:
        self.app_id = app_id
        self.port = free_port()
        self._log = log
        ports = {name: free_port() for name in ("dapr-grpc-port", "dapr-internal-grpc-port", "metrics-port")}
        flags = {
            "app-id": app_id, "app-port": app_port, "app-protocol": "http", "dapr-http-port": self.port,
            "resources-path": resources, "config": resources / "configuration.yaml", "mode": "standalone", "enable-mtls": "false",
            "dapr-listen-addresses": "127.0.0.1", "dapr-internal-grpc-listen-address": "127.0.0.1",
            "metrics-listen-address": "127.0.0.1", **ports,
        }  # fmt: skip
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(program), *(f"--{name}={value}" for name, value in flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        """Wait until its application's subscriptions are made."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                if self._ask("GET", "/v1.0/healthz")[0] == 204:
                    return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.app_id} is not ready: {self.said()}")
            time.sleep(0.1)

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    def publish(
        self, topic: str, body: bytes, headers: Mapping[str, str], *, bulk: bool = False, **metadata: str
    ) -> None:
        """Publish; raises `RuntimeError` unless that is accepted."""
        query = urllib.parse.urlencode({f"metadata.{name}": value for name, value in metadata.items()})
        path = f"/v1.0/publish/{'bulk/' if bulk else ''}{PUBSUB}/{topic}?{query}"
        status, said = self._ask("POST", path, body, headers)
        if status != 204:
            raise RuntimeError(f"{self.app_id} answered {status} to a publish: {said!r}")

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        """SIGTERM, and a while to obey."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pair(Struct, frozen=True):
    """Both sides: sidecars and applications by the name of the side."""

    sidecars: dict[str, Sidecar]
    applications: dict[str, Application]


@contextmanager
def beside(
    programs: Mapping[str, Path], resources: Path, subscriptions: Sequence[Mapping[str, Any]], logs: Path
) -> Iterator[Pair]:
    """Sidecars that are ready, one for each program, whose applications subscribe so."""
    applications = {name: Application(subscriptions) for name in programs}
    sidecars: dict[str, Sidecar] = {}
    try:
        for name, program in programs.items():
            port = applications[name].port
            sidecars[name] = Sidecar(program, name, port, resources, logs / f"{name}.log")
        for sidecar in sidecars.values():
            sidecar.wait_ready()
        yield Pair(sidecars, applications)
    finally:
        for sidecar in sidecars.values():
            sidecar.stop()
        for application in applications.values():
            application.close()
