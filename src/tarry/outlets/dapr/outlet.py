"""Publishes due messages of the Dapr door to their broker components.

The component's scopes are asked again here, because they may have changed since the message was
accepted; a component that is gone may come back with another start, so that its messages wait for that.
Only messages that the Dapr door accepted are sent: it alone checks a caller against the application and its topics.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tarry.core.errors import Invalid, Rejected, TarryError
from tarry.core.messages.delivery import Delivered, Delivery, Missing, Refused, Retry, Verdict
from tarry.core.messages.message import Message
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent, handed_on
from tarry.outlets.dapr.delivery import REPEAT, PublishTarget, metadata_of, next_of, target_of
from tarry.outlets.dapr.publishing import (
    BULK,
    CallsUnderWay,
    Publisher,
    VerdictsById,
    all_alike,
    order_key,
    publish,
)

DOOR: Final = "dapr"
WAIT_S: Final = 30.0
"""How long a message waits for the components to be there, at a start."""


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
        self._calls = CallsUnderWay()

    def open(self, find: FindPublisher, schedule: Schedule, now_ms: Callable[[], int]) -> None:
        """The components are there."""
        self._find = find
        self._schedule = schedule
        self._now_ms = now_ms
        self._ready.set()

    async def close(self) -> None:
        """Let the calls under way end."""
        await self._calls.ended()

    def check(self, destination: str) -> None:
        """Raise `Invalid` unless this names an application, a component and a topic."""
        target_of(destination)

    def order_key(self, destination: str, key: str | None) -> str | None:
        """See `publishing`."""
        return order_key(destination, key)

    async def send(self, delivery: Delivery) -> Verdict:
        """Publish it."""
        (verdict,) = await self.send_many([delivery])
        return verdict

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        """Publish due messages of one topic in one call."""
        try:
            target = target_of(deliveries[0].destination)
        except Invalid as error:
            return [Refused(error.reason)] * len(deliveries)
        if self._find is None:
            try:
                await asyncio.wait_for(self._ready.wait(), WAIT_S)
            except TimeoutError:
                return [Retry("the components are not there yet", counted=False)] * len(deliveries)
        with self._calls.current():
            verdicts = _strangers(deliveries)
            verdicts |= await self._follow_all([one for one in deliveries if one.id not in verdicts])
            left = [delivery for delivery in deliveries if delivery.id not in verdicts]
            if left:
                verdicts |= await self._publish(target, left)
        return [verdicts[delivery.id] for delivery in deliveries]

    async def _follow_all(self, deliveries: Sequence[Delivery]) -> VerdictsById:
        """Schedule the next occurrences of repeating messages; gives the verdicts on those that cannot go out now."""
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

    async def _publish(self, target: PublishTarget, deliveries: Sequence[Delivery]) -> VerdictsById:
        """Give them to the broker; the verdict on each, by its id."""
        assert self._find is not None
        publisher = self._find(target.app_id, target.pubsub)
        if publisher is None:
            gone = f"there is no component {target.pubsub} for application {target.app_id}"
            return all_alike(deliveries, Missing(gone))
        if not publisher.may_publish(target.topic):
            forbidden = f"topic {target.topic} is not allowed for app id {target.app_id} any more"
            return all_alike(deliveries, Refused(forbidden))
        topic, component = publisher.at_broker(target.topic), publisher.component
        if isinstance(component, OwnTopicsComponent):
            return await self._hand_on(component.destination(topic), deliveries)
        return await publish(component, topic, deliveries, lambda one: metadata_of(one.headers))

    async def _hand_on(self, destination: str, deliveries: Sequence[Delivery]) -> VerdictsById:
        """Hand messages on that are bound for one of Tarry's own topics: there each arrives exactly once (R5).

        The key under which one is handed on is made of its id, so that an attempt after a crash changes nothing.
        """
        assert self._schedule is not None
        messages = [handed_on(delivery, destination) for delivery in deliveries]
        done = await asyncio.gather(*map(self._schedule, messages), return_exceptions=True)
        verdicts = all_alike(deliveries, Delivered())
        for delivery, outcome in zip(deliveries, done, strict=True):
            if isinstance(outcome, Rejected):
                verdicts[delivery.id] = Refused(str(outcome))
            elif isinstance(outcome, BaseException):
                verdicts[delivery.id] = Retry(str(outcome))
        return verdicts


def _strangers(deliveries: Sequence[Delivery]) -> VerdictsById:
    """Refusals of messages that came in by another door, by id.

    Whoever may schedule into one namespace could otherwise publish as any application to any broker.
    """
    refused = Refused("only the Dapr door may publish for an application")
    return {delivery.id: refused for delivery in deliveries if delivery.door != DOOR}
