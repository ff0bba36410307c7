"""Safety of the topic that holds a ledger: settings under which the brokers could lose what they acknowledged.

An acknowledged frame is in the memory of all in-sync replicas. That is worth what the topic's settings make of it: with
one replica, or with a minimum of one in sync, a single machine's death loses frames; an unclean election, retention or
compaction loses them in ordinary operation. A topic with such settings is refused, in words.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

MIN_REPLICAS: Final = 3
MIN_IN_SYNC: Final = 2
RECORD_BYTES: Final = 1 << 20
"""Bytes that one record of the log takes at most: a part of a frame with its envelope, as Kafka counts it."""


class TopicSettings(Struct, frozen=True):
    """The settings of a topic, as the brokers say them."""

    name: str
    replicas: Sequence[Sequence[int]]
    """For each partition the numbers of the brokers that hold it."""
    racks: Mapping[int, str | None]
    """The rack of each broker that the cluster knows."""
    settings: Mapping[str, str]


def unsafe(topic: TopicSettings) -> list[str]:
    """Reasons for which this topic cannot hold a ledger, each with its remedy; none if it can."""
    given = topic.settings
    name = topic.name
    reasons: list[str] = []
    fewest = min(len(set(replicas)) for replicas in topic.replicas)
    in_sync = int(given.get("min.insync.replicas", "1"))
    if fewest < MIN_REPLICAS:
        reasons.append(
            f"topic {name} has {fewest} replica{'s' * (fewest != 1)}, and a ledger needs {MIN_REPLICAS}: "
            "make the topic with a replication factor of 3"
        )
    if in_sync < MIN_IN_SYNC:
        reasons.append(
            f"topic {name} acknowledges what only {in_sync} replica has (min.insync.replicas = {in_sync}): "
            f"set min.insync.replicas = {MIN_IN_SYNC}"
        )
    elif in_sync >= fewest >= MIN_REPLICAS:
        reasons.append(
            f"topic {name} takes nothing while any broker is down (min.insync.replicas = {in_sync} of {fewest}): "
            f"set min.insync.replicas = {fewest - 1}"
        )
    if given.get("unclean.leader.election.enable") == "true":
        reasons.append(
            f"topic {name} may be led by a replica that lacks acknowledged records: "
            "set unclean.leader.election.enable = false"
        )
    if given.get("cleanup.policy", "delete") != "delete":
        reasons.append(
            f"topic {name} is compacted (cleanup.policy = {given['cleanup.policy']}), which removes records: "
            "set cleanup.policy = delete"
        )
    for setting, what in (("retention.ms", "old"), ("retention.bytes", "large")):
        if int(given.get(setting, "-1")) != -1:
            reasons.append(
                f"topic {name} deletes records by itself when they are {what} ({setting} = {given[setting]}): "
                f"set {setting} = -1; Tarry trims the topic itself"
            )
    if (most := int(given.get("max.message.bytes", str(RECORD_BYTES)))) < RECORD_BYTES:
        reasons.append(
            f"topic {name} takes records of at most {most} bytes, and a ledger needs {RECORD_BYTES}: "
            f"set max.message.bytes = {RECORD_BYTES}"
        )
    return reasons


def doubtful(topic: TopicSettings) -> list[str]:
    """Warnings about a topic that can hold a ledger: what it does not survive."""
    warnings: list[str] = []
    racks = {topic.racks.get(broker) for replicas in topic.replicas for broker in replicas}
    if len(racks) < 2:
        warnings.append(
            "all replicas are in one rack, or the brokers do not say theirs (broker.rack): a power failure that "
            "stops all of them at once may lose the last seconds, since brokers acknowledge from memory; put them "
            "into different power domains, or set flush.messages = 1"
        )
    return warnings
