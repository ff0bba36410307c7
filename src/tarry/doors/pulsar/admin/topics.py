"""Topics: make, list, look at, remove; with partitions and without."""

import re
from typing import Final

from msgspec import Struct

from tarry.core.errors import Conflict
from tarry.core.names import partition_number
from tarry.core.tenants.rights import GOVERN, USE
from tarry.doors.pulsar.admin.call import AdminCall, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.refusals import RestError, no_topic
from tarry.doors.pulsar.admin.rules import keep_properties
from tarry.doors.pulsar.admin.stats import Shown, internal_stats, partitioned_stats, topic_stats
from tarry.doors.pulsar.errors import PulsarRefusal
from tarry.doors.pulsar.ids import ledger_of
from tarry.engine.api import Topic
from tarry.http.response import Response

_PARTITION: Final = re.compile(r"(.*)-partition-[0-9]+")


class PartitionedMetadata(Struct, frozen=True):
    """The body of `application/vnd.partitioned-topic-metadata+json`."""

    partitions: int
    properties: dict[str, str] = {}


def listed(call: AdminCall, namespace: str) -> list[str]:
    """The topics of a namespace that hold entries: partitions one by one."""
    topics = call.engine.topics
    return [name for name in topics.names(namespace) if not topics.partitions(name)]


async def list_(call: AdminCall) -> Response:
    """The topics of a namespace, partitions one by one."""
    return answer(listed(call, call.namespace()))


async def list_partitioned(call: AdminCall) -> Response:
    """The topics of a namespace that have partitions."""
    namespace, topics = call.namespace(), call.engine.topics
    return answer([name for name in topics.names(namespace) if topics.partitions(name)])


async def none(call: AdminCall) -> Response:
    """There are no topics that are not persistent."""
    call.namespace()
    return answer([])


async def create(call: AdminCall) -> Response:
    """A topic without partitions."""
    topic = call.named_topic()
    name = topic.full
    properties = call.read(dict[str, str], empty=b"{}")
    if name in call.engine.topics.by_name:
        raise RestError(409, "This topic already exists")
    _check_topic_limit(call, topic.namespace_name, 1)
    await call.engine.topics.create(name)
    await keep_properties(call, name, properties)
    return answer(None)


async def delete(call: AdminCall) -> Response:
    """Remove a topic; one that somebody uses only by force."""
    topic = call.topic()
    if topic.partitions:
        raise RestError(409, f"Topic {topic.name} is partitioned; delete it with its partitions")
    _check_unused(call, [topic])
    await call.engine.topics.delete(topic.name)
    return answer(None)


async def stats(call: AdminCall) -> Response:
    """The figures of a topic."""
    topic = call.topic()
    if topic.partitions:
        raise RestError(404, f"Partitioned Topic not found: {topic.name}; ask for its partitioned-stats")
    return answer(topic_stats(call.broker, topic, _shown(call)))


def _shown(call: AdminCall) -> Shown:
    return Shown(not call.flag("excludePublishers"), not call.flag("excludeConsumers"))


async def internal(call: AdminCall) -> Response:
    """Where the entries of a topic are."""
    return answer(internal_stats(call.topic()))


async def last_message_id(call: AdminCall) -> Response:
    """The id of the newest message."""
    topic = call.topic()
    return answer(
        {
            "ledgerId": ledger_of(topic.incarnation),
            "entryId": topic.visible - 1,
            "partitionIndex": partition_number(topic.name),
        }
    )


# Partitions


async def partitions(call: AdminCall) -> Response:
    """How many partitions a topic has; 0 for one that has none or is not there."""
    name = call.named_topic().full
    if call.flag("checkAllowAutoCreation") or name in call.engine.topics.by_name:
        return answer({"partitions": call.engine.topics.partitions(name), "deleted": False})
    raise no_topic(name)


async def create_partitioned(call: AdminCall) -> Response:
    """A topic with partitions."""
    name = call.named_topic()
    given = await _partitions_given(call)
    count = given.partitions
    if _PARTITION.fullmatch(name.topic):
        raise RestError(412, "Partitioned Topic Name should not contain '-partition-'")
    if count <= 0:
        raise RestError(412, "Number of partitions should be more than 0")
    if name.full in call.engine.topics.by_name:
        raise RestError(409, "This topic already exists")
    _check_topic_limit(call, name.namespace_name, count)
    await call.engine.topics.create(name.full, count)
    await keep_properties(call, name.full, given.properties)
    return answer(None)


