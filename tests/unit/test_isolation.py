"""One message that provokes an error ends by itself: the others go out, and the engine goes on.

Each test makes one function fail for one message, at one step of its way.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from tarry.core.errors import TooLarge
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message, Scheduled
from tarry.core.rules.policy import Policy
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, full

POISON = b"poison"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.expects_errors = True
    return bench


def poison(patched: pytest.MonkeyPatch, name: str, is_poison: Callable[..., bool]) -> None:
    """Let a function fail for some of its calls."""
    real = resolve_name(f"tarry.engine.{name}")

    def fail(*args: Any, **options: Any) -> Any:
        if is_poison(*args, **options):
            raise ValueError("this text must not be told")
        return real(*args, **options)

    patched.setattr(f"tarry.engine.{name}", fail)


def schedule_some(bench: Bench, destination: str, delay_ms: int = 100, **fields: Any) -> list[Scheduled]:
    """Ten messages due at one instant, the fifth of them poisoned."""
    answers = bench.ask(
        bench.engine.schedule_many(
            [
                Message(
                    destination=destination,
                    payload=POISON if n == 4 else b"%d" % n,
                    delay_ms=delay_ms,
                    **fields,
                )
                for n in range(10)
            ]
        )
    )
    assert all(isinstance(one, Scheduled) for one in answers)
    return answers  # type: ignore[return-value]


SOUND = [b"%d" % n for n in range(10) if n != 4]


def assert_only_the_fifth_failed(bench: Bench, answers: list[Scheduled]) -> None:
    assert [bench.state(one.id) for one in answers] == ["failed" if n == 4 else "sent" for n in range(10)]
    origin = bench.ids.read(answers[4].id)
    assert origin is not None
    seq = origin[0]
    reason = bench.view(answers[4].id).reason or ""
    assert f"at seq {seq}: ValueError" in reason
    assert "must not be told" not in reason
    assert bench.engine.stats().pending == 0
    assert bench.engine.stats().counters["isolated"] >= 1
    # A restart finds the same, and nothing holds the watermark back.
    bench.reopen()
    reopened_ms = bench.now_ms
    bench.wait(130_000)
    assert [bench.state(one.id) for one in answers] == ["failed" if n == 4 else "sent" for n in range(10)]
    assert bench.watermark.fire_at_ms > reopened_ms


def test_encoding_a_burst(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = bench.drain("orders")
    poison(monkeypatch, "dispatch.burst.unit_of_fired", lambda *args: any(POISON in body for body in args[5]))
    answers = schedule_some(bench, "orders")
    bench.wait(100)
    assert reader.payloads == SOUND
    assert_only_the_fifth_failed(bench, answers)


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_deciding(bench: Bench, monkeypatch: pytest.MonkeyPatch, destination: str) -> None:
    poison(monkeypatch, "dispatch.decisions.has_expired", lambda _key, head, _now: head.payload == POISON)
    answers = schedule_some(bench, destination, ttl_ms=60_000)
    bench.run(100)
    assert_only_the_fifth_failed(bench, answers)


def test_reading(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "bodies.readahead.read_due", lambda bodies: any(POISON in body for body in bodies))
    answers = schedule_some(bench, "orders")
    bench.run(100)
    assert_only_the_fifth_failed(bench, answers)


def test_reading_ahead_is_left_until_they_are_due(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def has_poison(bodies: list[bytes]) -> bool:
        calls.append(len(bodies))
        return any(POISON in body for body in bodies)

    poison(monkeypatch, "bodies.readahead.read_due", has_poison)
    answers = schedule_some(bench, "orders", 10_000)
    bench.run(9_999)
    looked = len(calls)
    assert 0 < looked < 20
    bench.run(1)
    assert_only_the_fifth_failed(bench, answers)


def test_a_limit_that_cannot_be_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.ask(bench.engine.set_policy("namespace", "public/default", Policy(send_per_second=1.0)))
    poison(
        monkeypatch,
        "dispatch.decisions.Decisions._put_off",
        lambda _self, _key, head, *_rest: head.payload == POISON,
    )
    answers = schedule_some(bench, "orders")
    bench.run(20_000)
    assert_only_the_fifth_failed(bench, answers)


def test_an_order_key_that_cannot_be_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def order_key(_destination: str, key: str | None) -> str | None:
        if key == "poison":
            raise ValueError
        return key

    monkeypatch.setattr(bench.outlet, "order_key", order_key)
    good = bench.schedule(FOREIGN, payload=b"good", delay_ms=100)
    bad = bench.schedule(FOREIGN, payload=b"bad", key="poison", delay_ms=100)
    bench.run(100)
    assert bench.arrived() == [b"good"]
    assert (bench.state(good.id), bench.state(bad.id)) == ("sent", "failed")


@pytest.mark.parametrize("together", [1, 10])
def test_leaving(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    bench = Bench(together=together)
    bench.expects_errors = True
    poison(monkeypatch, "flights.flights.Delivery", lambda *fields: fields[2] == POISON)
    answers = schedule_some(bench, FOREIGN)
    bench.run(100)
    assert sorted(bench.arrived()) == SOUND
    assert_only_the_fifth_failed(bench, answers)


@pytest.mark.parametrize("after_ms", [10**30, 1 << 62])
def test_a_receiver_that_wishes_for_an_instant_that_no_wheel_holds(bench: Bench, after_ms: int) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("busy", after_ms=after_ms))
    assert bench.state(done.id) == "scheduled"
    assert not bench.isolated
    assert bench.ask(bench.engine.cancel(done.id)).state == "cancelled"


def test_trying_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise ArithmeticError

    bad = bench.schedule(FOREIGN, payload=b"bad", delay_ms=1)
    bench.wait(1)
    with monkeypatch.context() as patched:
        patched.setattr("tarry.engine.flights.verdicts.Verdicts._backoff_ms", fail)
        bench.verdict(Retry("busy"))
    assert bench.state(bad.id) == "failed"
    assert "was to be tried again" in (bench.view(bad.id).reason or "")
    good = bench.schedule(FOREIGN, payload=b"good", delay_ms=1)
    bench.run(1)
    assert bench.state(good.id) == "sent"
    ended_ms = bench.now_ms
    bench.wait(130_000)
    assert bench.watermark.fire_at_ms > ended_ms


def test_claiming_for_a_group(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "state.groups.Groups.ends_of_siblings", lambda _self, put, *_: put.group == "poison")
    bad = bench.schedule(FOREIGN, payload=b"bad", group="poison", delay_ms=100)
    sibling = bench.schedule(FOREIGN, payload=b"sibling", group="poison", delay_ms=200)
    good = bench.schedule(FOREIGN, payload=b"good", group="g", delay_ms=100)
    bench.run(100)
    assert (bench.state(bad.id), bench.state(good.id)) == ("failed", "sent")
    assert bench.state(sibling.id) == "scheduled"
    assert bench.arrived() == [b"good"]


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_a_group_whose_unit_no_segment_holds(bench: Bench, destination: str) -> None:
    """As one from before its size was checked at the accept: it ends, and its siblings go on."""
    bad = bench.schedule(destination, payload=b"bad", group="g", delay_ms=100)
    sibling = bench.schedule(destination, payload=b"sibling", group="g", delay_ms=200)
    ledger = bench.ledger
    real = ledger.append_unit

    def append_unit(unit: Any, *args: Any, **options: Any) -> int:
        if unit.records > 1 and b"another of its group" in unit.bodies and b"sibling" not in unit.bodies:
            raise TooLarge("the operation", 1)
        return real(unit, *args, **options)

    ledger.append_unit = append_unit  # type: ignore[method-assign]
    bench.run(100)
    assert bench.state(bad.id) == "failed"
    assert "larger than the limit" in (bench.view(bad.id).reason or "")
    bench.run(100)
    assert bench.state(sibling.id) == "sent"


def test_a_dead_letter_that_cannot_be_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "flights.failures.dead_letter", lambda put, *_rest: put.payload == POISON)
    done = bench.schedule(FOREIGN, payload=POISON, owner="ann", group="g", delay_ms=1)
    orphan = bench.schedule(FOREIGN, owner="ann", group="g")
    bench.wait(1)
    bench.verdict(Refused("no"))
    assert bench.state(done.id) == "failed"
    assert bench.state(orphan.id) == "cancelled"
    assert bench.engine.pending_of("ann", "public/default") == 0


def test_a_leader_whose_group_cannot_begin_was_sent_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError

    monkeypatch.setattr("tarry.engine.flights.verdicts.beginnings", fail)
    leader, member = bench.ask(
        bench.engine.schedule_many(
            [
                Message(destination=FOREIGN, owner="ann", leads="g", delay_ms=1),
                Message(destination=FOREIGN, owner="ann", group="g", delay_ms=5),
            ],
            all_or_none=True,
        )
    )
    bench.wait(1)
    bench.verdict(Delivered("its-name"))
    assert bench.state(leader.id) == "sent"
    assert bench.state(member.id) == "cancelled"
    assert bench.engine.pending_of("ann", "public/default") == 0


def test_carrying(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError

    bad = bench.schedule(FOREIGN, payload=b"bad", owner="ann", delay_ms=1)
    bench.wait(1)
    with monkeypatch.context() as patched:
        patched.setattr("tarry.engine.flights.deferral.new_version", fail)
        bench.verdict(Retry("busy", after_ms=100_000))
    assert bench.state(bad.id) == "failed"
    assert bench.engine.pending_of("ann", "public/default") == 0


def test_entries_that_are_ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be shown is passed over; the others are had."""
    reader = bench.drain("orders")
    due_at_ms = bench.now_ms + 100
    for payload in (b"a", POISON, b"b"):
        bench.publish("orders", payload, deliver_at_ms=due_at_ms)

    def has_poison(entries: Any, _ids: Any) -> bool:
        return any(entry.payload == POISON for entry in entries)

    poison(monkeypatch, "topics.topic_records.received_entries", has_poison)
    poison(monkeypatch, "topics.entry_reader.received_entries", has_poison)
    bench.wait(100)
    assert reader.payloads == [b"a", b"b"]
    assert bench.engine.topics.by_name[full("orders")].subscriptions["drain"].backlog == 2
    bench.reopen()
    assert bench.drain("orders", "later").payloads == [b"a", b"b"]


