"""Every operation of the native API, once: its arguments, its request, and how its answer is read.

`Client` and `AsyncClient` both carry these out. Whatever may be repeated after a broken connection without
being done twice says so here; a schedule gets an idempotency key for that, unless it brings one.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from tarry.client.batches import read_outcome
from tarry.client.call import (
    ClientCall,
    Line,
    ServerAnswer,
    Unreachable,
    as_json,
    check,
    problem_error,
    query,
    reads,
    reads_nothing,
    topic_path,
)
from tarry.client.shapes import (
    DEFAULT_NAMESPACE,
    Delayed,
    DelayedPage,
    MessagePage,
    MessageView,
    OnConflict,
    Payload,
    Policy,
    Published,
    Receipt,
    Received,
    Scheduled,
    SubscriptionType,
    payload_fields,
    time_fields,
)
from tarry.core.errors import Invalid, TarryError

message_view = reads(MessageView)
_anything = reads(dict[str, Any])


def schedule(
    destination: str,
    payload: Payload = b"",
    *,
    delay: str | timedelta | None = None,
    delay_ms: int | None = None,
    due_at: datetime | None = None,
    due_at_ms: int | None = None,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    owner: str | None = None,
    namespace: str | None = None,
    group: str | None = None,
    ttl_ms: int | None = None,
    name: str | None = None,
    on_conflict: OnConflict | None = None,
    idempotency_key: str | None = None,
) -> ClientCall[Scheduled]:
    """Schedule one message: with a delay (`"1h30m"`, a timedelta, milliseconds) or a due instant.

    When it returns, the message is on disk. A repeated idempotency key gives the first answer again. In its namespace one
    pending message has a `name`; where one has it already, `on_conflict` says whether this is refused (`fail`, which
    is meant if nothing is said), gets the answer of that one (`keep`), or takes its place (`replace`).
    """
    body: dict[str, Any] = {
        "destination": destination, "headers": headers, "key": key, "owner": owner,
        "namespace": namespace, "group": group, "ttl_ms": ttl_ms, "name": name, "on_conflict": on_conflict,
    }  # fmt: skip
    body |= time_fields(delay, delay_ms, due_at, due_at_ms) | payload_fields(payload)
    message = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall(
        "POST", "/v1/messages", _scheduled, message,
        headers={"idempotency-key": idempotency_key or secrets.token_hex(16)},
        repeatable=True,
        # A key of the caller's own goes in a request of its own.
        line=Line("/v1/messages/batch", message, _scheduled_line, takes_key=True) if idempotency_key is None else None,
    )  # fmt: skip


def _scheduled_line(line: bytes, number: int) -> tuple[int, Scheduled | TarryError]:
    return number, read_outcome(line)


def _scheduled(answered: ServerAnswer) -> Scheduled:
    check(answered)
    scheduled = _read_scheduled(answered)
    return msgspec.structs.replace(scheduled, repeated=answered.status == 200 and not scheduled.kept)


_read_scheduled = reads(Scheduled)


def get(
    id: str | None = None, *, name: str | None = None, namespace: str | None = None
) -> ClientCall[MessageView]:
    """Look one message up: by its id, or by its name in a namespace (`public/default` if nothing is said)."""
    return ClientCall("GET", message_path(id, name, namespace), message_view, repeatable=True)


def cancel(
    id: str | None = None, *, name: str | None = None, namespace: str | None = None
) -> ClientCall[MessageView]:
    """Cancel a message, by its id or its name. Once this returns, it never goes out."""
    path = message_path(id, name, namespace) + "/cancel"
    asked = {"id": id} if id is not None else {"name": name, "namespace": namespace or DEFAULT_NAMESPACE}
    line = Line("/v1/messages/batch/cancel", as_json(asked), _cancelled_line)
    return ClientCall("POST", path, message_view, line=line)


class _CancelledLine(msgspec.Struct):
    """One line of the answer to many cancels."""

    line: int
    message: MessageView | None = None
    error: dict[str, Any] = {}


_read_cancelled = msgspec.json.Decoder(_CancelledLine)


def _cancelled_line(text: bytes, _: int) -> tuple[int, MessageView | TarryError]:
    try:
        answer = _read_cancelled.decode(text)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the server's answer is not what this client expects: {error}") from None
    return answer.line, problem_error(answer.error) if answer.message is None else answer.message


def send(
    id: str | None = None, *, name: str | None = None, namespace: str | None = None
) -> ClientCall[MessageView]:
    """Make a message due now, by its id or its name."""
    return ClientCall("POST", message_path(id, name, namespace) + "/send", message_view)


def restart(
    id: str | None = None,
    *,
    delay: str | timedelta | None = None,
    delay_ms: int | None = None,
    due_at: datetime | None = None,
    due_at_ms: int | None = None,
    name: str | None = None,
    namespace: str | None = None,
) -> ClientCall[MessageView]:
    """Begin the original delay again, or give the message a new one; by its id or its name."""
    path = message_path(id, name, namespace) + "/restart"
    return ClientCall("POST", path, message_view, as_json(time_fields(delay, delay_ms, due_at, due_at_ms)))


def retry(
    id: str | None = None,
    *,
    delay: str | timedelta | None = None,
    delay_ms: int | None = None,
    due_at: datetime | None = None,
    due_at_ms: int | None = None,
    name: str | None = None,
    namespace: str | None = None,
) -> ClientCall[MessageView]:
    """Have a message that has failed sent once more, now or at a new time; by its id or its name.

    Its dead letter is taken out of the topic. One whose dead letter was acknowledged is a `Conflict`.
    """
    path = message_path(id, name, namespace) + "/retry"
    return ClientCall("POST", path, message_view, as_json(time_fields(delay, delay_ms, due_at, due_at_ms)))


def list_page(
    *,
    state: Literal["scheduled", "retrying", "finalised"] = "scheduled",
    outcome: Literal["sent", "cancelled", "failed"] | None = None,
    owner: str | None = None,
    destination: str | None = None,
    namespace: str | None = None,
    key: str | None = None,
    key_prefix: str | None = None,
    group: str | None = None,
    door: str | None = None,
    due_from_ms: int | None = None,
    due_to_ms: int | None = None,
    limit: int | None = None,
    page: str | None = None,
) -> ClientCall[MessagePage]:
    """One page of messages; `page` is the `next_page` of the page before.

    Of those that are `scheduled`, the `retrying` ones wait for another attempt after one that failed.
    """
    path = query(
        "/v1/messages", state=state, outcome=outcome, owner=owner, destination=destination, namespace=namespace, key=key,
        key_prefix=key_prefix, group=group, door=door, due_from_ms=due_from_ms, due_to_ms=due_to_ms, limit=limit, page=page,
    )  # fmt: skip
    return ClientCall("GET", path, _page, repeatable=True)


_page = reads(MessagePage)


def publish(
    topic: str,
    payload: Payload = b"",
    *,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    delay: str | timedelta | None = None,
    delay_ms: int | None = None,
    due_at: datetime | None = None,
    due_at_ms: int | None = None,
) -> ClientCall[Published]:
    """Publish to a topic, at once or as a delayed entry.

    A delayed entry is read at its place by exclusive and failover subscriptions, and when it is due by shared
    and key-shared ones.
    """
    body: dict[str, Any] = {"headers": headers, "key": key}
    body |= time_fields(delay, delay_ms, due_at, due_at_ms) | payload_fields(payload)
    given = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall("POST", topic_path(topic, "messages"), reads(Published), given)


def topics(*, namespace: str | None = None) -> ClientCall[list[str]]:
    """The names of the topics."""

    def read(answered: ServerAnswer) -> list[str]:
        found: list[str] = _anything(answered)["topics"]
        return found

    return ClientCall("GET", query("/v1/topics", namespace=namespace), read, repeatable=True)


def create_topic(topic: str) -> ClientCall[None]:
    """Create a topic; nothing happens if it is there. Topics are also made on first use."""
    return ClientCall("PUT", topic_path(topic), reads_nothing, repeatable=True)


def delete_topic(topic: str) -> ClientCall[None]:
    """Delete a topic with all that it holds."""
    return ClientCall("DELETE", topic_path(topic), reads_nothing)


def topic_stats(topic: str) -> ClientCall[dict[str, Any]]:
    """How many entries a topic holds, and how far behind its subscriptions are."""
    return ClientCall("GET", topic_path(topic), _anything, repeatable=True)


def delayed_page(
    topic: str, *, key: str | None = None, start: int = 0, limit: int | None = None
) -> ClientCall[DelayedPage]:
    """One page of the entries of a topic that wait for their due instant; `start` is the `next` of the page before."""
    path = query(topic_path(topic, "delayed"), key=key, start=start or None, limit=limit)
    return ClientCall("GET", path, reads(DelayedPage), repeatable=True)


def get_delayed(topic: str, entry_id: int) -> ClientCall[Delayed]:
    """An entry that waits for its due instant."""
    return ClientCall("GET", topic_path(topic, "delayed", str(entry_id)), reads(Delayed), repeatable=True)


def cancel_delayed(topic: str, entry_id: int) -> ClientCall[Delayed]:
    """Cancel an entry that waits: nobody gets it. The answer shows what it was."""
    return ClientCall("DELETE", topic_path(topic, "delayed", str(entry_id)), reads(Delayed))


def restart_delayed(
    topic: str,
    entry_id: int,
    *,
    delay: str | timedelta | None = None,
    delay_ms: int | None = None,
    due_at: datetime | None = None,
    due_at_ms: int | None = None,
) -> ClientCall[Delayed]:
    """Give an entry that waits another due instant."""
    body = as_json(time_fields(delay, delay_ms, due_at, due_at_ms))
    return ClientCall("POST", topic_path(topic, "delayed", str(entry_id), "restart"), reads(Delayed), body)


def subscribe(
    topic: str,
    subscription: str,
    *,
    type: SubscriptionType = "shared",
    start: Literal["earliest", "latest"] | int = "latest",
    durable: bool = True,
    dead_letter_topic: str | None = None,
    max_redeliveries: int | None = None,
) -> ClientCall[dict[str, Any]]:
    """Make a subscription; one that is there already is kept, if the type fits."""
    body = {
        "type": type, "start": start, "durable": None if durable else False,
        "dead_letter_topic": dead_letter_topic, "max_redeliveries": max_redeliveries,
    }  # fmt: skip
    given = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall("PUT", _subscription(topic, subscription), _anything, given, repeatable=True)


def unsubscribe(topic: str, subscription: str) -> ClientCall[None]:
    """End a subscription, and forget its acknowledgements."""
    return ClientCall("DELETE", _subscription(topic, subscription), reads_nothing)


def receive(
    topic: str,
    subscription: str,
    *,
    max: int = 100,
    wait_ms: int = 20_000,
    consumer: str | None = None,
    ack_timeout_ms: int | None = None,
) -> ClientCall[list[Received]]:
    """Wait for entries, up to `wait_ms`; gives at most `max`. Each comes again until acknowledged."""
    body = {"max": max, "wait_ms": wait_ms, "consumer": consumer, "ack_timeout_ms": ack_timeout_ms}
    given = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall(
        "POST", _subscription(topic, subscription, "receive"), _received, given,
        # What a lost answer held comes again, because it was not acknowledged.
        repeatable=True, wait_ms=wait_ms,
    )  # fmt: skip


def _received(answered: ServerAnswer) -> list[Received]:
    return _receipt(answered).messages


_receipt = reads(Receipt)


def ack(
    topic: str,
    subscription: str,
    entry_ids: Sequence[int] | None = None,
    *,
    up_to: int | None = None,
    consumer: str | None = None,
) -> ClientCall[None]:
    """Acknowledge entries one by one, or every one up to and with `up_to`."""
    body = {"entry_ids": entry_ids, "up_to": up_to, "consumer": consumer}
    given = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall(
        "POST", _subscription(topic, subscription, "ack"), reads_nothing, given, repeatable=True
    )


def nack(
    topic: str, subscription: str, entry_ids: Sequence[int] | None = None, *, consumer: str | None = None
) -> ClientCall[None]:
    """Give entries back, to be delivered again now; without ids all that this consumer holds."""
    body = {"entry_ids": entry_ids, "consumer": consumer}
    given = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall("POST", _subscription(topic, subscription, "nack"), reads_nothing, given)


def seek(
    topic: str, subscription: str, *, entry_id: int | None = None, at_ms: int | None = None
) -> ClientCall[None]:
    """Move a subscription to an entry, or to the first entry published at or after an instant."""
    body = {"entry_id": entry_id} if entry_id is not None else {"at_ms": at_ms}
    return ClientCall(
        "POST", _subscription(topic, subscription, "seek"), reads_nothing, as_json(body), repeatable=True
    )


def policy(
    *, namespace: str | None = None, topic: str | None = None, effective: bool = False
) -> ClientCall[Policy]:
    """The policy of the broker, a namespace or a topic; with `effective`, the policy in force there."""
    path = query(_policy(namespace, topic), effective="true" if effective else None)
    return ClientCall("GET", path, reads(Policy), repeatable=True)


def set_policy(policy: Policy, *, namespace: str | None = None, topic: str | None = None) -> ClientCall[None]:
    """Set the policy of the broker, a namespace or a topic; fields that it leaves out are left to the level above."""
    return ClientCall("PUT", _policy(namespace, topic), reads_nothing, as_json(policy), repeatable=True)


def update_policy(
    changes: Policy,
    *,
    clear: Sequence[str] = (),
    namespace: str | None = None,
    topic: str | None = None,
) -> ClientCall[Policy]:
    """Change some fields of the policy of the broker, a namespace or a topic, and give it as it then is.

    The fields that `changes` has are set; those that `clear` names are left to the level above; the others stay as they are.
    """
    body = msgspec.to_builtins(changes) | dict.fromkeys(clear)
    return ClientCall("PATCH", _policy(namespace, topic), reads(Policy), as_json(body), repeatable=True)


def remove_policy(*, namespace: str | None = None, topic: str | None = None) -> ClientCall[None]:
    """Remove a policy: the level above decides."""
    return ClientCall("DELETE", _policy(namespace, topic), reads_nothing, repeatable=True)


def status() -> ClientCall[dict[str, Any]]:
    """The server's status: readiness, versions and counts."""
    return ClientCall("GET", "/v1/status", _anything, repeatable=True)


