"""Settings of Kafka's library that are Tarry's own, whoever gives further ones."""

from typing import Final

RESERVED: Final = frozenset(
    {
        "acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "transactional.id",
        "max.in.flight", "max.in.flight.requests.per.connection", "message.timeout.ms", "delivery.timeout.ms",
        "message.max.bytes", "compression.type", "compression.codec", "linger.ms", "queue.buffering.max.ms",
        "client.id", "group.id", "group.protocol", "group.instance.id", "partition.assignment.strategy", "session.timeout.ms",
        "heartbeat.interval.ms", "enable.auto.commit", "auto.offset.reset", "isolation.level", "enable.partition.eof",
    }
)  # fmt: skip
"""Settings on which it depends that nothing is lost."""
