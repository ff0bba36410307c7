"""Publishes due messages to their broker components.

What is due together for one topic goes to the broker as one bulk publish: ten thousand messages of one instant are a
few dozen calls. The component's scopes are asked again here, because they may have changed since the message was
accepted; a component that is gone may come back with another start, so that its messages wait for that.
Only messages that the Dapr door accepted are sent: it alone checks a caller against the application and its topics.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from tarry.core.delivery import Delivered, Delivery, Missing, Refused, Retry, Verdict
from tarry.core.errors import Invalid, Rejected, TarryError
from tarry.core.message import Message
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent, handed_on
from tarry.outlets.dapr.component import BulkEntry, Component
from tarry.outlets.dapr.delivery import CONTENT_TYPE, REPEAT, PublishTarget, metadata_of, next_of, target_of
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, NeverTaken

DOOR: Final = "dapr"
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
        """The topic's name at the broker."""


FindPublisher = Callable[[str, str], Publisher | None]
"""A component by application and name."""

Schedule = Callable[[Message], Awaitable[object]]
"""Accept a message; done when that is durable."""


class DaprOutlet:
    """The outlet for `dapr://` destinations."""

    together = BULK

    def __init__(self) -> None:
        self._find: FindPublisher | None = None
        self._schedule: Schedule | None = None
        self._now_ms: Callable[[], int] = int
        self._ready = asyncio.Event()
        self._calls: set[asyncio.Task[object]] = set()

    def open(self, find: FindPublisher, schedule: Schedule, now_ms: Callable[[], int]) -> None:
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
        """Publish it."""
        (verdict,) = await self.send_many([delivery])
        return verdict

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        """Publish what is due for one topic."""
        try:
            target = target_of(deliveries[0].destination)
        except Invalid as error:
            return [Refused(error.reason)] * len(deliveries)
        if self._find is None:
            try:
                await asyncio.wait_for(self._ready.wait(), WAIT_S)
            except TimeoutError:
                return [Retry("the components are not there yet", counted=False)] * len(deliveries)
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            verdicts = _strangers(deliveries)
            verdicts |= await self._follow_all([one for one in deliveries if one.id not in verdicts])
            left = [delivery for delivery in deliveries if delivery.id not in verdicts]
            if left:
                verdicts |= await self._publish(target, left)
        finally:
            self._calls.discard(call)
        return [verdicts[delivery.id] for delivery in deliveries]

    async def _follow_all(self, deliveries: Sequence[Delivery]) -> dict[str, Verdict]:
        """See to what follows those that repeat; gives the verdicts on those that cannot go out now."""
        repeating = [delivery for delivery in deliveries if REPEAT in delivery.headers]
        if not repeating:
            return {}
        troubles = await asyncio.gather(*map(self._follow, repeating))
        found = zip(repeating, troubles, strict=True)
        return {delivery.id: trouble for delivery, trouble in found if trouble is not None}

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

    async def _publish(self, target: PublishTarget, deliveries: Sequence[Delivery]) -> dict[str, Verdict]:
        """Give them to the broker; the verdict on each, by its id."""
        assert self._find is not None
        publisher = self._find(target.app_id, target.pubsub)
        if publisher is None:
            gone = f"there is no component {target.pubsub} for application {target.app_id}"
            return _all(deliveries, Missing(gone))
        if not publisher.may_publish(target.topic):
            forbidden = f"topic {target.topic} is not allowed for app id {target.app_id} any more"
            return _all(deliveries, Refused(forbidden))
        topic, component = publisher.at_broker(target.topic), publisher.component
        if isinstance(component, OwnTopicsComponent):
            return await self._hand_on(component.destination(topic), deliveries)
        failed: dict[str, ComponentError] = {}
        try:
            if len(deliveries) == 1:
                (one,) = deliveries
                type_ = one.headers.get(CONTENT_TYPE)
                await component.publish(topic, one.payload, metadata_of(one.headers), type_)
            else:
                failed = await component.bulk_publish(topic, list(map(_entry, deliveries)), {})
        except ComponentError as error:
            return _all(deliveries, verdict_of(error))
        except Exception as error:  # noqa: BLE001 - a component's bug must leave nobody waiting
            return _all(deliveries, Retry(f"the component failed: {type(error).__name__}", uncertain=True))
        verdicts = _all(deliveries, Delivered())
        verdicts |= {id_: verdict_of(error) for id_, error in failed.items()}
        return verdicts

    async def _hand_on(self, destination: str, deliveries: Sequence[Delivery]) -> dict[str, Verdict]:
        """Hand messages on that are bound for one of Tarry's own topics: there each arrives exactly once (R5).

        The key under which one is handed on is made of its id, so that an attempt after a crash changes nothing.
        """
        assert self._schedule is not None
        messages = [handed_on(delivery, destination) for delivery in deliveries]
        done = await asyncio.gather(*map(self._schedule, messages), return_exceptions=True)
        verdicts = _all(deliveries, Delivered())
        for delivery, outcome in zip(deliveries, done, strict=True):
            if isinstance(outcome, Rejected):
                verdicts[delivery.id] = Refused(str(outcome))
            elif isinstance(outcome, BaseException):
                verdicts[delivery.id] = Retry(str(outcome))
        return verdicts


def verdict_of(error: ComponentError) -> Verdict:
    """The verdict on a message that a broker refused."""
    if isinstance(error, NeverTaken):
        return Refused(str(error))
    return Retry(str(error), uncertain=isinstance(error, BrokerUnreachable) and error.uncertain)


def _strangers(deliveries: Sequence[Delivery]) -> dict[str, Verdict]:
    """Refusals of messages that came in by another door, by id.

    Whoever may schedule into one namespace could otherwise publish as any application to any broker.
    """
    refused = Refused("only the Dapr door may publish for an application")
    return {delivery.id: refused for delivery in deliveries if delivery.door != DOOR}


def _entry(delivery: Delivery) -> BulkEntry:
    return BulkEntry(
        entry_id=delivery.id,
        data=delivery.payload,
        content_type=delivery.headers.get(CONTENT_TYPE),
        metadata=metadata_of(delivery.headers),
    )


def _all(deliveries: Sequence[Delivery], verdict: Verdict) -> dict[str, Verdict]:
    return dict.fromkeys((delivery.id for delivery in deliveries), verdict)
