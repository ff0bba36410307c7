"""Recovery: the state after a restart is that of the ledger, whatever the registry has seen of it."""

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tarry.core import limits
from tarry.core.errors import Damage, Unavailable
from tarry.core.messages.delivery import Delivered
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import Message, MessageQuery
from tarry.core.rules.policy import Policy
from tarry.engine.engine import Engine
from tarry.engine.settings import EngineSettings
from tarry.engine.wiring import Surroundings
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.registry.registry import Registry
from tarry.testing.clock import SimulatedClock
from tarry.testing.disk import SimulatedDisk
from tarry.testing.index import SimulatedIndex
from tarry.testing.insides import InsidesOf
from tests.unit.engine_kit import FOREIGN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 17))


def everything(bench: Bench) -> dict[str, str]:
    """A little of everything that has state; name -> id of the messages."""
    ids = {
        "waits": bench.schedule(payload=b"waits", owner="ann", delay_ms=limits.DAY_MS).id,
        "listed": bench.schedule(owner="ann", listed=True, delay_ms=limits.DAY_MS).id,
        "foreign": bench.schedule(FOREIGN, key="k", delay_ms=limits.DAY_MS).id,
        "grouped": bench.schedule(group="g", delay_ms=limits.DAY_MS).id,
        "untimed": bench.schedule(group="g").id,
        "keyed": bench.schedule(idempotency_key="once", delay_ms=limits.DAY_MS).id,
        "sent": bench.schedule(payload=b"sent", delay_ms=1).id,
        "cancelled": bench.schedule(delay_ms=limits.DAY_MS).id,
        "restarted": bench.schedule(payload=b"restarted", delay_ms=limits.DAY_MS).id,
    }
    bench.wait(1)
    bench.ask(bench.engine.cancel(ids["cancelled"]))
    bench.ask(bench.engine.restart(ids["restarted"], delay_ms=2 * limits.DAY_MS))
    bench.ask(bench.engine.set_policy("topic", "ticking", Policy(tick_ms=1000)))
    bench.publish("t", *[b"%d" % n for n in range(10)], producer="p", producer_sequence=-1)
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + limits.DAY_MS)
    bench.publish("t", b"by p", producer="p", producer_sequence=7)
    bench.subscribe("t", "x", "exclusive")
    shared = bench.reader(bench.subscribe("t", "s"))
    shared.ack(0, 1, 5, 7)
    bench.subscribe("t", "gone")
    bench.ask(bench.engine.topics.unsubscribe("t", "gone"))
    bench.publish("deleted", b"x")
    bench.ask(bench.engine.topics.delete("deleted"))
    return ids


def picture(bench: Bench, ids: dict[str, str]) -> dict[str, Any]:
    """Everything that can be seen from outside."""
    engine = bench.engine
    stats = engine.stats()
    seen: dict[str, Any] = {name: bench.view(id_) for name, id_ in ids.items()}
    seen["listed messages"] = sorted(view.id for view in bench.listed(owner="ann"))
    seen["finalised"] = [
        view.id for view in bench.ask(engine.list_messages(MessageQuery(state="finalised"))).messages
    ]
    seen["figures"] = (stats.pending, stats.owners, stats.topics, stats.counters)
    seen["policy"] = engine.policy("topic", "ticking")
    for name in engine.topics.names():
        topic = engine.topics.stats(name)
        subs = {sub: {**of, "consumers": [], "unacked": 0} for sub, of in topic.subscriptions.items()}
        seen[name] = (topic.next_entry, topic.delayed, subs, topic.incarnation)
    producers = engine.topics.find("t").producers
    seen["producers"] = {name: known.row() for name, known in producers.items()}
    seen["watermark"] = InsidesOf(engine).watermark >= (0, 0)
    return seen


def lose_the_registry(bench: Bench) -> None:
    bench.registry_disk.images.clear()
    bench.registry_disk.images.append(None)


def kill_without_registry(bench: Bench) -> None:
    bench.kill()
    lose_the_registry(bench)


