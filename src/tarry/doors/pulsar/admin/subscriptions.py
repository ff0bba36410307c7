"""Subscriptions of topics: make, list, end, skip, expire, set back. Of a partitioned topic: of all its partitions."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from tarry.core.limits import SECOND_MS
from tarry.core.names import check_name
from tarry.core.tenants.rights import CONSUME, GOVERN, USE
from tarry.core.unreadable import UNREADABLE
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.admin.call import MAX_NUMBER, AdminCall, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.refusals import RestError, no_subscription
from tarry.doors.pulsar.broker import DOOR
from tarry.doors.pulsar.delivery import foreign
from tarry.doors.pulsar.figures import instant
from tarry.doors.pulsar.frames import metadata_of
from tarry.doors.pulsar.ids import is_of, ledger_of, text_of_id
from tarry.engine.api import EntryLog, Received, Subscription, Topic
from tarry.http.response import Response


async def list_(call: AdminCall) -> Response:
    """The names of a topic's subscriptions."""
    parts = call.parts_of(call.topic())
    return answer(sorted({name for part in parts for name in part.subscriptions}))


async def create(call: AdminCall) -> Response:
    """A subscription at a message, the newest if none is named. The topic is made if it is not there."""
    name = call.named_topic().full
    subscription = call.part("subscription")
    check_name(subscription, "subscription")
    given = await _json(call)
    topics = call.engine.topics
    if name not in topics.by_name:
        await topics.create(name)
    parts = call.parts_of(topics.find(name))
    if any(subscription in part.subscriptions for part in parts):
        raise RestError(409, "Subscription already exists for topic")
    for part in parts:
        # Its type is that of its first consumer; meanwhile one that keeps the order.
        await topics.subscribe(part.name, subscription, "exclusive", start=_place(given, part))
    return answer(None)


async def unsubscribe(call: AdminCall) -> Response:
    """End a subscription; one that has consumers only by force."""
    subs = list(_subscriptions(call))
    if any(sub.consumers for sub in subs) and not call.flag("force"):
        raise RestError(412, "Subscription has active connected consumers")
    for sub in subs:
        await call.engine.topics.end(sub)
    return answer(None)


async def skip(call: AdminCall) -> Response:
    """Be done with the first so many messages that are not acknowledged, delayed ones included."""
    number = call.number("number")
    for sub in _subscriptions(call):
        last = sub.unacknowledged().nth(number)
        if number > 0:
            await sub.ack([], below=sub.topic.visible if last is None else last + 1)
    return answer(None)


async def skip_all(call: AdminCall) -> Response:
    """Be done with all there is, delayed ones included."""
    for sub in _subscriptions(call):
        await sub.ack([], below=sub.topic.next)
    return answer(None)


async def expire(call: AdminCall) -> Response:
    """Acknowledge the entries that could be received so many seconds ago: what still waits stays."""
    for sub in _subscriptions(call):
        await _expire(call, sub)
    return answer(None)


async def expire_all(call: AdminCall) -> Response:
    """Expire entries of every subscription of the topic."""
    for part in call.parts_of(call.topic()):
        for sub in list(part.subscriptions.values()):
            await _expire(call, sub)
    return answer(None)


async def reset_to_time(call: AdminCall) -> Response:
    """Go to the first message that was published at an instant or later."""
    at_ms = call.number("timestamp")
    for sub in _subscriptions(call):
        sub.disconnect()
        await sub.seek(at_ms=at_ms)
    return answer(None)


async def reset_to_message(call: AdminCall) -> Response:
    """Go to a message, or with `isExcluded` to the one after it."""
    given = await _json(call)
    for sub in _subscriptions(call):
        start = _place(given, sub.topic)
        to = sub.topic.next if start == "latest" else 0 if start == "earliest" else start
        sub.disconnect()
        await sub.seek(to + (isinstance(start, int) and given.get("isExcluded") is True))
    return answer(None)


async def peek(call: AdminCall) -> Response:
    """The message at a place of the backlog, counted from 1, delayed ones included."""
    number = call.number("position")
    for sub in _subscriptions(call):
        entry_id = sub.unacknowledged().nth(number)
        if entry_id is None:
            raise RestError(404, "Message not found")
        entry = call.engine.topics.entry(sub.topic, entry_id)
        if entry is not None:
            return shown_message(entry, text_of_id(sub.topic, entry.entry_id))
    raise RestError(404, "Message not found")


