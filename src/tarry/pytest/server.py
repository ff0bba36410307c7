"""The servers of tests as tests see them: where one listens, its clock, and how it is started and ended."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from tarry.client import Client

ANSWERS_WITHIN_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 1 << 16
_MS: Final = timedelta(milliseconds=1)


class ServerFailed(Exception):
    """The server of a test could not start, has ended, or does not come to rest. The end of its log is in the text."""


class TarryServer:
    """A real server in a process of its own, on free ports of 127.0.0.1, with a new data folder."""

    def __init__(self, control: socket.socket, log: Path) -> None:
        self._control = control
        self._log = log
        control.settimeout(ANSWERS_WITHIN_S)
        ready = self.ask(None)
        self.url: str = ready["url"]
        """The address of the native API."""
        self.doors: list[str] = ready["doors"]
        """The addresses of the other doors that the settings open."""
        self.clock = ServerClock(self)

    @cached_property
    def client(self) -> "Client":
        """A client of this server, closed with it."""
        from tarry.client import Client

        return Client(self.url)

    def drain(self, timeout_s: float = 10.0) -> None:
        """Wait until every entry of every subscription is acknowledged: until the workers have handled all that is due.

        Raises `ServerFailed` with the subscriptions that have more. Delayed entries that are not due are waited for, too.
        """
        self.ask({"do": "drain", "within_s": timeout_s})

    async def drain_async(self, timeout_s: float = 10.0) -> None:
        """`drain`, without holding up the event loop."""
        await asyncio.to_thread(self.drain, timeout_s)

    @property
    def log(self) -> str:
        """The server's log so far, which is its standard error."""
        return self._log.read_text("utf-8", "replace")

    def ask(self, request: Mapping[str, Any] | None) -> dict[str, Any]:
        """Tell the server's process something, and hear its answer; with None, only hear."""
        try:
            if request is not None:
                self._control.sendall(json.dumps(request).encode() + b"\n")
            line = self._control.recv(MAX_ANSWER_BYTES)
        except OSError as error:
            raise ServerFailed(self._told(f"the server does not answer: {error}")) from error
        if not line:
            raise ServerFailed(self._told("the server has ended"))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ServerFailed(self._told(answer["error"]))
        return answer

    def _told(self, what: str) -> str:
        return f"{what}\n{self.log[-4000:]}".rstrip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if "client" in self.__dict__:
            self.client.close()
        # The end of the socket is what the server ends with.
        self._control.close()


class ServerClock:
    """The clock of a test's server: it goes on by itself, and a test moves it ahead."""

    def __init__(self, server: TarryServer) -> None:
        self._server = server

    def now(self) -> datetime:
        """The instant that the server's clock shows."""
        return self._told({"do": "look"})

    def advance(self, by: timedelta | None = None, **parts: float) -> datetime:
        """Let time pass: `advance(days=3)`, by parts of a timedelta or as one. Gives the instant that the clock then shows.

        Whatever is due on the way happens at its instant: when this returns, entries are in their topics, and attempts to send
        have had their verdict. A receiver in the event loop of the test itself needs `advance_async`.
        """
        passed = timedelta(**parts) + (by or timedelta())
        if passed < timedelta():
            raise ValueError("the clock of a server does not go back")
        return self._told({"do": "advance", "ms": -(-passed // _MS)})

    async def advance_async(self, by: timedelta | None = None, **parts: float) -> datetime:
        """`advance`, without holding up the event loop."""
        return await asyncio.to_thread(self.advance, by, **parts)

    def stop(self) -> None:
        """Have the clock stand still: it moves by `advance` alone."""
        self._told({"do": "stop"})

    def start(self) -> None:
        """Have the clock go on by itself again."""
        self._told({"do": "start"})

    def _told(self, request: Mapping[str, Any]) -> datetime:
        now_ms: int = self._server.ask(request)["now_ms"]
        return datetime.fromtimestamp(0, UTC) + now_ms * _MS


class Starter:
    """Starts servers: the process that has imported what they need is started with the first one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None

    def start(self, folder: Path, settings: Mapping[str, Any]) -> TarryServer:
        """Start a server, with its data and its log in a folder; raises `ServerFailed`."""
        log = folder / "tarry.log"
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as written:
            order = {"folder": str(folder), "settings": dict(settings)}
            socket.send_fds(
                self._started(), [json.dumps(order).encode()], [theirs.fileno(), written.fileno()]
            )
        try:
            return TarryServer(ours, log)
        except ServerFailed:
            ours.close()
            raise

    def _started(self) -> socket.socket:
        if find_spec("uvloop") is None:
            raise ServerFailed("the fixture tarry_server needs tarry[server]: pip install 'tarry[server]'")
        if self._orders is None:
            # Each order is one packet.
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tarry.pytest.starter"], stdin=theirs.fileno()
                )
        return self._orders

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._orders is not None and self._process is not None:
            self._orders.close()
            self._process.wait()
