"""The load: many connections in one closed loop. Each sends its next request when its reply is complete.

One loop drives every server, ours and the peers', with requests that are built ahead, so that what differs
between two rows is the server. It runs in a process of its own (the servers are others) and costs about ten
microseconds a request; `machine.py` measures how far it reaches before it is itself the bound.
"""

import gc
import math
import select
import socket
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol

RECV_BYTES = 1 << 18


class Reply(Protocol):
    """Recognises the end of a reply."""

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether the reply is complete now. Raises `Refused` if it is not what was wanted."""
        ...


class Refused(Exception):
    """A server answered something else than that it has done what was asked."""


@dataclass(frozen=True)
class Loaded:
    """The outcome of a load."""

    replies: int
    seconds: float
    latencies_ns: "array[int]"

    @property
    def per_s(self) -> float:
        """Replies a second."""
        return self.replies / self.seconds


class _Lane:
    """One connection and what is under way on it."""

    __slots__ = ("began_ns", "reply", "requests", "rest", "socket")

    def __init__(self, connected: socket.socket, requests: Iterator[bytes], reply: Reply) -> None:
        self.socket = connected
        self.requests = requests
        self.reply = reply
        self.rest: memoryview | None = None
        self.began_ns = 0

    def begin(self, request: bytes, poll: select.epoll) -> None:
        """Send a request, as far as the socket takes it now."""
        self.began_ns = perf_counter_ns()
        sent = self.socket.send(request)
        if sent < len(request):
            self.rest = memoryview(request)[sent:]
            poll.modify(self.socket, select.EPOLLIN | select.EPOLLOUT)

    def go_on(self, poll: select.epoll) -> None:
        """Send more of a long request."""
        assert self.rest is not None
        self.rest = self.rest[self.socket.send(self.rest) :]
        if not self.rest:
            self.rest = None
            poll.modify(self.socket, select.EPOLLIN)


def connect(port: int, count: int = 1) -> list[socket.socket]:
    """Open connections to a server on this machine."""
    sockets = []
    for _ in range(count):
        connected = socket.create_connection(("127.0.0.1", port), timeout=60)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.append(connected)
    return sockets


def drive(
    sockets: Sequence[socket.socket],
    requests: Iterator[bytes] | Sequence[Iterator[bytes]],
    make_reply: Callable[[], Reply],
    seconds: float = math.inf,
) -> Loaded:
    """Send for so long, or until there are no more requests; wait for every reply. Closes the sockets.

    A request goes to whichever connection is free; where it names its connection, each has a sequence of its own.
    """
    latencies = array("q")
    each = requests if isinstance(requests, Sequence) else [requests] * len(sockets)
    gc.disable()
    try:
        with select.epoll() as poll:
            lanes: dict[int, _Lane] = {}
            for connected, own in zip(sockets, each, strict=True):
                connected.setblocking(False)
                lanes[connected.fileno()] = _Lane(connected, own, make_reply())
                poll.register(connected, select.EPOLLIN)
            began_ns = perf_counter_ns()
            _run(poll, lanes, began_ns + seconds * 1e9, latencies)
            took_s = (perf_counter_ns() - began_ns) / 1e9
    finally:
        gc.enable()
        for connected in sockets:
            connected.close()
    return Loaded(len(latencies), took_s, latencies)


def _run(
    poll: select.epoll,
    lanes: dict[int, _Lane],
    until_ns: float,
    latencies: "array[int]",
) -> None:
    busy = 0
    for lane in lanes.values():
        request = next(lane.requests, None)
        if request is not None:
            lane.begin(request, poll)
            busy += 1
    while busy:
        for number, event in poll.poll():
            lane = lanes[number]
            if event & select.EPOLLOUT and lane.rest is not None:
                lane.go_on(poll)
            if not event & select.EPOLLIN:
                continue
            data = lane.socket.recv(RECV_BYTES)
            if not data:
                raise Refused("the server closed a connection")
            if not lane.reply.feed(data):
                continue
            now_ns = perf_counter_ns()
            latencies.append(now_ns - lane.began_ns)
            request = next(lane.requests, None) if now_ns < until_ns else None
            if request is None:
                busy -= 1
            else:
                lane.begin(request, poll)
