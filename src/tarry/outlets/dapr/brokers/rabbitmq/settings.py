"""Declarations at RabbitMQ for a topic and for a group, by the component's and the subscription's metadata."""

from typing import Any, Final

from aio_pika.abc import AbstractChannel, AbstractExchange
from msgspec import Struct

from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties

KINDS: Final = ("fanout", "topic", "direct", "headers", "x-consistent-hash")


class GroupQueue(Struct, frozen=True, kw_only=True):
    """A group's queue."""

    name: str
    topic: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    routing_keys: tuple[str, ...]
    dead_letter: bool
    lasting: bool


class RabbitSettings(Struct, frozen=True, kw_only=True):
    """The component's metadata."""

    durable: bool
    auto_delete: bool
    auto_ack: bool
    requeue: bool
    delivery_mode: int
    prefetch: int
    reconnect_s: float
    max_length: int
    max_length_bytes: int
    exchange_kind: str
    passive: bool
    ttl_ms: int | None
    dead_letter: bool
    one_at_a_time: bool

    def lengths(self) -> dict[str, Any]:
        """The arguments that bound a queue."""
        bounds = {"x-max-length": self.max_length, "x-max-length-bytes": self.max_length_bytes}
        return {name: value for name, value in bounds.items() if value > 0}

    async def declare_exchange(self, channel: AbstractChannel, topic: str) -> AbstractExchange:
        """A topic's exchange; in passive mode it must be there."""
        return await channel.declare_exchange(
            topic,
            self.exchange_kind,
            durable=self.durable,
            auto_delete=self.auto_delete,
            passive=self.passive,
        )

    def queue(self, topic: str, group: str, metadata: Properties, *, lasting: bool) -> GroupQueue:
        """A group's queue; one that must last is durable, without bounds, and stays when nobody is there."""
        name = metadata.text("queueName") or f"{group}-{topic}"
        dead_letter = self.dead_letter and not lasting
        arguments: dict[str, Any] = {"x-dead-letter-exchange": f"dlx-{name}"} if dead_letter else {}
        if not lasting:
            arguments |= self.lengths()
            for field, argument in (("maxLen", "x-max-length"), ("maxLenBytes", "x-max-length-bytes")):
                if metadata.text(field):
                    arguments[argument] = metadata.number(field, 0)
        if metadata.text("maxPriority"):
            arguments["x-max-priority"] = min(255, metadata.number("maxPriority", 0))
        arguments["x-queue-type"] = metadata.one_of("queueType", ("classic", "quorum"), "classic")
        if metadata.flag("singleActiveConsumer"):
            arguments["x-single-active-consumer"] = True
        return GroupQueue(
            name=name,
            topic=topic,
            durable=self.durable or lasting,
            auto_delete=self.auto_delete and not lasting,
            arguments=arguments,
            routing_keys=tuple(metadata.text("routingKey").split(",")),
            dead_letter=dead_letter,
            lasting=lasting,
        )


def read_settings(properties: Properties) -> RabbitSettings:
    """Read the metadata; raises `Misconfigured`."""
    passive = properties.one_of("exchangeDeclareMode", ("declare", "passive"), "declare") == "passive"
    kind = properties.text("exchangeKind", "fanout")
    if not passive and kind not in KINDS:
        raise Misconfigured("exchangeKind", f"{kind!r} is not one of {', '.join(KINDS)}")
    ttl_s = properties.number("ttlInSeconds", 0)
    return RabbitSettings(
        durable=properties.flag("durable", True),
        auto_delete=properties.flag("deletedWhenUnused", True),
        auto_ack=properties.flag("autoAck"),
        requeue=properties.flag("requeueInFailure"),
        delivery_mode=properties.number("deliveryMode", 0, most=2),
        prefetch=properties.number("prefetchCount", 0, most=255),
        reconnect_s=properties.duration_ms("reconnectWaitSeconds", 3_000, bare_ms=1000) / 1000,
        max_length=properties.number("maxLen", 0),
        max_length_bytes=properties.number("maxLenBytes", 0),
        exchange_kind=kind,
        passive=passive,
        ttl_ms=ttl_s * 1000 or None,
        dead_letter=properties.flag("enableDeadLetter"),
        one_at_a_time=properties.one_of("concurrency", ("parallel", "single"), "parallel") == "single",
    )
