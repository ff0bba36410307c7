"""Listing: stable pages, filters, and nothing that waits is left out."""

from typing import Any

import pytest

from tarry.core.errors import Invalid, NotFound
from tarry.core.limits import HOUR_MS
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, MessageQuery, MessageView
from tarry.engine.queries.listing import LOOK_AT, LOOK_BYTES
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, full


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=8 << 20))


def pages(bench: Bench, **query: Any) -> list[list[MessageView]]:
    found: list[list[MessageView]] = []
    page: str | None = None
    while True:
        answer = bench.ask(bench.engine.list_messages(MessageQuery(**query, page=page)))
        found.append(answer.messages)
        page = answer.next_page
        if page is None:
            return found


def payloads(views: list[MessageView]) -> list[bytes]:
    return [view.payload for view in views if isinstance(view.payload, bytes)]


def test_what_waits_is_listed_by_due_time(bench: Bench) -> None:
    for delay in (300, 100, 200):
        bench.schedule(payload=b"%d" % delay, delay_ms=delay)
    assert payloads(bench.listed()) == [b"100", b"200", b"300"]


def test_what_is_shown_is_what_is_got(bench: Bench) -> None:
    done = bench.schedule(payload=b"p", owner="ann", headers={"a": "b"}, delay_ms=100)
    bench.ask(bench.engine.restart(done.id, delay_ms=200))
    (view,) = bench.listed()
    assert view == bench.view(done.id)


def test_pages_are_stable_while_things_change(bench: Bench) -> None:
    ids = [bench.schedule(payload=b"%03d" % n, delay_ms=1000 + n).id for n in range(50)]
    first = bench.ask(bench.engine.list_messages(MessageQuery(limit=20)))
    # Some of both pages end, and new ones come before and after the place where it goes on.
    for n in (3, 25, 26):
        bench.ask(bench.engine.cancel(ids[n]))
    bench.schedule(payload=b"early", delay_ms=10)
    bench.schedule(payload=b"late", delay_ms=1030)
    second = bench.ask(bench.engine.list_messages(MessageQuery(limit=50, page=first.next_page)))
    assert payloads(first.messages) == [b"%03d" % n for n in range(20)]
    rest = [b"%03d" % n for n in range(20, 50) if n not in (25, 26)]
    assert payloads(second.messages) == [*rest[:9], b"late", *rest[9:]]
    assert second.next_page is None


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_all_pages_together_are_everything_once(bench: Bench, limit: int) -> None:
    messages = [Message(destination="orders", payload=b"%d" % n, delay_ms=1000 + n % 3) for n in range(100)]
    bench.ask(bench.engine.schedule_many(messages))
    found = pages(bench, limit=limit)
    assert all(len(page) <= limit for page in found)
    assert sorted(int(p) for page in found for p in payloads(page)) == list(range(100))


def test_a_page_looks_at_a_bounded_number_and_may_be_short(bench: Bench) -> None:
    count = LOOK_AT + 10
    messages = [
        Message(destination="orders", owner="ann" if n == count - 1 else "bob", delay_ms=1000)
        for n in range(count)
    ]
    bench.ask(bench.engine.schedule_many(messages))
    found = pages(bench, owner="ann")
    assert [len(page) for page in found] == [0, 1]


def test_a_page_reads_a_bounded_number_of_bytes_and_may_be_short() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 22))
    large = LOOK_BYTES // 4
    for n in range(10):
        bench.schedule(payload=bytes(large), owner="ann" if n == 9 else "bob", delay_ms=1000)
    found = pages(bench, owner="ann")
    assert [len(page) for page in found] == [0, 0, 1]


def test_filters(bench: Bench) -> None:
    bench.schedule(payload=b"1", owner="ann", key="k", group="g", delay_ms=100)
    bench.schedule("acme/eu/bills", payload=b"2", owner="bob", door="pulsar", delay_ms=200)
    bench.schedule(FOREIGN, payload=b"3", owner="ann", delay_ms=300)
    start = bench.now_ms
    assert payloads(bench.listed(owner="ann")) == [b"1", b"3"]
    assert payloads(bench.listed(owner="")) == []
    assert payloads(bench.listed(destination=full("orders"))) == [b"1"]
    assert payloads(bench.listed(destination=FOREIGN)) == [b"3"]
    assert payloads(bench.listed(namespace="acme/eu")) == [b"2"]
    assert payloads(bench.listed(key="k")) == [b"1"]
    assert payloads(bench.listed(group="g")) == [b"1"]
    assert payloads(bench.listed(door="pulsar")) == [b"2"]
    assert payloads(bench.listed(owner="ann", key="other")) == []
    assert payloads(bench.listed(due_from_ms=start + 200)) == [b"2", b"3"]
    assert payloads(bench.listed(due_to_ms=start + 200)) == [b"1"]
    assert payloads(bench.listed(due_from_ms=start + 101, due_to_ms=start + 300)) == [b"2"]


