"""Tricks for speed: with any of them switched off every consumer gets the same, and the ledger has the same."""

import msgspec
import pytest

from tarry.core.messages.message import Message
from tarry.core.tricks import TRICKS, Tricks
from tarry.doors.http.topics.entries import EntryJson
from tarry.engine.topics.entries import Received
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench

MESSAGES = 5_000
"""Enough for batches that are large enough for every trick."""


def outcome() -> tuple[list[bytes], list[Received], list[int], int]:
    """The JSON of a burst, its entries as the ledger has them, those that come again, and how many are held in the end."""
    bench, json = Bench(ledger_settings=LedgerSettings(segment_bytes=4 << 20)), EntryJson()
    sub = bench.subscribe("orders", "s")
    shown: list[bytes] = []
    consumer = sub.attach("c", lambda entries: shown.extend(json.show_each(entries)), prepare=json.prepare)
    consumer.flow(MESSAGES)
    asked = [
        bench.engine.schedule(Message(destination="orders", payload=b"%d" % number, delay_ms=900))
        for number in range(MESSAGES)
    ]
    bench.wait(700)
    bench.ask(bench.engine.cancel(asked[7].value().id))
    bench.wait(200)
    bench.ask(consumer.ack(range(100)))
    bench.ask(sub.ack([], below=1_000))
    again: list[int] = []
    consumer.nack([2_000, 2_001])
    bench.rest()
    consumer.close()
    sub.attach("d", lambda entries: again.extend(entry.entry_id for entry in entries)).flow(3)
    bench.rest()
    later = bench.reader(bench.subscribe("orders", "later"))
    kept = [msgspec.structs.replace(entry, ids=None) for entry in later.got]
    return shown, kept, again, len(sub.leases)


@pytest.fixture(scope="module")
def usual() -> object:
    return outcome()


@pytest.mark.parametrize("trick", Tricks.__struct_fields__)
def test_everything_is_the_same_without(trick: str, usual: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRICKS, trick, False)
    assert outcome() == usual


def test_all_are_on_unless_somebody_measures() -> None:
    assert all(msgspec.structs.astuple(Tricks()))
    assert Tricks() == TRICKS
