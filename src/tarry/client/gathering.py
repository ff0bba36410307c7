"""Concurrent calls gathered into requests of many lines: each call keeps its own answer, order and error.

A call that comes while nothing is under way goes alone, and at once. Those that come while requests are under way
wait for one of them, and then go together, a line each; so a busy client sends few large requests, and a quiet
one loses no time. Lines are answered as they become durable, and an answer goes to its call when it arrives: those to schedules in order, those to
cancels with the number of their line.

This module has no I/O of its own: both clients send the requests that it makes.
"""

import secrets
from collections import deque
from typing import Any, Final, Generic, TypeVar

from tarry.client.call import NDJSON, ClientCall, Line, ServerAnswer, Unreachable, check
from tarry.core.errors import TarryError

T = TypeVar("T")

MAX_LINES: Final = 1024
MIN_LINES: Final = 16
"""Fewer than these are not spread over several requests."""
MAX_BYTES: Final = 1 << 20
UNDER_WAY: Final = 2
"""Requests of many lines at a time: one is answered while the next one is written."""


class Gathered(Generic[T]):
    """One gathered call, and the caller that waits for its answer."""

    def __init__(self, call: ClientCall[T], line: Line[T]) -> None:
        self.call = call
        self.line = line

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits; a call that was given up before it was sent is not sent."""
        return True

    def settle(self, outcome: T | TarryError) -> None:
        """Give the outcome to the caller."""
        raise NotImplementedError


class SharedRequest:
    """Calls that go in one request, and the reading of its answer."""

    def __init__(self, gathered: list[Gathered[Any]]) -> None:
        self.gathered = gathered
        self._line = gathered[0].line
        self._open = dict(enumerate(gathered, 1))
        """By the number of its line: the calls that have no answer yet."""
        self._rest = b""
        self._next = 1

    def request(self, *, keyed: bool) -> ClientCall[None]:
        """The request; with a key it can be sent again after a broken connection, and does nothing twice."""
        body = b"".join([one.line.json + b"\n" for one in self.gathered])
        keyed = keyed and self._line.takes_key
        headers = {"idempotency-key": secrets.token_urlsafe(18)} if keyed else {}
        return ClientCall("POST", self._line.path, check, body, NDJSON, headers, repeatable=keyed)

    def begin(self) -> None:
        """The answer begins, perhaps once more."""
        self._rest, self._next = b"", 1

    def feed(self, piece: ServerAnswer) -> None:
        """Give the answers in this piece to their calls."""
        check(piece)
        *lines, self._rest = (self._rest + piece.body).split(b"\n")
        for text in lines:
            number, outcome = self._line.read(text, self._next)
            self._next += 1
            if (gathered := self._open.pop(number, None)) is not None:
                gathered.settle(outcome)

    def read(self, answered: ServerAnswer) -> None:
        """Read an answer that has come as a whole."""
        self.begin()
        self.feed(answered)
        self.finish()

    def fail(self, error: TarryError) -> None:
        """Tell the calls that have no answer why."""
        for gathered in self._open.values():
            gathered.settle(error)
        self._open.clear()

    def finish(self) -> None:
        """The answer has ended."""
        if self._open:
            self.fail(Unreachable("the answer broke off before this call; it may or may not have been done"))


class Queue:
    """Calls of one kind that wait to be gathered."""

    def __init__(self) -> None:
        self.waiting: deque[Gathered[Any]] = deque()
        self.under_way = 0
        """Requests that have no whole answer yet."""

    @property
    def is_idle(self) -> bool:
        """Whether a call may go alone, and at once."""
        return not self.under_way and not self.waiting

    def add(self, gathered: Gathered[Any]) -> None:
        """Have a call wait."""
        self.waiting.append(gathered)

    def take(self) -> SharedRequest | None:
        """The next calls to send together; None if there are none, or as many requests as may be are under way."""
        places = UNDER_WAY - self.under_way
        if places <= 0 or not self.waiting:
            return None
        count = min(MAX_LINES, max(MIN_LINES, -(-len(self.waiting) // places)))
        taken: list[Gathered[Any]] = []
        size = 0
        while self.waiting and len(taken) < count:
            size += len(self.waiting[0].line.json)
            if taken and size > MAX_BYTES:
                break
            gathered = self.waiting.popleft()
            if gathered.is_wanted:
                taken.append(gathered)
        if not taken:
            return None
        self.under_way += 1
        return SharedRequest(taken)
