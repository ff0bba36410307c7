"""Publishes due messages to their broker components.

What becomes due in one turn of the loop for one topic goes to the broker as one bulk publish: ten thousand
messages of one instant are a few dozen calls. The component's scopes are asked again here, because they may have changed
since the message was accepted; a component that is gone may come back, so that its messages are tried again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from tarry.core.delivery import Delivered, Delivery, Refused, Retry, Verdict
from tarry.core.errors import Invalid, Rejected, TarryError
from tarry.core.message import Message
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent, handed_on
from tarry.outlets.dapr.component import BulkEntry, Component
from tarry.outlets.dapr.delivery import CONTENT_TYPE, REPEAT, Target, metadata_of, next_of, target_of
from tarry.outlets.dapr.errors import ComponentError, NeverTaken, Unreachable

BULK: Final = 512
"""Messages in one call of the broker."""
WAIT_S: Final = 30.0
"""How long a message waits for the components to be there, at a start."""


class Publisher(Protocol):
    """A component as the outlet sees it."""

    @property
    def component(self) -> Component:
        """The broker."""

    def may_publish(self, topic: str) -> bool:
        """Whether the application may publish to a topic."""

    def at_broker(self, topic: str) -> str:
        """What the topic is called at the broker."""


Find = Callable[[str, str], Publisher | None]
"""A component by application and name."""

Schedule = Callable[[Message], Awaitable[object]]
"""Accept a message; done when that is durable."""

_Waiting = tuple[Delivery, "asyncio.Future[Verdict]"]


class DaprOutlet:
    """The outlet for `dapr://` destinations."""

    def __init__(self) -> None:
        self._find: Find | None = None
        self._schedule: Schedule | None = None
        self._now_ms: Callable[[], int] = int
        self._ready = asyncio.Event()
        self._waiting: dict[Target, list[_Waiting]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def open(self, find: Find, schedule: Schedule, now_ms: Callable[[], int]) -> None:
        """The components are there."""
        self._find = find
        self._schedule = schedule
        self._now_ms = now_ms
        self._ready.set()

    async def close(self) -> None:
        """Let the calls under way end."""
        if self._calls:
            await asyncio.wait(self._calls)

    def check(self, destination: str) -> None:
        """Raise `Invalid` unless this names an application, a component and a topic."""
        target_of(destination)

    def order_key(self, destination: str, key: str | None) -> str | None:
        """With a key: one after another to the same topic."""
        return None if key is None else f"{destination}#{key}"

    async def send(self, delivery: Delivery) -> Verdict:
        """Publish it, together with what else is due for its topic."""
        try:
            target = target_of(delivery.destination)
        except Invalid as error:
            return Refused(error.reason)
        if self._find is None:
            try:
                await asyncio.wait_for(self._ready.wait(), WAIT_S)
            except TimeoutError:
                return Retry("the components are not there yet")
        if REPEAT in delivery.headers and (trouble := await self._follow(delivery)) is not None:
            return trouble
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[Verdict] = loop.create_future()
        waiting = self._waiting.get(target)
        if waiting is None:
            self._waiting[target] = [(delivery, verdict)]
            loop.call_soon(self._flush, target)
        else:
            waiting.append((delivery, verdict))
        return await verdict

    async def _follow(self, delivery: Delivery) -> Verdict | None:
        """Schedule the next occurrence of what repeats, before this one goes out: a crash then loses neither.

        Its idempotency key is made of this one's id, so that another attempt does not begin a second series.
        """
        assert self._schedule is not None
        try:
            following = next_of(delivery, self._now_ms())
            if following is not None:
                await self._schedule(following)
        except Rejected as error:
            return Refused(f"what follows it cannot be scheduled: {error}")
        except TarryError as error:
            return Retry(f"what follows it cannot be scheduled: {error}")
        return None

    def _flush(self, target: Target) -> None:
        waiting = self._waiting.pop(target)
        for start in range(0, len(waiting), BULK):
            call = asyncio.create_task(self._publish(target, waiting[start : start + BULK]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _publish(self, target: Target, waiting: list[_Waiting]) -> None:
        assert self._find is not None
        publisher = self._find(target.app_id, target.pubsub)
        if publisher is None:
            _settle_all(
                waiting, Retry(f"there is no component {target.pubsub} for application {target.app_id}")
            )
            return
        if not publisher.may_publish(target.topic):
            _settle_all(
                waiting, Refused(f"topic {target.topic} is not allowed for app id {target.app_id} any more")
            )
            return
        topic = publisher.at_broker(target.topic)
        if isinstance(publisher.component, OwnTopicsComponent):
            await self._hand_on(publisher.component.destination(topic), waiting)
            return
        try:
            if len(waiting) == 1:
                delivery = waiting[0][0]
                await publisher.component.publish(
                    topic,
                    delivery.payload,
                    metadata_of(delivery.headers),
                    delivery.headers.get(CONTENT_TYPE),
                )
                failed: dict[str, ComponentError] = {}
            else:
                failed = await publisher.component.bulk_publish(
                    topic, [_entry(delivery) for delivery, _ in waiting], {}
                )
        except ComponentError as error:
            _settle_all(waiting, verdict_of(error))
            return
        except Exception as error:  # noqa: BLE001 - a component's bug must leave nobody waiting
            _settle_all(waiting, Retry(f"the component failed: {type(error).__name__}", uncertain=True))
            return
        for delivery, verdict in waiting:
            one = failed.get(delivery.id)
            if not verdict.done():
                verdict.set_result(Delivered() if one is None else verdict_of(one))

    async def _hand_on(self, destination: str, waiting: list[_Waiting]) -> None:
        """Hand messages on that are bound for one of Tarry's own topics: there each arrives exactly once (R5).

        The key under which one is handed on is made of its id, so that an attempt after a crash changes nothing.
        """
        assert self._schedule is not None
        messages = [handed_on(delivery, destination) for delivery, _ in waiting]
        done = await asyncio.gather(*map(self._schedule, messages), return_exceptions=True)
        for (_, verdict), outcome in zip(waiting, done, strict=True):
            if verdict.done():
                continue
            if isinstance(outcome, Rejected):
                verdict.set_result(Refused(str(outcome)))
            elif isinstance(outcome, BaseException):
                verdict.set_result(Retry(str(outcome)))
            else:
                verdict.set_result(Delivered())


def verdict_of(error: ComponentError) -> Verdict:
    """What a broker's refusal means for a message."""
    if isinstance(error, NeverTaken):
        return Refused(str(error))
    return Retry(str(error), uncertain=isinstance(error, Unreachable) and error.uncertain)


def _entry(delivery: Delivery) -> BulkEntry:
    return BulkEntry(
        entry_id=delivery.id,
        data=delivery.payload,
        content_type=delivery.headers.get(CONTENT_TYPE),
        metadata=metadata_of(delivery.headers),
    )


def _settle_all(waiting: list[_Waiting], verdict: Verdict) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_result(verdict)