async def update_partitioned(call: AdminCall) -> Response:
    """More partitions."""
    topic = call.topic()
    count = (await _partitions_given(call)).partitions
    if not topic.partitions:
        raise RestError(409, f"Topic {topic.name} is not the partitioned topic")
    if count < topic.partitions:
        raise RestError(
            422, f"Expect partitions {count} can't less than current partitions {topic.partitions}"
        )
    _check_topic_limit(call, call.namespace(), count - topic.partitions)
    try:
        await call.engine.topics.create(topic.name, count)
    except Conflict as conflict:
        raise RestError(409, str(conflict)) from None
    return answer(None)


async def _partitions_given(call: AdminCall) -> PartitionedMetadata:
    """The number of partitions in the body: by itself, or in the shape that has the topic's properties beside it."""
    given = call.read(int | PartitionedMetadata)  # type: ignore[arg-type]
    return given if isinstance(given, PartitionedMetadata) else PartitionedMetadata(given)


def _check_topic_limit(call: AdminCall, namespace: str, count: int) -> None:
    try:
        call.broker.rules.check_topic_limit(namespace, count)
    except PulsarRefusal as refused:
        raise RestError(412, str(refused)) from None


async def delete_partitioned(call: AdminCall) -> Response:
    """Remove a topic with its partitions."""
    topic = call.topic()
    if not topic.partitions:
        raise RestError(404, f"Partitioned Topic not found: {topic.name}")
    _check_unused(call, call.parts_of(topic))
    await call.engine.topics.delete(topic.name)
    return answer(None)


async def partitioned(call: AdminCall) -> Response:
    """The figures of a topic with partitions."""
    topic = call.topic()
    if not topic.partitions:
        raise RestError(404, f"Partitioned Topic not found: {topic.name}")
    per_partition = (call.query("perPartition") or "true").lower() == "true"
    return answer(partitioned_stats(call.broker, topic, call.parts_of(topic), per_partition, _shown(call)))


async def create_missing(call: AdminCall) -> Response:
    """The partitions of a topic that are not there."""
    topic = call.topic()
    if topic.partitions:
        await call.engine.topics.create(topic.name, topic.partitions)
    return answer(None)


async def unload(call: AdminCall) -> Response:
    """Disconnect every producer and consumer of a topic, which come again by themselves."""
    for part in call.parts_of(call.topic()):
        await call.broker.disconnect(part)
    return answer(None)


async def truncate(call: AdminCall) -> Response:
    """Have every subscription be done with all there is; what a retention policy keeps, it keeps."""
    for part in call.parts_of(call.topic()):
        for sub in list(part.subscriptions.values()):
            await sub.ack([], below=part.next)
    return answer(None)


def _check_unused(call: AdminCall, topics: list[Topic]) -> None:
    if call.flag("force"):
        return
    for topic in topics:
        producing = call.broker.producing.get(topic.name)
        if producing is not None and producing.by_name:
            raise RestError(412, "Topic has active producers")
        if topic.subscriptions:
            raise RestError(412, f"Topic has {len(topic.subscriptions)} subscriptions")


_ALL: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_ONE: Final = _ALL + "/{topic}"

OPERATIONS: Operations = (
    AdminOperation("GET", _ALL, USE, list_),
    AdminOperation("GET", _ALL + "/partitioned", USE, list_partitioned),
    AdminOperation("GET", "/admin/v2/non-persistent/{tenant}/{namespace}", USE, none),
    AdminOperation("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", USE, none),
    AdminOperation("PUT", _ONE, GOVERN, create),
    AdminOperation("DELETE", _ONE, GOVERN, delete),
    AdminOperation("GET", _ONE + "/stats", USE, stats),
    AdminOperation("GET", _ONE + "/internalStats", USE, internal),
    AdminOperation("GET", _ONE + "/lastMessageId", USE, last_message_id),
    AdminOperation("GET", _ONE + "/partitions", USE, partitions),
    AdminOperation("PUT", _ONE + "/partitions", GOVERN, create_partitioned),
    AdminOperation("POST", _ONE + "/partitions", GOVERN, update_partitioned),
    AdminOperation("DELETE", _ONE + "/partitions", GOVERN, delete_partitioned),
    AdminOperation("PUT", _ONE + "/unload", GOVERN, unload),
    AdminOperation("DELETE", _ONE + "/truncate", GOVERN, truncate),
    AdminOperation("GET", _ONE + "/partitioned-stats", USE, partitioned),
    AdminOperation("POST", _ONE + "/createMissedPartitions", GOVERN, create_missing),
)
