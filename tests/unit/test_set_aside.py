"""Records that cannot be processed: a start names their seq, and goes on without them when it is told to."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from tarry.client import Client
from tarry.core.time.clock import SystemClock
from tarry.engine.records.changes import Change, changes_of
from tarry.engine.settings import EngineSettings
from tarry.engine.state import recovery
from tarry.engine.state.aside import Unprocessable
from tarry.ledger.disk import RealDisk
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import FIRST_BATCH_SEQ, PolicySet, Put, Record, encode
from tests.processes import ServerProcess
from tests.unit.cli_kit import Shell
from tests.unit.engine_kit import FOREIGN, Bench, full

POISON = b"poison"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def seq_of(bench: Bench, id_: str) -> int:
    place = bench.ids.read(id_)
    assert place is not None
    return place[0]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the version of one message cannot be decided."""

    def fail(records: Sequence[Record | None]) -> list[Change]:
        if any(isinstance(record, Put) and record.payload == POISON for record in records):
            raise ZeroDivisionError
        return changes_of(records)

    monkeypatch.setattr(recovery, "changes_of", fail)


def test_a_start_names_the_record_and_the_way_out(bench: Bench, request: pytest.FixtureRequest) -> None:
    bad = bench.schedule(payload=POISON, owner="ann", delay_ms=1_000)
    good = bench.schedule(payload=b"good", owner="ann", delay_ms=1_000)
    seq = seq_of(bench, bad.id)
    request.getfixturevalue("poisoned")
    # So that it is replayed.
    bench.crash(lose_transactions=1_000)
    with pytest.raises(Unprocessable, match=f"seq {seq} .*ZeroDivisionError.*tarry serve --set-aside {seq}`"):
        bench.start()
    bench.start([seq])
    bench.rest()
    assert bench.state(bad.id) == "failed"
    assert "set aside" in (bench.view(bad.id).reason or "")
    assert bench.engine.warnings == [f"records set aside at a start, by their seqs: {seq}"]
    assert bench.engine.pending_of("ann", "public/default") == 1
    bench.wait(1_000)
    assert bench.drain("orders").payloads == [b"good"]
    # Later starts know it.
    bench.wait(5_000)
    bench.reopen()
    assert bench.state(bad.id) == "failed"
    assert bench.state(good.id) == "sent"
    assert bench.engine.warnings == [f"records set aside at a start, by their seqs: {seq}"]


def test_a_restored_registry_asks_for_it_again(bench: Bench, request: pytest.FixtureRequest) -> None:
    bad = bench.schedule(payload=POISON, delay_ms=1_000)
    seq = seq_of(bench, bad.id)
    request.getfixturevalue("poisoned")
    bench.reopen([seq])
    bench.crash(lose_transactions=1_000)
    with pytest.raises(Unprocessable):
        bench.start()
    bench.start([seq])
    bench.rest()
    bench.wait(2_000)
    assert bench.drain("orders").payloads == []


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_a_message_that_replays_but_must_not_be_dispatched(bench: Bench, destination: str) -> None:
    """As one that hangs the server whenever it is due."""
    bad = bench.schedule(destination, payload=POISON, owner="ann", group="g", delay_ms=1_000)
    untimed = bench.schedule(destination, owner="ann", group="g")
    bench.wait(900)
    bench.reopen([seq_of(bench, bad.id)])
    bench.rest()
    assert (bench.state(bad.id), bench.state(untimed.id)) == ("failed", "cancelled")
    assert bench.engine.pending_of("ann", "public/default") == 0
    bench.wait(1_000)
    assert bench.arrived() == []
    # Once more changes nothing.
    bench.wait(1_000)
    bench.reopen([seq_of(bench, bad.id)])
    bench.wait(1_000)
    assert bench.engine.stats().counters["failed"] == 1


def test_one_that_only_the_index_has_ends_when_it_is_due(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(
        settings=EngineSettings(snapshot_every_ms=1_000, reclaim_every_ms=1_000),
        ledger_settings=LedgerSettings(segment_bytes=1 << 14),
    )
    bad = bench.schedule(payload=POISON, delay_ms=100_000)
    seq = seq_of(bench, bad.id)
    for _ in range(40):
        bench.schedule(payload=bytes(1_000), delay_ms=1)
    bench.wait(1_000)
    bench.index.flush(bench.ledger)
    bench.wait(30_000)
    assert bench.first_seq > seq
    with caplog.at_level(logging.WARNING):
        bench.reopen([seq])
    assert f"seq {seq} is set aside" in caplog.text
    bench.wait(5_000)
    bench.reopen()
    bench.wait(100_000)
    assert bench.state(bad.id) == "failed"
    assert POISON not in bench.drain("orders").payloads


@pytest.mark.parametrize("ahead", [5, FIRST_BATCH_SEQ])
def test_where_there_is_no_record_none_is_set_aside(
    bench: Bench, ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator mistypes the seq: the message that is written there later is nobody's to drop."""
    seq = bench.ledger.next_seq + ahead
    with caplog.at_level(logging.WARNING):
        bench.reopen([seq])
    assert f"there is no record at seq {seq}, and none is set aside" in caplog.text
    assert bench.engine.warnings == []
    made = [bench.schedule(payload=b"%d" % number, delay_ms=10_000) for number in range(10)]
    if ahead < FIRST_BATCH_SEQ:
        assert seq in [seq_of(bench, one.id) for one in made]
    bench.reopen()
    assert bench.engine.warnings == []
    bench.wait(20_000)
    assert [bench.state(one.id) for one in made] == ["sent"] * 10


def test_an_entry_is_passed_over(bench: Bench) -> None:
    bench.publish("orders", b"a")
    bench.publish("orders", POISON)
    bad = bench.next_seq - 1
    bench.publish("orders", b"b")
    bench.publish("orders", POISON, deliver_at_ms=bench.now_ms + 10_000)
    delayed = bench.next_seq - 1
    bench.wait(5_000)
    bench.reopen([bad, delayed])
    reader = bench.drain("orders")
    bench.wait(20_000)
    assert reader.payloads == [b"a", b"b"]
    assert bench.engine.topics.by_name[full("orders")].subscriptions["drain"].backlog == 2


def append(folder: Path, record: Record) -> int:
    """Put a record into the ledger of a server that does not run; gives its seq."""
    ledger = Ledger.open(
        RealDisk(), str(folder / "ledger"), LedgerSettings(segment_bytes=1 << 20), SystemClock()
    )
    seq = ledger.append([encode(record)], lambda _: None)
    ledger.commit()
    ledger.close()
    return seq


def test_a_real_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        server.start()
        with Client(server.url) as client:
            kept = client.schedule("orders", b"kept", delay="1h").id
        server.stop()
        seq = append(tmp_path / "data", PolicySet("namespace", "public/default", {"tick_ms": "no number"}))
        assert f"`tarry serve --set-aside {seq}` starts without it" in server.refused()
        server.start(arguments=["--set-aside", str(seq)])
        assert f"seq {seq} is set aside, a record of kind POLICY" in server.said()
        with Client(server.url) as client:
            assert client.get(kept).state == "scheduled"
            assert client.warnings() == [f"records set aside at a start, by their seqs: {seq}"]
        tarry = Shell(monkeypatch, capsys)
        tarry.set("TARRY_DATA", str(tmp_path / "data"))
        tarry.set("TARRY_HTTP__PORT", str(server.port))
        assert f"by their seqs: {seq}" in tarry("doctor").out
        server.stop()
        server.start()
        with Client(server.url) as client:
            assert client.get(kept).state == "scheduled"