def warnings() -> ClientCall[list[str]]:
    """Warnings for the operator of a server that is ready; reasons for not being ready are not among them."""

    def read(answered: ServerAnswer) -> list[str]:
        return _anything(answered).get("warnings", []) if answered.status == 200 else []

    return ClientCall("GET", "/readyz", read, repeatable=True)


def ready() -> ClientCall[bool]:
    """Whether the server is ready to accept and deliver."""
    return ClientCall("GET", "/readyz", lambda answered: answered.status == 200, repeatable=True)


def message_path(id_: str | None, name: str | None, namespace: str | None) -> str:
    """The path of a message: by its id, or by its name in a namespace."""
    if id_ is not None:
        if name is not None or namespace is not None:
            raise Invalid("name", "give the id of a message, or its name")
        return f"/v1/messages/{quote(id_, safe='')}"
    if name is None:
        raise Invalid("id", "give the id of a message, or its name")
    return f"/v1/names/{quote(namespace or DEFAULT_NAMESPACE)}/{quote(name, safe='')}"


def _subscription(topic: str, name: str, *rest: str) -> str:
    return topic_path(topic, "subscriptions", name, *rest)


def _policy(namespace: str | None, topic: str | None) -> str:
    if topic is not None:
        return topic_path(topic).replace("/v1/topics/", "/v1/policies/topics/", 1)
    if namespace is not None:
        return f"/v1/policies/namespaces/{quote(namespace)}"
    return "/v1/policies/broker"
