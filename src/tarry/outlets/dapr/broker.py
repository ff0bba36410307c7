"""The skeleton of a component: what is the same for all brokers, with hooks for what differs.

A broker says how it is connected to (`connect`), how one message is sent (`sender`), how a group is joined (`join`) and what its library's
failures mean (`error_of`). Here, once, is the rest: a failure of the library leaves as an error of `errors.py`, which knows whether a
message may have arrived, and subscriptions are kept until they are closed.

Must not know: any broker.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Protocol, TypeVar

from msgspec import Struct

from tarry.outlets.dapr.component import BulkEntry, Feature, ReceiveMessage, Subscribed, publish_each
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError
from tarry.outlets.dapr.memberships import Memberships


class Outgoing(Struct, frozen=True):
    """One message to give to a broker."""

    topic: str
    data: bytes
    metadata: Mapping[str, str]
    content_type: str | None = None
    lasting: bool = False


class Joining(Struct, frozen=True):
    """A request to receive a topic's messages as one of a consumer group."""

    topic: str
    group: str
    receive: ReceiveMessage
    metadata: Mapping[str, str]
    lasting: bool
    hold: bool


Send = Callable[[], Awaitable[object]]
"""Sends one message; the broker has it when this returns."""


class BrokerComponent:
    """A component that gives messages to one broker. Implements `Component`."""

    features: frozenset[Feature] = frozenset()
    failures: ClassVar[tuple[type[Exception], ...]] = ()
    """The exceptions of the broker's library."""

    def __init__(self) -> None:
        self._members = Memberships()
        self.closed = False

    # What differs between brokers

    async def connect(self) -> None:
        """Find out whether the broker is there and knows us. In the process itself there is nothing to connect to."""

    async def sender(self, message: Outgoing) -> Send:
        """Connect where needed, and return what sends the message. A failure until then says that nothing was sent."""
        raise NotImplementedError

    async def join(self, joining: Joining) -> Subscribed:
        """Begin to receive."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Close the connections, once the subscriptions are closed."""

    def error_of(self, failure: Exception, topic: str, *, sent: bool) -> ComponentError:
        """The error for one of `failures`; `sent` if a message may have arrived."""
        return BrokerUnreachable(str(failure), uncertain=sent)

    # What does not

    @contextmanager
    def translated(self, topic: str = "", *, sent: bool = False) -> Iterator[None]:
        """Failures of the broker's library inside become errors of the component."""
        try:
            yield
        except ComponentError:
            raise
        except self.failures as failure:
            raise self.error_of(failure, topic, sent=sent) from failure

    async def start(self) -> None:
        """Connect."""
        with self.translated():
            await self.connect()

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Give one message to the broker; returns once it has it."""
        with self.translated(topic):
            send = await self.sender(Outgoing(topic, data, metadata, content_type, lasting))
        with self.translated(topic, sent=True):
            await send()

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Give several, each by itself; the answer is what failed, by entry id."""
        return await publish_each(self, topic, entries)

    async def subscribe(
        self,
        topic: str,
        group: str,
        receive: ReceiveMessage,
        metadata: Mapping[str, str],
        *,
        lasting: bool = False,
        hold: bool = False,
    ) -> Subscribed:
        """Receive as one of a consumer group until it is closed, or the component."""
        with self.translated(topic):
            subscribed = await self.join(Joining(topic, group, receive, metadata, lasting, hold))
        return self._members.add(subscribed)

    async def close(self) -> None:
        """End the subscriptions and disconnect."""
        self.closed = True
        await self._members.close()
        await self.disconnect()


class Starting(Subscribed, Protocol):
    """A subscription that is still to begin."""

    async def start(self) -> None:
        """Begin to receive."""


M = TypeVar("M", bound=Starting)


async def started(member: M) -> M:
    """Start a subscription; one that cannot be started is closed."""
    try:
        await member.start()
    except Exception:
        await member.close()
        raise
    return member
