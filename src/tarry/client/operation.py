"""Makes one description of an operation a method of both clients: plain in one, awaited in the other.

So there is one signature and one docstring, and the two clients cannot drift apart.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from tarry.client import batches, bulk, operations
from tarry.client.call import ClientCall

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Carries a call out and waits for it."""

    def run(self, call: ClientCall[T]) -> T:
        """Send it, and read what comes back."""
        raise NotImplementedError


class Awaiting:
    """Carries a call out without blocking the loop."""

    async def run(self, call: ClientCall[T]) -> T:
        """Send it, and read what comes back."""
        raise NotImplementedError


class ClientOperation(Generic[P, T]):
    """A method that makes a call and carries it out in its client's way."""

    def __init__(self, describe: Callable[P, ClientCall[T]]) -> None:
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

    schedule = ClientOperation(operations.schedule)
    get = ClientOperation(operations.get)
    cancel = ClientOperation(operations.cancel)
    send = ClientOperation(operations.send)
    restart = ClientOperation(operations.restart)
    list_page = ClientOperation(operations.list_page)
    schedule_arrow = ClientOperation(batches.schedule_stream)
    place_of_batch = ClientOperation(bulk.place_of_batch)
    adopt_batch = ClientOperation(bulk.adopt_batch)
    batch = ClientOperation(bulk.batch)
    batches = ClientOperation(bulk.batches)
    cancel_batch = ClientOperation(bulk.cancel_batch)
    publish = ClientOperation(operations.publish)
    topics = ClientOperation(operations.topics)
    create_topic = ClientOperation(operations.create_topic)
    delete_topic = ClientOperation(operations.delete_topic)
    topic_stats = ClientOperation(operations.topic_stats)
    delayed_page = ClientOperation(operations.delayed_page)
    get_delayed = ClientOperation(operations.get_delayed)
    cancel_delayed = ClientOperation(operations.cancel_delayed)
    restart_delayed = ClientOperation(operations.restart_delayed)
    subscribe = ClientOperation(operations.subscribe)
    unsubscribe = ClientOperation(operations.unsubscribe)
    receive = ClientOperation(operations.receive)
    ack = ClientOperation(operations.ack)
    nack = ClientOperation(operations.nack)
    seek = ClientOperation(operations.seek)
    policy = ClientOperation(operations.policy)
    set_policy = ClientOperation(operations.set_policy)
    remove_policy = ClientOperation(operations.remove_policy)
    status = ClientOperation(operations.status)
    ready = ClientOperation(operations.ready)
    warnings = ClientOperation(operations.warnings)
