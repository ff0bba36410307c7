"""Publishing due messages to a component: the part that the outlets for `dapr://` and for `broker://` share.

Messages that are due together for one topic go to the broker as one bulk publish: ten thousand messages of one instant are
a few dozen calls.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from tarry.core.messages.delivery import Delivered, Delivery, Refused, Retry, Verdict
from tarry.outlets.dapr.component import BulkEntry, Component
from tarry.outlets.dapr.delivery import CONTENT_TYPE
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, NeverTaken

BULK: Final = 512
"""Messages in one call of the broker."""

VerdictsById = dict[str, Verdict]
"""The verdict on each message, by its id."""


class Publisher(Protocol):
    """A component as an outlet sees it."""

    @property
    def component(self) -> Component:
        """The broker."""

    def may_publish(self, topic: str) -> bool:
        """Whether the component file lets a topic be published to."""

    def at_broker(self, topic: str) -> str:
        """The topic's name at the broker."""


class CallsUnderWay:
    """The calls of an outlet that have not ended."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[object]] = set()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Count the call that runs as under way."""
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)

    async def ended(self) -> None:
        """Let the calls under way end."""
        if self._calls:
            await asyncio.wait(self._calls)


def order_key(destination: str, key: str | None) -> str | None:
    """The order key at an outlet: messages with a key go one after another to the same topic."""
    return None if key is None else f"{destination}#{key}"


async def publish(
    component: Component,
    topic: str,
    deliveries: Sequence[Delivery],
    metadata_of: Callable[[Delivery], dict[str, str]],
) -> VerdictsById:
    """Give messages to a broker, under the topic's name there."""
    failed: Mapping[str, ComponentError] = {}
    try:
        if len(deliveries) == 1:
            (one,) = deliveries
            await component.publish(topic, one.payload, metadata_of(one), one.headers.get(CONTENT_TYPE))
        else:
            entries = [
                BulkEntry(
                    entry_id=one.id,
                    data=one.payload,
                    content_type=one.headers.get(CONTENT_TYPE),
                    metadata=metadata_of(one),
                )
                for one in deliveries
            ]
            failed = await component.bulk_publish(topic, entries, {})
    except ComponentError as error:
        return all_alike(deliveries, verdict_of(error))
    except Exception as error:  # noqa: BLE001 - a component's bug must leave nobody waiting
        return all_alike(deliveries, Retry(f"the component failed: {type(error).__name__}", uncertain=True))
    return all_alike(deliveries, Delivered()) | {id_: verdict_of(error) for id_, error in failed.items()}


def verdict_of(error: ComponentError) -> Verdict:
    """The verdict on a message that a broker refused."""
    if isinstance(error, NeverTaken):
        return Refused(str(error))
    return Retry(str(error), uncertain=isinstance(error, BrokerUnreachable) and error.uncertain)


def all_alike(deliveries: Sequence[Delivery], verdict: Verdict) -> VerdictsById:
    """One verdict on all of these."""
    return dict.fromkeys((one.id for one in deliveries), verdict)
