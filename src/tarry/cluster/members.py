"""The servers that share a ledger as the brokers know them: members of its group, and how far each has read the log.

A node that follows the log commits its position to a group of its own, so that Kafka's own tools show its lag, and the owner can.
Nothing is decided by it.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import Struct

from tarry.cluster.failures import told
from tarry.core.errors import Unavailable

ANSWERED_WITHIN_S: Final = 10.0


class GroupMember(Struct, frozen=True):
    """A server that owns the ledger or stands by."""

    name: str
    offset: int | None
    """Up to where in the log it has read; None if it has not said so."""


def group_of(topic: str, partition: int) -> str:
    """The group that says whose turn it is to own the ledger."""
    return f"tarry-{topic}-{partition}"


def reader_of(topic: str, partition: int, node: str) -> str:
    """The group of one node, which holds its position."""
    return f"{group_of(topic, partition)}-{node}"


class Members:
    """Asks the brokers who the members are."""

    def __init__(self, client: Mapping[str, Any], topic: str, partition: int) -> None:
        self._admin = AdminClient({"log_level": 0, **client})
        self._topic = topic
        self._partition = partition

    def look(self) -> list[GroupMember]:
        """All members of the group, by name; raises `Unavailable`."""
        group = group_of(self._topic, self._partition)
        try:
            (described,) = self._admin.describe_consumer_groups(
                [group], request_timeout=ANSWERED_WITHIN_S
            ).values()
            names = {str(member.client_id) for member in described.result(ANSWERED_WITHIN_S).members}
            return [GroupMember(name, self._offset(name)) for name in sorted(names)]
        except (KafkaException, TimeoutError) as error:
            raise Unavailable(
                f"the brokers do not tell about the servers of {group}: {told(error)}"
            ) from None

    def _offset(self, name: str) -> int | None:
        where = TopicPartition(self._topic, self._partition)
        request = ConsumerGroupTopicPartitions(reader_of(self._topic, self._partition, name), [where])
        (asked,) = self._admin.list_consumer_group_offsets(
            [request], request_timeout=ANSWERED_WITHIN_S
        ).values()
        (found,) = asked.result(ANSWERED_WITHIN_S).topic_partitions
        offset = cast(int, found.offset)
        return offset if offset >= 0 else None
