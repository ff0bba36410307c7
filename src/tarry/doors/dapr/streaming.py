"""Streaming subscriptions: an application that opens a stream and receives a topic over it, for as long as it is open.

The first frame says which topic; then messages go out, and each is answered by its event's id. What was not answered when
the stream ends goes back to the broker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dapr.proto.runtime.v1 import pubsub_pb2

from tarry.core.tenants.access import Caller
from tarry.doors.dapr import errors
from tarry.doors.dapr.channel import AppMessage, Status
from tarry.doors.dapr.errors import Refusal
from tarry.doors.dapr.receiving import Deliver
from tarry.doors.dapr.subscriptions import AppSubscription, RoutingRule
from tarry.doors.dapr.topic_events import status_of, topic_event
from tarry.outlets.dapr.component import Subscribed

_log = logging.getLogger(__name__)

_Read = Callable[[], Awaitable[Any]]
Write = Callable[[Any], Awaitable[None]]


class Opener(Protocol):
    """An opener of an application's subscriptions; raises `Refusal`."""

    async def open_stream(
        self, caller: Caller, subscription: AppSubscription, deliver: Deliver
    ) -> Subscribed:
        """Subscribe as far as the caller's token reaches, and deliver the messages that come."""

    def end_stream(self, subscription: AppSubscription) -> None:
        """A subscription that was opened is over."""


class Streams:
    """The streams of one application."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._serving: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, caller: Caller, read: _Read, write: Write) -> None:
        """Serve one stream to its end, which `read` tells by None; raises `Refusal`."""
        subscription = _wanted(await read())
        stream = _Stream(write)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        subscribed: Subscribed | None = None
        try:
            subscribed = await self._opener.open_stream(caller, subscription, stream.deliver)
            await stream.begin()
            while (frame := await self._unless_stopped(read)) is not None:
                if _is_initial(frame):
                    raise Refusal(errors.STREAM, "duplicate initial request received")
                stream.processed(frame.event_processed.id, frame.event_processed.status.status)
        finally:
            self._serving.discard(task)
            stream.end()
            if subscribed is not None:
                self._opener.end_stream(subscription)
                # In a task of its own: whoever cancelled this one may do so again.
                closing = asyncio.create_task(subscribed.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _unless_stopped(self, read: _Read) -> Any:
        """The next frame; raises `Refusal` if the door is closed before it comes."""
        reading = asyncio.ensure_future(read())
        try:
            await asyncio.wait((reading, self._stopped), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Refusal(errors.NOT_NOW, "the server is stopping; subscribe again")
            return reading.result()
        finally:
            reading.cancel()

    async def close(self) -> None:
        """End every stream; applications are told to come again."""
        self._stopped.set_result(None)
        if self._serving:
            await asyncio.wait(self._serving)
        if self._closing:
            await asyncio.wait(self._closing)


def _is_initial(frame: Any) -> bool:
    return bool(frame.WhichOneof("subscribe_topic_events_request_type") == "initial_request")


def _wanted(first: Any) -> AppSubscription:
    """The subscription that a stream's first frame asks for; raises `Refusal`."""
    if first is None or not _is_initial(first):
        raise Refusal(errors.STREAM, "initial request is required")
    wanted = first.initial_request
    for name, value in (("pubsubName", wanted.pubsub_name), ("topic", wanted.topic)):
        if not value:
            raise Refusal(errors.STREAM, f"{name} is required")
    return AppSubscription(
        pubsub=wanted.pubsub_name,
        topic=wanted.topic,
        rules=(RoutingRule("", "/"),),
        dead_letter_topic=wanted.dead_letter_topic,
        metadata=dict(wanted.metadata),
        kind="STREAMING",
    )


class _Stream:
    """One stream: what is with the application, by the id of its event."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._writing = asyncio.Lock()
        self._open = asyncio.Event()
        """Before its beginning and after its end messages wait, until the subscription is closed and gives them back."""
        self._waiting: dict[str, asyncio.Future[Status]] = {}

    async def begin(self) -> None:
        """Tell the application that it is subscribed; messages follow."""
        answer = pubsub_pb2.SubscribeTopicEventsResponseAlpha1()
        answer.initial_response.SetInParent()
        await self._write(answer)
        self._open.set()

    async def deliver(self, arrival: AppMessage) -> Status:
        """Give a message to the application, and wait for its word."""
        event = topic_event(arrival)
        await self._open.wait()
        while (before := self._waiting.get(event.id)) is not None:
            # Answers go by the event's id: of two with one id the second waits for its turn.
            await asyncio.wait((before,))
            await self._open.wait()
        status: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._waiting[event.id] = status
        try:
            async with self._writing:
                await self._write(pubsub_pb2.SubscribeTopicEventsResponseAlpha1(event_message=event))
            return await status
        finally:
            self._waiting.pop(event.id, None)

    def processed(self, id_: str, status: int) -> None:
        """The application's word on a message."""
        waiting = self._waiting.get(id_)
        if waiting is None or waiting.done():
            _log.warning("an application answers a message that it does not have")
            return
        waiting.set_result(status_of(status))

    def end(self) -> None:
        """Nobody answers any more."""
        self._open.clear()