def test_a_consumer_that_cannot_be_given_something_is_detached(bench: Bench) -> None:
    sub = bench.subscribe("orders")
    told: list[str] = []

    def refuse(_entries: Any) -> None:
        raise ValueError

    broken = sub.attach("broken", refuse)
    broken.on_close = lambda: told.append("closed")
    broken.flow(10)
    bench.publish("orders", b"a", b"b")
    assert told == ["closed"]
    assert bench.reader(sub).payloads == [b"a", b"b"]


def test_listing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = schedule_some(bench, "orders", 60_000)
    poison(monkeypatch, "queries.listing.view_of_put", lambda put, *_rest: put.payload == POISON)
    assert [view.id for view in bench.listed()] == [one.id for n, one in enumerate(answers) if n != 4]


def test_reclaiming(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that cannot be carried forward stays where it is, and keeps nothing else from it."""
    bench = Bench(
        settings=EngineSettings(snapshot_every_ms=1_000, reclaim_every_ms=1_000),
        ledger_settings=LedgerSettings(segment_bytes=1 << 14),
    )
    poison(monkeypatch, "upkeep.reclaim.new_version", lambda put, *_rest, **_options: put.payload == POISON)
    bad = bench.schedule(payload=POISON, delay_ms=600_000)
    other = bench.schedule(payload=b"other", delay_ms=600_000)
    for _ in range(100):
        bench.schedule(payload=bytes(1_000), delay_ms=1)
    bench.wait(30_000)
    assert bench.first_seq == 1
    bench.wait(600_000)
    assert (bench.state(bad.id), bench.state(other.id)) == ("sent", "sent")


def test_a_fault_is_still_a_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the ledger has a record that memory does not follow, nothing is blamed on a message."""

    def fail(*_: Any) -> None:
        raise ValueError("broken")

    bench.schedule(payload=b"x", delay_ms=1)
    monkeypatch.setattr(bench.engine_state, "_decide_fired", fail)
    bench.clock.advance(1)
    with pytest.raises(ValueError, match="broken"):
        bench.rest()
    assert not bench.isolated


def test_no_memory_is_no_fault_of_a_message(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    done = bench.schedule(payload=b"x", delay_ms=1)
    with monkeypatch.context() as patched:
        patched.setattr("tarry.engine.dispatch.burst.unit_of_fired", fail)
        bench.clock.advance(1)
        with pytest.raises(MemoryError):
            bench.rest()
    bench.reopen()
    bench.wait(1)
    assert bench.state(done.id) == "sent"