ENDINGS: dict[str, Callable[[Bench], None]] = {
    "stop": lambda bench: bench.stop(),
    "kill": lambda bench: bench.kill(),
    "crash": lambda bench: bench.crash(),
    "crash, losing transactions": lambda bench: bench.crash(lose_transactions=3),
    "kill, without a registry": kill_without_registry,
}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_state_after_a_restart_is_the_state_before(bench: Bench, ending: str, flushed: bool) -> None:
    ids = everything(bench)
    if flushed:
        bench.wait(3000)
    before = picture(bench, ids)
    for _ in range(2):
        ENDINGS[ending](bench)
        bench.start()
        assert picture(bench, ids) == before
    again = Message(destination="orders", idempotency_key="once", delay_ms=limits.DAY_MS)
    assert bench.ask(bench.engine.schedule(again)).id == ids["keyed"]
    assert bench.publish("t", b"by p", producer="p", producer_sequence=7) == [-1]
    assert bench.reader(bench.engine.topics.subscription("t", "s")).ids == [2, 3, 4, 6, 8, 9, 11]
    bench.leap(2 * limits.DAY_MS)
    bench.run()
    states = {name: bench.state(id_) for name, id_ in ids.items()}
    assert states == {
        "waits": "sent", "listed": "sent", "foreign": "sent", "grouped": "sent", "untimed": "cancelled",
        "keyed": "sent", "sent": "sent", "cancelled": "cancelled", "restarted": "sent",
    }  # fmt: skip
    payloads = bench.drain("orders").payloads
    assert (payloads.count(b"waits"), payloads.count(b"restarted"), payloads.count(b"sent")) == (1, 1, 1)


def test_what_became_due_while_the_server_was_down_goes_out_at_once(bench: Bench) -> None:
    own = bench.schedule(payload=b"own", delay_ms=1000)
    foreign = bench.schedule(FOREIGN, payload=b"foreign", delay_ms=1000)
    later = bench.schedule(payload=b"later", delay_ms=10_000)
    bench.crash()
    bench.clock.advance(5000)
    bench.start()
    bench.run()
    assert [bench.state(done.id) for done in (own, foreign, later)] == ["sent", "sent", "scheduled"]


def test_what_was_being_sent_goes_out_again_with_the_same_id(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    first = bench.attempt()
    first.arrive()
    bench.crash()
    bench.start()
    bench.rest()
    assert bench.attempt().delivery.id == first.delivery.id == done.id
    bench.verdict(Delivered())
    assert len(bench.outlet.arrivals) == 2
    assert bench.state(done.id) == "sent"


def test_an_order_is_kept_over_a_restart(bench: Bench) -> None:
    for n in range(5):
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=1)
    bench.wait(1)
    bench.crash()
    bench.start()
    bench.run()
    assert bench.arrived() == [b"%d" % n for n in range(5)]


def test_nothing_is_taken_before_the_recovery_is_over() -> None:
    bench = Bench(start=False)
    bench.start()
    assert bench.engine.ready


def test_ids_seqs_and_the_watermark_go_on(bench: Bench) -> None:
    first = bench.schedule(delay_ms=10)
    bench.wait(20_000)
    watermark = bench.watermark
    assert watermark.fire_at_ms > 0
    bench.crash()
    bench.start()
    assert bench.watermark >= watermark
    assert bench.schedule(delay_ms=10).id != first.id


# A data folder that does not fit together


