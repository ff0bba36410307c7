"""The load balancer of these tests sends nobody to a server that is not ready."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.cluster.balancer import Backend, Balancer
from tests.cluster.links import Network
from tests.waiting import wait_until


class Stub:
    """A server that says whether it is ready, and on another port its name."""

    def __init__(self, name: bytes, *, ready: bool) -> None:
        self.ready = ready
        stub = self

        class Health(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200 if stub.ready else 503)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.health = ThreadingHTTPServer(("127.0.0.1", 0), Health)
        self.door = socket.create_server(("127.0.0.1", 0))
        self._name = name
        self._greeted: list[socket.socket] = []
        threading.Thread(target=self.health.serve_forever, daemon=True).start()
        threading.Thread(target=self._greet, daemon=True).start()

    @property
    def backend(self) -> Backend:
        return Backend(self.health.server_address[1], {"door": self.door.getsockname()[1]})

    def _greet(self) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            self._greeted.append(connection)
            connection.sendall(self._name)

    def close(self) -> None:
        self.health.shutdown()
        self.health.server_close()
        self.door.shutdown(socket.SHUT_RDWR)
        for one in (self.door, *self._greeted):
            one.close()


@pytest.fixture
def stubs() -> Iterator[tuple[Stub, Stub]]:
    made = Stub(b"a", ready=True), Stub(b"b", ready=False)
    yield made
    for one in made:
        one.close()


def _connect(balancer: Balancer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", balancer.port("door")))
    connection.settimeout(10)
    return connection


def test_connections_go_where_it_is_ready_and_move_with_it(stubs: tuple[Stub, Stub]) -> None:
    first, second = stubs
    with Network() as network:
        balancer = Balancer(network, [stub.backend for stub in stubs])
        with _connect(balancer) as connection:
            assert connection.recv(1) == b"a"
            first.ready = False
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with _connect(balancer) as waiting:
            waiting.settimeout(0.3)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            waiting.settimeout(10)
            second.ready = True
            assert waiting.recv(1) == b"b"
        wait_until(lambda: balancer.ready == {1})
