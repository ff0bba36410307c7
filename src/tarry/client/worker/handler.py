"""One function of a worker: its topic, its rules, and the way to call it."""

import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from tarry.client.consuming import Entry
from tarry.client.worker.payloads import Read, reader_of
from tarry.client.worker.retrying import RetryTopics

Function = Callable[..., Any]
"""A function or a coroutine function."""


@dataclass(frozen=True)
class Delivery:
    """One attempt to handle an entry, as middleware sees it; a function gets it as a parameter with this annotation."""

    topic: str
    """The topic that the function is for; an entry that waited for another attempt came from its retry topic."""
    subscription: str
    entry: Entry
    attempt: int
    """From 1 on."""
    attempts: int
    """How many there are before it becomes a dead letter."""


Next = Callable[[Delivery], Awaitable[Any]]
Middleware = Callable[[Delivery, Next], Awaitable[Any]]
"""A coroutine function around each attempt: it awaits the next one, does what it likes before and after, and may raise."""


@dataclass(frozen=True)
class Handler:
    """A function with its topic and its rules."""

    function: Function
    route: RetryTopics
    concurrency: int
    retries: int
    wait_ms: Callable[[int, str], int]
    timeout_s: float | None
    start: Literal["earliest", "latest"]
    call: "Invocation"

    @property
    def name(self) -> str:
        """The function's name, for logs."""
        return getattr(self.function, "__qualname__", repr(self.function))


class Invocation:
    """Calls a function with what its signature asks for."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - whether it can be called is known
        )
        self._payload: str | None = None
        self._read: Read = reader_of(bytes)
        self._delivery: str | None = None
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            self._take(parameter)

    def _take(self, parameter: inspect.Parameter) -> None:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"a worker calls by name, and cannot give {parameter}")
        if parameter.annotation is Delivery:
            self._delivery = parameter.name
        elif self._payload is None:
            self._payload = parameter.name
            self._read = reader_of(parameter.annotation)
        elif parameter.default is parameter.empty:
            raise TypeError(
                f"{parameter.name}: a worker's function takes the payload, and a parameter annotated with Delivery"
            )

    def arguments(self, delivery: Delivery) -> dict[str, Any]:
        """The arguments for one attempt; raises `BadPayload`."""
        given: dict[str, Any] = {}
        if self._payload is not None:
            given[self._payload] = self._read(delivery.entry.payload)
        if self._delivery is not None:
            given[self._delivery] = delivery
        return given

    def bound(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """The function with its arguments, in the present context, for a thread to call."""
        return functools.partial(contextvars.copy_context().run, self._function, **arguments)

    async def awaited(self, arguments: dict[str, Any]) -> Any:
        """Call a coroutine function."""
        return await self._function(**arguments)
