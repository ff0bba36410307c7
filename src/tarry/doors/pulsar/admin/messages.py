"""Messages of a topic by their place: looked at, found by time, counted. Of a partitioned topic: of one of its partitions."""

from typing import Any, Final

from msgspec import Struct

from tarry.core.names import partition_number
from tarry.core.tenants.rights import CONSUME, USE
from tarry.doors.pulsar.admin.call import AdminCall, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.refusals import RestError, no_subscription
from tarry.doors.pulsar.admin.subscriptions import shown_message
from tarry.doors.pulsar.ids import entry_of, is_of, ledger_of, text_of_id
from tarry.engine.api import Topic, backlog_bytes
from tarry.http.response import Response


class MessageId(Struct, frozen=True):
    """A message id in a body; earliest if nothing is said."""

    ledgerId: int = -1  # noqa: N815 - Pulsar's names
    entryId: int = -1  # noqa: N815


async def by_id(call: AdminCall) -> Response:
    """The message at an id."""
    topic = _topic(call)
    ledger, entry_id = call.number("ledger"), call.number("entry")
    if not is_of(ledger, topic):
        raise RestError(
            404,
            f"Message {ledger}:{entry_id} not found: the topic's ledger is {ledger_of(topic.incarnation)}",
        )
    return _message(call, topic, entry_id)


async def examine(call: AdminCall) -> Response:
    """The message so many places from the first or from the last, counted from 1."""
    topic = _topic(call)
    start = call.query("initialPosition") or "latest"
    if start not in ("earliest", "latest"):
        raise RestError(412, "initialPosition is earliest or latest")
    place = call.query_number("messagePosition", 1)
    if place < 1:
        raise RestError(412, "messagePosition is 1 or more")
    return _message(call, topic, topic.visible - place if start == "latest" else topic.first + place - 1)


async def at_time(call: AdminCall) -> Response:
    """The id of the first message that was published at an instant or later; behind the last if there is none."""
    topic = _topic(call)
    entry_id = call.engine.topics.first_published(topic, call.number("timestamp"))
    return answer(
        {
            "ledgerId": ledger_of(topic.incarnation),
            "entryId": entry_id,
            "partitionIndex": partition_number(topic.name),
        }
    )


async def backlog_size(call: AdminCall) -> Response:
    """How many bytes the topic has from a message on."""
    topic = _topic(call)
    given = call.read(MessageId, empty=b"{}")
    start = max(topic.first, min(entry_of(given.ledgerId, given.entryId, topic), topic.next))
    return answer(int(topic.mean_bytes(start, topic.next) * (topic.next - start)))


async def analyze(call: AdminCall) -> Response:
    """How much a subscription has to do, in Pulsar's shape. Nothing is filtered here."""
    topic, name = _topic(call), call.part("subscription")
    sub = topic.subscriptions.get(name)
    if sub is None:
        raise no_subscription(name)
    shown: dict[str, Any] = {
        "entries": sub.backlog,
        "messages": sub.backlog,
        "markerMessages": 0,
        "aborted": False,
    }
    for verdict in ("Accepted", "Rejected", "Rescheduled"):
        shown[f"filter{verdict}Entries"] = shown[f"filter{verdict}Messages"] = 0
    shown["filterAcceptedEntries"] = shown["filterAcceptedMessages"] = sub.backlog
    shown["backlogSize"] = backlog_bytes(sub)
    shown["firstMessageId"] = text_of_id(topic, max(sub.acked.below, topic.first))
    shown["lastMessageId"] = text_of_id(topic, topic.visible - 1)
    return answer(shown)


def _topic(call: AdminCall) -> Topic:
    topic = call.topic()
    if topic.partitions:
        raise RestError(405, f"{topic.name} is partitioned: ask for one of its partitions")
    return topic


def _message(call: AdminCall, topic: Topic, entry_id: int) -> Response:
    there = topic.first <= entry_id < topic.visible
    entry = call.engine.topics.entry(topic, entry_id) if there else None
    if entry is None:
        raise RestError(
            404, "Message not found: the topic has no such entry, or every subscription is done with it"
        )
    return shown_message(entry, text_of_id(topic, entry_id))


_ONE: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"

OPERATIONS: Operations = (
    AdminOperation("GET", _ONE + "/ledger/{ledger}/entry/{entry}", CONSUME, by_id),
    AdminOperation("GET", _ONE + "/examinemessage", CONSUME, examine),
    AdminOperation("GET", _ONE + "/messageid/{timestamp}", USE, at_time),
    AdminOperation("PUT", _ONE + "/backlogSize", USE, backlog_size),
    AdminOperation("POST", _ONE + "/subscription/{subscription}/analyzeBacklog", USE, analyze),
)
