"""Figures of topics in Pulsar's shape. Rates are not kept; what Pulsar does not have is at the end of each shape."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.broker import Broker
from tarry.doors.pulsar.ids import text_of_id
from tarry.engine.api import Consumer, Subscription, Topic, backlog_bytes, delayed_count

TYPES: Final = {
    "exclusive": "Exclusive",
    "shared": "Shared",
    "failover": "Failover",
    "key_shared": "Key_Shared",
}


class Shown(NamedTuple):
    """Which parts of the figures somebody wants to see."""

    publishers: bool = True
    consumers: bool = True


ALL: Final = Shown()


def topic_stats(broker: Broker, topic: Topic, shown: Shown = ALL) -> dict[str, Any]:
    """The figures of one topic that has no partitions."""
    each = topic.mean_bytes(topic.first, topic.next)
    kept_bytes = int(each * (topic.next - topic.first))
    subscriptions = {name: subscription_stats(sub, shown) for name, sub in topic.subscriptions.items()}
    producing = broker.producing.get(topic.name) if shown.publishers else None
    publishers = [] if producing is None else [_publisher(one) for one in producing.by_name.values()]
    policy = broker.engine.effective_policy(topic.name, "")
    return {
        "msgRateIn": 0.0,
        "msgThroughputIn": 0.0,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "bytesInCounter": int(each * topic.next),
        "msgInCounter": topic.next,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "averageMsgSize": each,
        "msgChunkPublished": False,
        "storageSize": kept_bytes,
        "backlogSize": max((one["backlogSize"] for one in subscriptions.values()), default=0),
        "offloadedStorageSize": 0,
        "delayedMessageIndexSizeInBytes": topic.waiting.nbytes,
        "publishers": publishers,
        "waitingPublishers": 0,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if policy.deduplication else "Disabled",
        "nonContiguousDeletedMessagesRanges": 0,
        "ownerBroker": "",
        "topicCreationTimeStamp": topic.created_at_ms,
        "msgDelayed": len(topic.waiting),
        "nextDeliverAtTime": broker.engine.delayed.next_due_at_ms(topic),
        "lastLatenessInMillis": topic.last_late_ms,
        "maxLatenessInMillis": topic.max_late_ms,
    }


def subscription_stats(sub: Subscription, shown: Shown = ALL) -> dict[str, Any]:
    """The figures of one subscription."""
    delayed = 0 if sub.ignores_delay else delayed_count(sub)
    active = next((one.name for one in sub.consumers if one.active), "") if sub.in_order else ""
    return {
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0,
        "msgBacklog": sub.backlog,
        "backlogSize": backlog_bytes(sub),
        "msgBacklogNoDelayed": sub.backlog - delayed,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": delayed,
        "unackedMessages": sum(one.unacked for one in sub.consumers),
        "type": TYPES[sub.type],
        "activeConsumerName": active,
        "msgRateExpired": 0.0,
        "totalMsgExpired": sub.expired,
        "lastExpireTimestamp": 0,
        "consumers": [_consumer(one) for one in sub.consumers] if shown.consumers else [],
        "isDurable": sub.durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "keySharedMode": "AUTO_SPLIT" if sub.type == "key_shared" else None,
        "nonContiguousDeletedMessagesRanges": len(sub.acked.above),
        "subscriptionProperties": sub.properties,
        "durable": sub.durable,
        "replicated": False,
    }


def _consumer(consumer: Consumer) -> dict[str, Any]:
    return {
        "msgRateOut": 0.0,
        "consumerName": consumer.name,
        "availablePermits": max(0, consumer.permits),
        "unackedMessages": consumer.unacked,
        "blockedConsumerOnUnackedMsgs": False,
        "priorityLevel": consumer.priority,
        "keyHashRanges": [f"[{start}, {end}]" for start, end in consumer.ranges or ()],
        **consumer.about,
    }


def _publisher(producer: Any) -> dict[str, Any]:
    return {
        "accessMode": wire.ProducerAccessMode.Name(producer.mode),
        "msgRateIn": 0.0,
        "producerName": producer.name,
        "producerId": producer.client[1],
        **producer.about,
    }


_SUMMED: Final = (
    "bytesInCounter", "msgInCounter", "storageSize", "backlogSize", "delayedMessageIndexSizeInBytes", "msgDelayed",
)  # fmt: skip
_SUMMED_OF_SUBSCRIPTIONS: Final = (
    "msgBacklog", "backlogSize", "msgBacklogNoDelayed", "msgDelayed", "unackedMessages", "totalMsgExpired",
    "nonContiguousDeletedMessagesRanges",
)  # fmt: skip


def partitioned_stats(
    broker: Broker, topic: Topic, parts: Iterable[Topic], per_partition: bool, shown: Shown = ALL
) -> dict[str, Any]:
    """The figures of a partitioned topic: those of its partitions together, and if asked for one by one."""
    each = {part.name: topic_stats(broker, part, shown) for part in parts}
    whole = topic_stats(broker, topic, shown)
    for name in _SUMMED:
        whole[name] = sum(one[name] for one in each.values())
    whole["averageMsgSize"] = (
        whole["bytesInCounter"] / whole["msgInCounter"] if whole["msgInCounter"] else 0.0
    )
    whole["publishers"] = [publisher for one in each.values() for publisher in one["publishers"]]
    whole["nextDeliverAtTime"] = min(
        (at_ms for one in each.values() if (at_ms := one["nextDeliverAtTime"]) is not None), default=None
    )
    for name in ("lastLatenessInMillis", "maxLatenessInMillis"):
        whole[name] = max((one[name] for one in each.values()), default=0)
    together: dict[str, dict[str, Any]] = {}
    for one in each.values():
        for name, figures in one["subscriptions"].items():
            sum_ = together.setdefault(
                name, {**figures, "consumers": [], **dict.fromkeys(_SUMMED_OF_SUBSCRIPTIONS, 0)}
            )
            for figure in _SUMMED_OF_SUBSCRIPTIONS:
                sum_[figure] += figures[figure]
            sum_["consumers"] += figures["consumers"]
    return {
        **whole,
        "subscriptions": together,
        "metadata": {"partitions": topic.partitions, "deleted": False},
        "partitions": each if per_partition else {},
    }


def internal_stats(topic: Topic) -> dict[str, Any]:
    """Where the entries of a topic and its cursors are, as far as that has a meaning here."""
    each = topic.mean_bytes(topic.first, topic.next)
    return {
        "entriesAddedCounter": topic.next,
        "numberOfEntries": topic.next - topic.first,
        "totalSize": int(each * (topic.next - topic.first)),
        "currentLedgerEntries": topic.next - topic.first,
        "currentLedgerSize": int(each * (topic.next - topic.first)),
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": topic.next - topic.visible,
        "lastConfirmedEntry": text_of_id(topic, topic.visible - 1),
        "state": "LedgerOpened",
        "ledgers": [],
        "cursors": {
            name: {
                "markDeletePosition": text_of_id(topic, sub.acked.below - 1),
                "readPosition": text_of_id(topic, sub.acked.below),
                "messagesConsumedCounter": sub.acked.count(0),
                "state": "Open",
            }
            for name, sub in topic.subscriptions.items()
        },
    }
