"""Questions to the brokers about the topic that holds a ledger."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tarry.cluster.failures import Reason, told
from tarry.cluster.topic_safety import TopicSettings
from tarry.core.errors import Invalid, NotFound, Unavailable

ANSWERED_WITHIN_S: Final = 10.0

T = TypeVar("T")


def topic_settings(
    client: Mapping[str, Any], topic: str, within_s: float = ANSWERED_WITHIN_S
) -> TopicSettings:
    """The settings of a topic, as the brokers say them; raises `Invalid`, `NotFound` or `Unavailable`."""
    reason = Reason()
    try:
        settings: dict[str, Any] = {"log_level": 0, "error_cb": reason.heard, **client}
        admin = AdminClient(settings)
    except KafkaException as error:
        raise Invalid("ledger.kafka", told(error)) from None
    try:
        found = admin.list_topics(topic, timeout=within_s).topics[topic]
        if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise KafkaException(found.error)
        if found.error is not None or not found.partitions:
            raise NotFound(
                f"the brokers have no topic {topic}: make it with one partition, a replication factor of 3 and "
                "min.insync.replicas = 2"
            )
        cluster = _answer(admin.describe_cluster(request_timeout=within_s), within_s)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (described,) = admin.describe_configs([resource], request_timeout=within_s).values()
        found_settings = {
            name: entry.value for name, entry in _answer(described, within_s).items() if entry.value
        }
    except (KafkaException, TimeoutError) as error:
        # Callbacks are made in here.
        admin.poll(0)
        raise Unavailable(f"the brokers do not tell about topic {topic}: {told(error)}{reason}") from None
    return TopicSettings(
        name=topic,
        replicas=[partition.replicas for _, partition in sorted(found.partitions.items())],
        racks={node.id: node.rack for node in cluster.nodes},
        settings=found_settings,
    )


def _answer(future: "Future[T]", within_s: float) -> T:
    return future.result(within_s)
