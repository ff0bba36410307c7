"""An answer that comes later: what every engine operation gives back.

The engine is plain synchronous code on one thread, so that a simulation can drive it step by step;
doors `await` its answers. An answer is settled once, on the engine's thread, after the record
behind it is durable (R2).
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Answer(Generic[T]):
    """A value or an error that is settled once."""

    __slots__ = ("_callbacks", "_error", "_settled", "_value")

    def __init__(self) -> None:
        self._settled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Answer[T]], None]] = []

    @property
    def settled(self) -> bool:
        """Whether it has come."""
        return self._settled

    def value(self) -> T:
        """The value; raises the error if it is one. Only once settled."""
        if not self._settled:
            raise RuntimeError("the answer has not come yet")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def error(self) -> BaseException | None:
        """The error, if it is one. Only once settled."""
        return self._error

    def settle(self, value: T) -> None:
        """Give the value."""
        self._value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        """Give an error instead."""
        self._error = error
        self._finish()

    def then(self, callback: "Callable[[Answer[T]], None]") -> None:
        """Call back with this answer once it is settled; at once if it is."""
        if self._settled:
            callback(self)
        else:
            self._callbacks.append(callback)

    def pass_on(self, to: "Answer[T]") -> None:
        """Give another answer what this one comes to."""

        def passed(_: "Answer[T]") -> None:
            if self._error is None:
                to.settle(self._value)  # type: ignore[arg-type]
            else:
                to.fail(self._error)

        self.then(passed)

    def _finish(self) -> None:
        if self._settled:
            raise RuntimeError("an answer is settled once")
        self._settled = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._settled:
            future = asyncio.get_running_loop().create_future()
            self.then(lambda _: None if future.done() else future.set_result(None))
            yield from future
        return self.value()


def settled(value: T) -> Answer[T]:
    """An answer that is there already."""
    answer: Answer[T] = Answer()
    answer.settle(value)
    return answer


def failed(error: BaseException) -> Answer[Any]:
    """A refusal that is there already."""
    answer: Answer[Any] = Answer()
    answer.fail(error)
    return answer
