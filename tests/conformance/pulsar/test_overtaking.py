"""Batches with the real client whose delayed messages overtake them: every receipt is for a message that arrives."""

from concurrent.futures import Future
from typing import Any

import pulsar
import pytest

from tests.conformance.pulsar.kit import Broker, now_ms, received, silent

COUNT = 1000


def sent(producer: Any, payload: bytes, **options: Any) -> "Future[Any]":
    """A receipt that comes later: its message id, or the error."""
    receipt: Future[Any] = Future()

    def told(result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            receipt.set_result(message_id)
        else:
            receipt.set_exception(AssertionError(f"{payload!r}: {result}"))

    producer.send_async(payload, told, **options)
    return receipt


@pytest.mark.parametrize("deduplication", [None, False, True])
def test_every_receipt_is_for_a_message_that_arrives_once(
    server: Broker, client: pulsar.Client, topic: str, deduplication: bool | None
) -> None:
    if deduplication is not None:
        server.policy(f"topics/{topic.removeprefix('persistent://')}", {"deduplication": deduplication})
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        topic, producer_name="me", batching_enabled=True, batching_max_publish_delay_ms=10
    )
    due_ms = now_ms() + 100
    receipts = [
        sent(producer, b"%d" % n, **({"deliver_at": due_ms} if n % 10 == 9 else {})) for n in range(COUNT)
    ]
    producer.flush()
    ids = [receipt.result(timeout=30) for receipt in receipts]
    assert all(id_.ledger_id() > 0 and id_.entry_id() >= 0 for id_ in ids)
    got = sorted(int(message.data()) for message in received(consumer, COUNT))
    assert got == list(range(COUNT))
    silent(consumer)
