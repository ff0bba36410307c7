"""Broken connections, against a real socket that misbehaves on purpose."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import uvloop

from tarry import AsyncClient, Client
from tarry.client import Unreachable
from tarry.client.blocking import _has_ended
from tarry.client.call import ClientCall
from tarry.client.connections import Connections
from tarry.core.errors import NotFound
from tests.processes import free_port
from tests.waiting import until

WITHIN_S = 30
OK = b'{"id": "i", "due_at_ms": 1, "past_due": false}'


class Script:
    """Accepts connections and does with each request what the script says, in order."""

    def __init__(self, *steps: str) -> None:
        self._steps = list(steps)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.let_go = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._steps:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(ConnectionError):
                self._speak(connection)

    def _speak(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as reader:
            while self._steps:
                line = reader.readline()
                if not line:
                    return
                headers = dict(_headers(reader.readline))
                body = reader.read(int(headers.get("content-length", 0)))
                self.requests.append((line.decode().strip(), headers, body))
                step = self._steps.pop(0)
                if step == "break":
                    return
                if step == "hold":
                    self.let_go.wait(WITHIN_S)
                if step.startswith("events"):
                    events = [
                        b'data: {"entry_id":%d,"payload":"p"}\n\n' % int(one) for one in step.split()[1:]
                    ]
                    connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"".join(events))
                    return
                status, text = (
                    ("404 Not Found", b'{"code": "not-found", "detail": "none"}')
                    if step == "none"
                    else ("201 Created", OK)
                )
                close = b"connection: close\r\n" if step == "close" else b""
                connection.sendall(
                    b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b"
                    % (status.encode(), len(text), close, text)
                )
                if step in ("close", "drop"):
                    return

    def close(self) -> None:
        self._steps.clear()
        self._socket.close()


def _headers(readline: Callable[[], bytes]) -> Iterator[tuple[str, str]]:
    while (line := readline().strip()) != b"":
        name, _, value = line.decode().partition(": ")
        yield name.lower(), value


def test_a_schedule_is_repeated_with_the_same_key_after_a_break() -> None:
    with closing(Script("break", "break", "ok")) as script, Client(script.url) as client:
        assert client.schedule("d", "p", delay_ms=1).id == "i"
    keys = {headers["idempotency-key"] for _, headers, _ in script.requests}
    assert len(script.requests) == 3
    assert len(keys) == 1
    assert json.loads(script.requests[0][2]) == {"destination": "d", "payload": "p", "delay_ms": 1}


def test_a_publish_is_not_repeated() -> None:
    with (
        closing(Script("break", "ok")) as script,
        Client(script.url) as client,
        pytest.raises(Unreachable, match="no answer from"),
    ):
        client.publish("t", "p")
    assert len(script.requests) == 1


def test_connections_are_kept_and_a_closed_one_is_noticed() -> None:
    with closing(Script("ok", "ok", "drop", "ok", "close", "ok")) as script, Client(script.url) as client:
        for _ in range(3):
            client.schedule("d")
        # The server has closed it since: what cannot be repeated must not be sent into it.
        while not client._idle or not _has_ended(client._idle[0]):
            pass
        assert client.run(ClientCall("POST", "/x", lambda answered: answered.status)) == 201
        client.schedule("d")
        client.schedule("d")
    assert script.connections == 3
    assert len(script.requests) == 6


def test_nobody_there_is_told_with_what_to_do() -> None:
    port = free_port()
    with (
        Client(f"http://127.0.0.1:{port}", retry_for_s=0.1) as client,
        pytest.raises(Unreachable, match=r"no answer from .*Connection refused; is the server running\?"),
    ):
        client.publish("t")
    with pytest.raises(Unreachable):
        Client(f"http://127.0.0.1:{port}", retry_for_s=0).status()


def test_a_server_that_comes_later_is_waited_for() -> None:
    address = ("127.0.0.1", free_port())

    def late() -> None:
        with socket.create_server(address) as listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(OK), OK))
            connection.recv(1)

    timer = threading.Timer(0.2, late)
    timer.start()
    # Even what cannot be repeated: a connection that was never made has done nothing.
    with Client(f"http://127.0.0.1:{address[1]}") as client:
        call = ClientCall("POST", "/x", lambda answered: answered.status)
        assert not call.repeatable
        assert client.run(call) == 200
    timer.join()


def test_errors_come_as_the_servers_own() -> None:
    with (
        closing(Script("none")) as script,
        Client(script.url) as client,
        pytest.raises(NotFound, match="none"),
    ):
        client.get("i")


def test_a_token_and_a_prefix_are_sent() -> None:
    with closing(Script("ok")) as script, Client(script.url + "/base/", "secret") as client:
        client.schedule("d")
    line, headers, _ = script.requests[0]
    assert line == "POST /base/v1/messages HTTP/1.1"
    assert headers["authorization"] == "Bearer secret"
    assert headers["content-type"] == "application/json"


async def test_the_async_client_repeats_in_the_same_way() -> None:
    with closing(Script("break", "ok")) as script:
        async with AsyncClient(script.url) as client:
            assert (await client.schedule("d", delay_ms=1)).id == "i"
        assert len({headers["idempotency-key"] for _, headers, _ in script.requests}) == 1
        assert len(script.requests) == 2
    with closing(Script("break", "ok")) as script:
        async with AsyncClient(script.url) as client:
            with pytest.raises(Unreachable, match="no answer from"):
                await client.publish("t", "p")
        assert len(script.requests) == 1
    with closing(Script("none")) as script:
        async with AsyncClient(script.url, "secret") as client:
            with pytest.raises(NotFound, match="none"):
                await client.get("a b")
        line, headers, _ = script.requests[0]
        assert line == "GET /v1/messages/a%20b HTTP/1.1"
        assert headers["authorization"] == "Bearer secret"


async def test_the_async_client_tells_that_nobody_is_there() -> None:
    port = free_port()
    async with AsyncClient(f"http://127.0.0.1:{port}", retry_for_s=0.1) as client:
        with pytest.raises(Unreachable, match="is the server running"):
            await client.status()


def test_the_async_client_runs_on_another_event_loop() -> None:
    """Uvicorn's, for one, whose transports are no subclasses of asyncio's."""

    async def schedule(url: str) -> str:
        async with AsyncClient(url, retry_for_s=0) as client:
            return (await client.schedule("d", delay_ms=1)).id

    with closing(Script("ok")) as script, closing(uvloop.new_event_loop()) as loop:
        assert loop.run_until_complete(schedule(script.url)) == "i"


async def test_a_cancelled_request_takes_its_connection_along() -> None:
    """The answer that comes late is for nobody: on a kept connection the next request would get it."""
    with closing(Script("hold", "none")) as script:
        async with AsyncClient(script.url, retry_for_s=0) as client:
            held = asyncio.create_task(client.publish("t", "p"))
            await until(lambda: script.requests)
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
            script.let_go.set()
            with pytest.raises(NotFound):
                await client.publish("t", "p")
        assert script.connections == 2


async def test_a_place_is_free_again_when_no_connection_can_be_made() -> None:
    connections = Connections("127.0.0.1", free_port(), None, limit=1)
    for _ in range(2):
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(ConnectionRefusedError):
                await connections.take(WITHIN_S)


async def test_an_entry_that_is_in_the_programs_hands_is_not_given_to_it_again() -> None:
    """The server gives it again to the next stream, because the one before has ended."""
    with closing(Script("events 1", "events 1 2")) as script:
        async with AsyncClient(script.url, retry_for_s=0) as client:
            got = []
            async for entry in client.consume("t", "s"):
                got.append(entry.entry_id)
                if entry.entry_id == 2:
                    break
    assert got == [1, 2]
