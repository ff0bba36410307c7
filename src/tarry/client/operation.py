"""Makes one description of an operation a method of both clients: plain in one, awaited in the other.

So there is one signature and one docstring, and the two clients cannot drift apart.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from tarry.client import batches, bulk, operations
from tarry.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Carries a call out and waits for it."""

    def run(self, call: Call[T]) -> T:
        """Send it, and read what comes back."""
        raise NotImplementedError


class Awaiting:
    """Carries a call out without blocking the loop."""

    async def run(self, call: Call[T]) -> T:
        """Send it, and read what comes back."""
        raise NotImplementedError


class Operation(Generic[P, T]):
    """A method that makes a call and carries it out in its client's way."""

    def __init__(self, describe: Callable[P, Call[T]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Blocking | Awaiting | None, owner: type) -> Any:
        """The method, bound to a client."""
        if client is None:
            return self

        @functools.wraps(self._describe)
        def operate(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(self._describe(*args, **kwargs))

        return operate


class Operations:
    """The operations of both clients, one request each."""

    schedule = Operation(operations.schedule)
    get = Operation(operations.get)
    cancel = Operation(operations.cancel)
    send = Operation(operations.send)
    restart = Operation(operations.restart)
    list_page = Operation(operations.list_page)
    schedule_arrow = Operation(batches.schedule_stream)
    place_of_batch = Operation(bulk.place_of_batch)
    adopt_batch = Operation(bulk.adopt_batch)
    batch = Operation(bulk.batch)
    batches = Operation(bulk.batches)
    cancel_batch = Operation(bulk.cancel_batch)
    publish = Operation(operations.publish)
    topics = Operation(operations.topics)
    create_topic = Operation(operations.create_topic)
    delete_topic = Operation(operations.delete_topic)
    topic_stats = Operation(operations.topic_stats)
    delayed_page = Operation(operations.delayed_page)
    get_delayed = Operation(operations.get_delayed)
    cancel_delayed = Operation(operations.cancel_delayed)
    restart_delayed = Operation(operations.restart_delayed)
    subscribe = Operation(operations.subscribe)
    unsubscribe = Operation(operations.unsubscribe)
    receive = Operation(operations.receive)
    ack = Operation(operations.ack)
    nack = Operation(operations.nack)
    seek = Operation(operations.seek)
    policy = Operation(operations.policy)
    set_policy = Operation(operations.set_policy)
    remove_policy = Operation(operations.remove_policy)
    status = Operation(operations.status)
    ready = Operation(operations.ready)
    warnings = Operation(operations.warnings)