def test_what_is_being_sent_or_retried_is_listed_too(bench: Bench) -> None:
    ids = [bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=10 + n).id for n in range(3)]
    bench.wait(20)
    assert [view.id for view in bench.listed()] == ids
    assert [str(view.state) for view in bench.listed()] == ["sending", "scheduled", "scheduled"]
    bench.verdict(Retry("no", after_ms=1000))
    assert sorted(view.id for view in bench.listed()) == sorted(ids)
    assert [str(view.state) for view in bench.listed()] == ["scheduled"] * 3
    assert sorted(view.id for page in pages(bench, limit=1) for view in page) == sorted(ids)
    bench.wait(1000)
    bench.verdict(Delivered())
    assert sorted(view.id for view in bench.listed()) == sorted(ids[1:])


def test_entries_that_do_not_wait_are_not_listed(bench: Bench) -> None:
    bench.publish("t", b"now")
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + 100)
    assert payloads(bench.listed()) == [b"late"]
    bench.wait(100)
    assert bench.listed() == []


def test_members_without_a_due_instant_come_last(bench: Bench) -> None:
    bench.schedule(payload=b"timed", group="g", delay_ms=100)
    bench.schedule(payload=b"untimed", group="g")
    assert payloads(bench.listed()) == [b"timed", b"untimed"]


def test_a_damaged_message_does_not_hide_the_others(bench: Bench) -> None:
    bench.schedule(payload=b"DAMAGED-BODY", delay_ms=100)
    bench.schedule(payload=b"sound", delay_ms=100)
    bench.flip(b"DAMAGED-BODY")
    assert payloads(bench.listed()) == [b"sound"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": -1}, {"limit": 1001}])
def test_bad_limits(bench: Bench, query: dict[str, Any]) -> None:
    for state in ("scheduled", "finalised"):
        answer = bench.engine.list_messages(MessageQuery(state=state, **query))
        assert bench.refused(answer, Invalid).field == "limit"


@pytest.mark.parametrize("page", ["", "x", "!" * 22, "A" * 23, "é" * 22])
def test_bad_pages(bench: Bench, page: str) -> None:
    for state in ("scheduled", "finalised"):
        answer = bench.engine.list_messages(MessageQuery(state=state, page=page))
        assert bench.refused(answer, Invalid).field == "page"


@pytest.mark.parametrize("page", ["_" * 21 + "w", "_" * 21 + "A"])
def test_a_page_beyond_everything_is_empty(bench: Bench, page: str) -> None:
    bench.schedule(delay_ms=100)
    for state in ("scheduled", "finalised"):
        answer = bench.engine.list_messages(MessageQuery(state=state, page=page))
        bench.rest()
        assert isinstance(answer.error(), Invalid) or answer.value().messages == []


# Finalised


def test_what_is_finalised_is_listed_the_newest_first(bench: Bench) -> None:
    ids = []
    for n in range(10):
        ids.append(bench.schedule(FOREIGN if n % 2 else "orders", owner="ann", delay_ms=1).id)
        bench.run(1)
    cancelled = bench.schedule(owner="bob", delay_ms=1000)
    bench.ask(bench.engine.cancel(cancelled.id))
    found = bench.listed(state="finalised")
    assert [view.id for view in found] == [cancelled.id, *reversed(ids)]
    assert [str(view.state) for view in found] == ["cancelled"] + ["sent"] * 10
    assert [view.id for view in bench.listed(state="finalised", owner="bob")] == [cancelled.id]
    together = [view.id for page in pages(bench, state="finalised", limit=3) for view in page]
    assert together == [cancelled.id, *reversed(ids)]


def test_finalised_pages_with_many_of_one_instant(bench: Bench) -> None:
    bench.ask(bench.engine.schedule_many([Message(destination="orders", delay_ms=1)] * 100))
    bench.wait(1)
    found = [view.id for page in pages(bench, state="finalised", limit=7) for view in page]
    assert len(found) == len(set(found)) == 100


def test_finalised_filters(bench: Bench) -> None:
    start = bench.now_ms
    for delay in (10, 20, 30):
        bench.schedule(key=str(delay), delay_ms=delay)
    bench.wait(30)
    assert [v.key for v in bench.listed(state="finalised", due_from_ms=start + 20)] == ["30", "20"]
    assert [v.key for v in bench.listed(state="finalised", due_to_ms=start + 20)] == ["10"]
    assert [v.key for v in bench.listed(state="finalised", key="20")] == ["20"]


def test_finalised_messages_are_forgotten_after_their_retention(bench: Bench) -> None:
    done = bench.schedule(delay_ms=1)
    bench.wait(1000)
    bench.leap(bench.settings.finalised_retention_ms)
    bench.wait(bench.settings.reclaim_every_ms + 1)
    assert bench.listed(state="finalised") == []
    bench.refused(bench.engine.get(done.id), NotFound)


def test_a_page_of_what_is_finalised_reads_a_bounded_number_of_bytes() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 22))
    # A listed message is remembered with its body.
    for n in range(120):
        owner = "ann" if n == 0 else "bob"
        bench.schedule(FOREIGN, payload=bytes(100_000), owner=owner, listed=True, delay_ms=1)
        bench.run(1)
    found = pages(bench, state="finalised", owner="ann")
    assert [len(page) for page in found] == [0, 0, 1]
    assert len([view for page in pages(bench, state="finalised") for view in page]) == 120