# What they have in common


def _subscriptions(call: AdminCall) -> Iterator[Subscription]:
    """The subscription in the path: one, or one for each partition."""
    parts: list[Topic] = call.parts_of(call.topic())
    name = call.part("subscription")
    found = [part.subscriptions[name] for part in parts if name in part.subscriptions]
    if not found:
        raise no_subscription(name)
    yield from found


async def _expire(call: AdminCall, sub: Subscription) -> None:
    before_ms = call.engine.clock.now_ms() - call.number("seconds") * SECOND_MS
    more = True
    while more:
        more = call.engine.topics.expire(sub, before_ms)
        # Others have their turn while a large backlog is looked at.
        await asyncio.sleep(0)
    # Its acknowledgements were enqueued one after another: the last of them has to be durable.
    await call.engine.topics.once_durable(None)


async def _json(call: AdminCall) -> dict[str, Any]:
    body = call.request.body
    try:
        given = msgspec.json.decode(body or b"{}")
    except UNREADABLE as error:
        raise RestError(400, f"the body is not JSON: {error}") from None
    return given if isinstance(given, dict) else {}


def _place(given: dict[str, Any], topic: EntryLog) -> Literal["earliest", "latest"] | int:
    """Where a message id points in a topic; Pulsar's earliest is -1:-1, its latest the largest number there is."""
    ledger, entry = given.get("ledgerId"), given.get("entryId")
    if not isinstance(ledger, int) or not isinstance(entry, int) or max(ledger, entry) >= MAX_NUMBER:
        return "latest"
    if min(ledger, entry) < 0:
        return "earliest"
    if not is_of(ledger, topic):
        return "latest" if ledger > ledger_of(topic.incarnation) else "earliest"
    return entry


def shown_message(entry: Received, message_id: str) -> Response:
    """A message as `peek-messages` reads it: its payload, and the rest in headers."""
    message = entry.payload if entry.door == DOOR else foreign(entry)
    encoded = metadata_of(message)
    metadata = wire.MessageMetadata.FromString(encoded)
    headers = {
        "content-type": "application/octet-stream",
        "x-pulsar-message-id": message_id,
        "x-pulsar-publish-time": instant(metadata.publish_time),
    }
    for pair in metadata.properties:
        name = f"x-pulsar-property-{pair.key}"
        if name.isascii() and pair.value.isascii() and pair.value.isprintable() and name.isprintable():
            headers[name] = pair.value
    if metadata.HasField("num_messages_in_batch"):
        headers["x-pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.compression:
        headers["x-pulsar-compression"] = wire.CompressionType.Name(metadata.compression)
    if metadata.HasField("deliver_at_time"):
        headers["x-pulsar-deliver-at-time"] = str(metadata.deliver_at_time)
    # Behind the metadata and their length; before these may stand a magic number and a checksum.
    start = (6 if message.startswith(b"\x0e\x01") else 0) + 4 + len(encoded)
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Response(200, fields, message[start:])


_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_ONE: Final = _TOPIC + "/subscription/{subscription}"

OPERATIONS: Operations = (
    AdminOperation("GET", _TOPIC + "/subscriptions", USE, list_),
    AdminOperation("POST", _TOPIC + "/all_subscription/expireMessages/{seconds}", GOVERN, expire_all),
    AdminOperation("PUT", _ONE, CONSUME, create),
    AdminOperation("DELETE", _ONE, GOVERN, unsubscribe),
    AdminOperation("POST", _ONE + "/skip/{number}", GOVERN, skip),
    AdminOperation("POST", _ONE + "/skip_all", GOVERN, skip_all),
    AdminOperation("POST", _ONE + "/expireMessages/{seconds}", GOVERN, expire),
    AdminOperation("POST", _ONE + "/resetcursor", CONSUME, reset_to_message),
    AdminOperation("POST", _ONE + "/resetcursor/{timestamp}", CONSUME, reset_to_time),
    AdminOperation("GET", _ONE + "/position/{position}", CONSUME, peek),
)