class Folder:
    """A ledger and a registry, each of which can be replaced."""

    def __init__(self, path: Path, ledger_id: bytes) -> None:
        self.path = path
        self.disk = SimulatedDisk()
        self.clock = SimulatedClock()
        self.ledger_id = ledger_id

    def start(self) -> Engine:
        ledger = Ledger.open(
            self.disk,
            "ledger",
            LedgerSettings(segment_bytes=1 << 16),
            self.clock,
            new_ledger_id=self.ledger_id,
        )
        self.registry = Registry(str(self.path))

        def offload(work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
            work()
            done(None)

        engine = Engine(Surroundings(
            ledger=ledger, registry=self.registry, index=SimulatedIndex(), clock=self.clock, ids=Ids(bytes(32)), outlets={},
            launch=lambda *_: None, offload=offload, settings=EngineSettings(),
        ))  # fmt: skip
        engine.recover()
        return engine

    def work(self, engine: Engine, messages: int) -> None:
        ledger = InsidesOf(engine).ledger
        for _ in range(messages):
            _ = engine.schedule(Message(destination="t", delay_ms=limits.HOUR_MS))
            ledger.commit()
        self.clock.advance(1000)
        engine.tick()
        while ledger.commit():
            pass
        ledger.close()
        self.registry.close()


def test_a_registry_of_another_installation_is_refused(tmp_path: Path) -> None:
    one, two = Folder(tmp_path / "one.db", b"1" * 16), Folder(tmp_path / "two.db", b"2" * 16)
    for folder in (one, two):
        folder.work(folder.start(), 3)
    one.path = two.path
    with pytest.raises(Unavailable, match="two backups mixed"):
        one.start()
    one.registry.close()


def test_a_registry_newer_than_its_ledger_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "registry.db", b"1" * 16)
    folder.work(folder.start(), 3)
    older = folder.disk.copy()
    folder.work(folder.start(), 3)
    folder.disk = older
    with pytest.raises(Unavailable, match="ledger is older than the registry"):
        folder.start()
    folder.registry.close()


def test_a_registry_older_than_its_ledger_catches_up(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "registry.db", b"1" * 16)
    folder.work(folder.start(), 3)
    old = (tmp_path / "registry.db").read_bytes()
    folder.work(folder.start(), 4)
    (tmp_path / "older.db").write_bytes(old)
    folder.path = tmp_path / "older.db"
    engine = folder.start()
    assert engine.stats().pending == 7
    folder.registry.close()


def test_a_registry_older_than_what_is_left_of_the_ledger_is_refused_with_advice() -> None:
    settings = EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000)
    bench = Bench(settings=settings, ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    for _ in range(300):
        done = bench.schedule(payload=bytes(900), delay_ms=limits.DAY_MS)
        bench.ask(bench.engine.cancel(done.id))
    for _ in range(6):
        bench.wait(1100)
    assert bench.first_seq > 1
    bench.kill()
    lose_the_registry(bench)
    with pytest.raises(Unavailable, match="snapshot"):
        bench.start()


def test_a_damaged_registry_says_which_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "registry.db", b"1" * 16)
    engine = folder.start()
    _ = engine.set_policy("topic", "t", Policy(tick_ms=5))
    folder.work(engine, 1)
    with sqlite3.connect(tmp_path / "registry.db") as connection:
        connection.execute("UPDATE policies SET crc = crc + 1")
    connection.close()
    with pytest.raises(Damage, match="policies"):
        folder.start()
    folder.registry.close()


def test_a_flipped_bit_in_a_stored_record_is_found_at_the_start(bench: Bench) -> None:
    bench.schedule(payload=b"DAMAGED-BODY", delay_ms=limits.DAY_MS)
    bench.schedule(payload=b"after", delay_ms=limits.DAY_MS)
    bench.kill()
    bench.flip(b"DAMAGED-BODY")
    with pytest.raises(Damage, match=r"00000001\.seg.*damaged at byte"):
        bench.start()


def test_a_disk_that_failed_is_whole_again_after_a_restart(bench: Bench) -> None:
    kept = bench.schedule(payload=b"kept", delay_ms=1000)
    bench.disk.fail_next("write", errno.ENOSPC)
    _ = bench.engine.schedule(Message(destination="orders", delay_ms=10))
    bench.rest()
    bench.crash()
    bench.start()
    bench.wait(1000)
    assert bench.state(kept.id) == "sent"
    bench.schedule(delay_ms=1)