def refuse_once(bench: Bench) -> None:
    """The receiver takes nothing of what is under way, and is tried again later."""
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Retry("away"))
    bench.rest()


def test_retrying_lists_what_was_tried_and_nothing_else(bench: Bench) -> None:
    bench.schedule(FOREIGN, payload=b"later", key="a-1", delay_ms=500)
    moved = bench.schedule(FOREIGN, payload=b"moved", delay_ms=600)
    bench.ask(bench.engine.restart(moved.id, delay_ms=700))
    ids = [bench.schedule(FOREIGN, payload=b"%d" % n, key=f"a-{n}", delay_ms=10).id for n in range(3)]
    bench.schedule(FOREIGN, payload=b"b", key="b-1", owner="bob", delay_ms=10)
    assert bench.listed(state="retrying") == []
    bench.wait(20)
    refuse_once(bench)
    assert payloads(bench.listed(state="retrying")) == [b"0", b"1", b"2", b"b"]
    assert {view.last_error for view in bench.listed(state="retrying")} == {"away"}
    assert payloads(bench.listed(state="retrying", key_prefix="a-")) == [b"0", b"1", b"2"]
    assert payloads(bench.listed(state="retrying", owner="bob")) == [b"b"]
    assert [payloads(page) for page in pages(bench, state="retrying", limit=2)][:2] == [
        [b"0", b"1"],
        [b"2", b"b"],
    ]
    # One that is restarted begins anew, and one that arrives has ended.
    bench.ask(bench.engine.restart(ids[0], delay_ms=1000))
    bench.ask(bench.engine.cancel(ids[1]))
    assert payloads(bench.listed(state="retrying")) == [b"2", b"b"]


def test_retrying_lists_what_was_carried_and_outlives_a_crash() -> None:
    bench = Bench(settings=EngineSettings(carry_after_ms=0))
    bench.schedule(FOREIGN, payload=b"x", delay_ms=10)
    bench.schedule(FOREIGN, payload=b"untried", delay_ms=HOUR_MS)
    bench.wait(20)
    refuse_once(bench)
    assert payloads(bench.listed(state="retrying")) == [b"x"]
    bench.crash()
    bench.start()
    assert payloads(bench.listed(state="retrying")) == [b"x"]
    bench.refused(bench.engine.list_messages(MessageQuery(state="retrying", outcome="failed")), Invalid)


def test_messages_are_listed_by_the_beginning_of_their_key(bench: Bench) -> None:
    for key in ("order-1", "order-2", "ordinary", None):
        bench.schedule(payload=(key or "none").encode(), key=key, delay_ms=10)
    assert payloads(bench.listed(key_prefix="order-")) == [b"order-1", b"order-2"]
    bench.wait(20)
    ended = bench.listed(state="finalised", key_prefix="ord")
    assert {view.key for view in ended} == {"order-1", "order-2", "ordinary"}
