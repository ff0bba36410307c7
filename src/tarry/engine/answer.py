"""An answer that comes later: what every engine operation gives back.

The engine is plain synchronous code on one thread, so that a simulation can drive it step by step;
doors `await` its answers. An answer is settled once, on the engine's thread, after the record
behind it is durable (R2).
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from tarry.core.errors import TarryError

T = TypeVar("T")
U = TypeVar("U")


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

    def completer(self, make: Callable[[], T]) -> Callable[[BaseException | None], None]:
        """A callback that takes an error or None: settles the answer with that error, or with the result of `make`."""

        def told(error: BaseException | None) -> None:
            if error is not None:
                self.fail(error)
                return
            try:
                value = make()
            except TarryError as refusal:
                self.fail(refusal)
            else:
                self.settle(value)

        return told

    def map(self, make: "Callable[[T], U]") -> "Answer[U]":
        """An answer with the value that `make` makes of this one's; errors pass through."""
        answer: Answer[U] = Answer()
        told = answer.completer(lambda: make(self.value()))
        self.then(lambda _: told(self._error))
        return answer

    def and_then(self, by: "Callable[[T], Answer[U]]") -> "Answer[U]":
        """An answer that adopts the outcome of `by(value)`; errors pass through."""
        answer: Answer[U] = Answer()

        def came(_: Answer[T]) -> None:
            if self._error is not None:
                answer.fail(self._error)
            else:
                _adopt(answer, by, self.value())

        self.then(came)
        return answer

    def or_else(self, by: "Callable[[TarryError], Answer[T]]") -> "Answer[T]":
        """An answer that adopts the outcome of `by(error)` where this one is a refusal; all else passes through."""
        answer: Answer[T] = Answer()

        def came(_: Answer[T]) -> None:
            if isinstance(self._error, TarryError):
                _adopt(answer, by, self._error)
            else:
                self.forward_to(answer)

        self.then(came)
        return answer

    def forward_to(self, to: "Answer[T]") -> None:
        """Give another answer what this one comes to."""
        told = to.completer(self.value)
        self.then(lambda _: told(self._error))

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


def _adopt(answer: Answer[U], by: "Callable[[T], Answer[U]]", of: T) -> None:
    """Give an answer what `by` makes of something, or its refusal."""
    try:
        outcome = by(of)
    except TarryError as refusal:
        answer.fail(refusal)
    else:
        outcome.forward_to(answer)


def settled(value: T) -> Answer[T]:
    """An answer that is there already."""
    answer: Answer[T] = Answer()
    answer.settle(value)
    return answer


def all_of(answers: Sequence[Answer[T]]) -> Answer[Sequence[Answer[T]]]:
    """An answer that holds other answers, once the last one is settled."""
    result: Answer[Sequence[Answer[T]]] = Answer()
    missing = len(answers) + 1

    def came(_: Answer[T] | None) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            result.settle(answers)

    for answer in answers:
        answer.then(came)
    came(None)
    return result


def failed(error: BaseException) -> Answer[Any]:
    """A refusal that is there already."""
    answer: Answer[Any] = Answer()
    answer.fail(error)
    return answer
