"""Acknowledgements with as many holes as there are messages: after a restart the state is exactly what it was."""

import pytest

from tarry.engine.topics.entries import NewEntry
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench
from tests.unit.pulsar_kit import TOPIC, Desk

AT_ONCE = 5_000


def publish(bench: Bench, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        entries = [NewEntry(payload=b"x", door="pulsar")] * min(AT_ONCE, count - first)
        bench.ask(bench.engine.topics.publish(TOPIC, entries))


@pytest.mark.parametrize("holes", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_holes_survive_a_restart_exactly(holes: int) -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=64 << 20))
    desk = Desk(bench=bench)
    client = desk.client()
    client.subscribe(permits=0)
    publish(bench, 2 * holes)
    for first in range(1, 2 * holes, 2 * AT_ONCE):
        client.ack(*range(first, min(first + 2 * AT_ONCE, 2 * holes), 2))
    sub = bench.engine.topics.subscription(TOPIC, "sub")
    assert (sub.backlog, sub.acked.below) == (holes, 0)
    bench.ask(bench.engine.flush())
    client.ack(0, 2, 2 * holes - 2)
    bench.reopen()
    sub = bench.engine.topics.subscription(TOPIC, "sub")
    assert (sub.backlog, sub.acked.below) == (holes - 3, 4)
    reader = Desk(bench=bench).client()
    reader.subscribe(permits=1_000)
    assert [entry_id for entry_id, _ in reader.messages()] == list(range(4, 2_004, 2))
