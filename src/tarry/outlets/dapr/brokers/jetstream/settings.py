"""The consumer that Dapr's component makes, by its metadata."""

from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tarry.core.time.times import go_duration_ms
from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties

DEFAULT_ACK_WAIT_MS: Final = 30_000
UNLIMITED: Final = -1

_DELIVER: Final = {
    "all": DeliverPolicy.ALL,
    "last": DeliverPolicy.LAST,
    "new": DeliverPolicy.NEW,
    "sequence": DeliverPolicy.BY_START_SEQUENCE,
    "time": DeliverPolicy.BY_START_TIME,
}
_ACK: Final = {"explicit": AckPolicy.EXPLICIT, "all": AckPolicy.ALL, "none": AckPolicy.NONE}


class NatsSettings(Struct, frozen=True, kw_only=True):
    """The component's metadata."""

    stream: str
    durable: str
    queue_group: str
    ack_wait_ms: int
    """0 where the metadata say nothing: the server's default."""
    acknowledges: bool
    one_at_a_time: bool
    consumer: dict[str, Any]
    """Further settings of the consumer, from the metadata."""

    def config(self, topic: str, inbox: str) -> ConsumerConfig:
        """The consumer of an application's subscription."""
        return ConsumerConfig(
            deliver_subject=inbox,
            filter_subject=topic,
            durable_name=self.durable or None,
            deliver_group=self.queue_group or None,
            ack_wait=self.ack_wait_ms / 1000 if self.ack_wait_ms else None,
            **self.consumer,
        )

    def lasting(self, topic: str, group: str, inbox: str, *, hold: bool) -> ConsumerConfig:
        """A consumer that lasts, whatever the metadata say: durable, shared, and from the beginning."""
        name = "".join("_" if one in " .*>/\\" or ord(one) < 32 else one for one in f"{group}-{topic}")
        return ConsumerConfig(
            deliver_subject=inbox,
            filter_subject=topic,
            durable_name=name,
            deliver_group=name,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=(self.ack_wait_ms or DEFAULT_ACK_WAIT_MS) / 1000,
            max_ack_pending=UNLIMITED if hold else None,
        )


def read_settings(properties: Properties) -> NatsSettings:
    """Read the metadata; raises `Misconfigured`."""
    acknowledges = properties.one_of("ackPolicy", _ACK, "explicit")
    consumer: dict[str, Any] = {
        "deliver_policy": _DELIVER[properties.one_of("deliverPolicy", _DELIVER, "all")],
        "ack_policy": _ACK[acknowledges],
    }
    if start_s := properties.number("startTime", 0):
        consumer["opt_start_time"] = datetime.fromtimestamp(start_s, UTC)
    if properties.flag("flowControl"):
        consumer["flow_control"] = True
    if properties.flag("memoryStorage"):
        consumer["mem_storage"] = True
    for field, name in (
        ("startSequence", "opt_start_seq"),
        ("maxDeliver", "max_deliver"),
        ("maxAckPending", "max_ack_pending"),
        ("replicas", "num_replicas"),
        ("rateLimit", "rate_limit_bps"),
    ):
        if number := properties.number(field, 0, least=-1):
            consumer[name] = number
    if heartbeat_ms := properties.duration_ms("heartbeat", 0):
        consumer["idle_heartbeat"] = heartbeat_ms / 1000
    if waits := properties.text("backOff"):
        consumer["backoff"] = _durations_s("backOff", waits)
    return NatsSettings(
        stream=properties.text("streamName"),
        durable=properties.text("durableName"),
        queue_group=properties.text("queueGroupName"),
        ack_wait_ms=properties.duration_ms("ackWait", 0),
        acknowledges=acknowledges != "none",
        one_at_a_time=properties.one_of("concurrency", ("single", "parallel"), "single") == "single",
        consumer=consumer,
    )


def _durations_s(field: str, text: str) -> list[float]:
    found = [go_duration_ms(one.strip()) for one in text.strip("[] ").split(",")]
    if any(one is None or one <= 0 for one in found):
        raise Misconfigured(field, f"{text!r} is not a list of durations such as 1s, 5s, 1m")
    return [(one or 0) / 1000 for one in found]
