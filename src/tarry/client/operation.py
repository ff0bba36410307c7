"""Makes one description of an operation a method of both clients: plain in `Client`, a coroutine in `AsyncClient`.

So there is one signature and one docstring, and the two clients cannot drift apart. At run time each client class has
real functions, with the signature that `help`, `inspect` and editors show; for type checkers the description says it.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_args, overload

from tarry.client import batches, bulk, commands, operations, pauses, repeats
from tarry.client.call import ClientCall, ServerAnswer

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Carries a call out and waits for it."""

    def run(self, call: ClientCall[T]) -> T:
        """Send a call and read its answer."""
        raise NotImplementedError


class Awaiting:
    """Carries a call out without blocking the loop."""

    def run(self, call: ClientCall[T]) -> Awaitable[T]:
        """Send a call and read its answer."""
        raise NotImplementedError

    def _pieces(self, call: ClientCall[Any], timeout_s: float) -> AsyncGenerator[ServerAnswer, None]:
        """Send a call once, and give its answer in pieces as they come, with at most the timeout between two pieces."""
        raise NotImplementedError


class ClientOperation(Generic[P, T]):
    """An operation that becomes a method of each client."""

    def __init__(self, describe: Callable[P, ClientCall[T]]) -> None:
        self._describe = describe

    @overload
    def __get__(self, client: None, owner: type[Blocking]) -> Callable[Concatenate[Blocking, P], T]: ...
    @overload
    def __get__(
        self, client: None, owner: type[Awaiting]
    ) -> Callable[Concatenate[Awaiting, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: object, owner: type) -> Any:
        """Raise: `Operations` has put a function in its place, in every class that is a client."""
        raise TypeError(f"{owner.__name__} is no client")

    def method(self, name: str, owner: type) -> Callable[..., Any]:
        """The operation as a function of a client class."""
        describe = self._describe

        def wait(client: Blocking, *args: P.args, **kwargs: P.kwargs) -> T:
            return client.run(describe(*args, **kwargs))

        async def awaited(client: Awaiting, *args: P.args, **kwargs: P.kwargs) -> T:
            return await client.run(describe(*args, **kwargs))

        operate: Any = wait if issubclass(owner, Blocking) else awaited
        described = inspect.signature(describe)
        (result,) = get_args(described.return_annotation)
        returns = None if result is type(None) else result
        self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = described.replace(
            parameters=[self_, *described.parameters.values()], return_annotation=returns
        )
        operate.__signature__ = signature
        operate.__annotations__ = {**describe.__annotations__, "return": returns}
        operate.__doc__ = describe.__doc__
        operate.__name__, operate.__qualname__ = name, f"{owner.__qualname__}.{name}"
        operate.__module__ = owner.__module__
        return cast("Callable[..., Any]", operate)


class Operations:
    """The operations of both clients, one request each."""

    schedule = ClientOperation(operations.schedule)
    get = ClientOperation(operations.get)
    cancel = ClientOperation(operations.cancel)
    send = ClientOperation(operations.send)
    restart = ClientOperation(operations.restart)
    retry = ClientOperation(operations.retry)
    pause = ClientOperation(pauses.pause)
    resume = ClientOperation(pauses.resume)
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
    set_repeat = ClientOperation(repeats.set_repeat)
    get_repeat = ClientOperation(repeats.get_repeat)
    repeats_page = ClientOperation(repeats.repeats_page)
    pause_repeat = ClientOperation(repeats.pause_repeat)
    resume_repeat = ClientOperation(repeats.resume_repeat)
    remove_repeat = ClientOperation(repeats.remove_repeat)
    ask_command = ClientOperation(commands.ask_command)
    get_command = ClientOperation(commands.get_command)
    confirm_command = ClientOperation(commands.confirm_command)
    stop_command = ClientOperation(commands.stop_command)
    commands = ClientOperation(commands.commands)
    pause_place = ClientOperation(pauses.pause_place)
    resume_place = ClientOperation(pauses.resume_place)
    pauses = ClientOperation(pauses.pauses)
    policy = ClientOperation(operations.policy)
    set_policy = ClientOperation(operations.set_policy)
    update_policy = ClientOperation(operations.update_policy)
    remove_policy = ClientOperation(operations.remove_policy)
    status = ClientOperation(operations.status)
    ready = ClientOperation(operations.ready)
    warnings = ClientOperation(operations.warnings)

    def __init_subclass__(cls) -> None:
        """Give a client class its methods."""
        super().__init_subclass__()
        for name, operation in vars(Operations).items():
            if isinstance(operation, ClientOperation):
                setattr(cls, name, operation.method(name, cls))
