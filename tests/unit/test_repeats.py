"""Repeats: messages that are sent again and again (ADR 0025)."""

import errno
from typing import Any

import pytest

from tarry.core.errors import Conflict, Invalid, NotFound, TooLarge, TooManyPending, Unavailable
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.core.messages.delivery import Delivered
from tarry.core.messages.message import Message, MessageQuery
from tarry.core.messages.repeat import Missed, Repeat
from tarry.core.rules.policy import Policy
from tarry.core.sets.seqset import SMALLEST_BLOCK_BITS
from tarry.core.time.times import parse_instant_ms
from tarry.engine.repeats import repeats
from tarry.engine.repeats.repeats import RepeatView
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tarry.testing.world import World
from tests.unit.engine_kit import FOREIGN, Bench, Reader, full_disk
from tests.unit.test_indexed import indexed, reclaimed, small_world

HOME = "public/default"
SECOND_MS = 1_000
STARTS_MS = parse_instant_ms("2026-11-20T08:00:00Z")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.clock.set(STARTS_MS)
    bench.rest()
    return bench


def give(bench: Bench, name: str = "tick", namespace: str = HOME, **fields: Any) -> RepeatView:
    if "cron" not in fields and "every_months" not in fields:
        fields.setdefault("every_ms", SECOND_MS)
    asked = Repeat(**{"destination": "orders", "payload": b"p", **fields})
    return bench.ask(bench.engine.repeats.set(namespace, name, asked))


def refused(bench: Bench, error: type[Any], **fields: Any) -> Any:
    asked = Repeat(**{"destination": "orders", "every_ms": SECOND_MS, **fields})
    return bench.refused(bench.engine.repeats.set(HOME, "tick", asked), error)


def look(bench: Bench, name: str = "tick") -> RepeatView:
    return bench.ask(bench.engine.repeats.get(HOME, name))


def planned(reader: Reader) -> list[int]:
    """The planned instants of what a consumer got, from the start on."""
    return [parse_instant_ms(one.headers["tarry-occurrence"]) - STARTS_MS for one in reader.got]


# When


def test_an_interval_begins_one_interval_from_now_and_each_occurrence_comes_once_and_on_time(
    bench: Bench,
) -> None:
    shown = give(bench, headers={"a": "b"}, owner="ann")
    assert shown.next_due_at_ms == [STARTS_MS + n * SECOND_MS for n in range(1, 6)]
    reader = bench.drain("orders")
    bench.wait(999)
    assert not reader.got
    bench.wait(1)
    assert [entry.published_at_ms for entry in reader.got] == [STARTS_MS + SECOND_MS]
    bench.wait(3_500)
    assert planned(reader) == [1_000, 2_000, 3_000, 4_000]
    assert [one.published_at_ms - STARTS_MS for one in reader.got] == planned(reader)
    assert reader.got[0].headers["a"] == "b"
    assert reader.got[0].headers["tarry-repeat"] == "tick"
    after = look(bench)
    assert (after.state, after.made, after.last_at_ms) == ("active", 4, STARTS_MS + 4_000)
    assert after.next_due_at_ms[0] == STARTS_MS + 5_000


def test_it_begins_at_its_start_and_ends_at_its_end(bench: Bench) -> None:
    give(bench, start_at_ms=STARTS_MS + 5_000, end_at_ms=STARTS_MS + 7_000)
    reader = bench.drain("orders")
    bench.wait(20_000)
    assert planned(reader) == [5_000, 6_000, 7_000]
    assert (look(bench).state, look(bench).next_due_at_ms) == ("over", [])


def test_a_start_in_the_past_gives_the_beat_and_no_missed_occurrence(bench: Bench) -> None:
    give(bench, start_at_ms=STARTS_MS - 10_250, missed="all")
    reader = bench.drain("orders")
    bench.wait(2_000)
    assert planned(reader) == [750, 1_750]


def test_a_count_ends_it_and_it_is_shown_for_a_week(bench: Bench) -> None:
    give(bench, count=2)
    reader = bench.drain("orders")
    bench.wait(10_000)
    assert planned(reader) == [1_000, 2_000]
    assert look(bench).state == "over"
    bench.reopen()
    bench.leap(6 * DAY_MS)
    assert look(bench).made == 2
    bench.leap(2 * DAY_MS)
    bench.refused(bench.engine.repeats.get(HOME, "tick"), NotFound)


def test_cron_is_the_wall_clock_of_its_zone(bench: Bench) -> None:
    shown = give(bench, cron="30 9 * * mon-fri", zone="Europe/Berlin")
    # A Friday; then the days of the next week.
    assert shown.next_due_at_ms[0] == parse_instant_ms("2026-11-20T08:30:00Z")
    assert shown.next_due_at_ms[1] == parse_instant_ms("2026-11-23T08:30:00Z")
    summer = give(
        bench,
        "summer",
        cron="30 9 * * *",
        zone="Europe/Berlin",
        start_at_ms=parse_instant_ms("2027-07-01T00:00:00Z"),
    )
    assert summer.next_due_at_ms[0] == parse_instant_ms("2027-07-01T07:30:00Z")


def test_months_are_those_of_the_calendar(bench: Bench) -> None:
    shown = give(bench, every_months=1, start_at_ms=parse_instant_ms("2027-01-31T00:00:00Z"))
    assert shown.next_due_at_ms[1] == parse_instant_ms("2027-03-03T00:00:00Z")


def test_jitter_delays_each_by_its_own_time_and_stays_the_same(bench: Bench) -> None:
    shown = give(bench, every_ms=10_000, jitter_ms=60_000)
    reader = bench.drain("orders")
    bench.wait(65_000)
    came = [one.published_at_ms - STARTS_MS for one in reader.got]
    # As it was shown beforehand, each before the next is planned, and not all alike.
    assert came[:5] == [at - STARTS_MS for at in shown.next_due_at_ms]
    late = [at - plan for at, plan in zip(came, planned(reader), strict=True)]
    assert all(0 <= one < 10_000 for one in late)
    assert len(set(late)) > 2


def test_where_nothing_is_delayed_an_occurrence_is_not_early(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("namespace", HOME, Policy(delayed_delivery=False)))
    give(bench)
    reader = bench.drain("orders")
    bench.wait(999)
    assert not reader.got
    bench.wait(1)
    assert len(reader.got) == 1


# Crashes and stops


@pytest.mark.parametrize("back_ms", [1, 100, 249, 251])
def test_a_crash_around_an_occurrence_neither_loses_nor_doubles_it(bench: Bench, back_ms: int) -> None:
    give(bench, missed="all")
    bench.wait(1_000 - back_ms)
    bench.crash()
    bench.start()
    reader = bench.drain("orders")
    bench.wait(2_000)
    assert planned(reader) == [1_000, 2_000]


def test_a_crash_at_every_step_leaves_each_occurrence_once() -> None:
    for steps in range(1, 40):
        bench = Bench(steps)
        bench.clock.set(STARTS_MS)
        bench.rest()
        give(bench, every_ms=100, count=5, missed="all")
        reader = bench.drain("orders")
        for _ in range(steps):
            bench.tick()
            if steps % 2:
                bench.commit()
            bench.clock.advance(17)
        del reader
        bench.crash(lose_transactions=steps % 3)
        bench.start()
        bench.wait(10_000)
        assert planned(bench.drain("orders", "after")) == [100, 200, 300, 400, 500]


def test_a_restart_from_the_registry_and_from_the_ledger_alone_goes_on_alike(bench: Bench) -> None:
    give(bench)
    bench.wait(5_000)
    bench.ask(bench.engine.flush())
    before = look(bench)
    bench.reopen()
    assert look(bench) == before
    bench.crash(lose_transactions=100)
    bench.start()
    assert look(bench) == before


@pytest.mark.parametrize(
    ("missed", "late"), [("all", [2_000, 3_000, 4_000, 5_000]), ("latest", [5_000]), ("none", [])]
)
def test_missed_occurrences_are_sent_late_as_its_policy_says(
    bench: Bench, missed: Missed, late: list[int]
) -> None:
    give(bench, missed=missed)
    bench.wait(1_000)
    bench.kill()
    bench.clock.advance(4_500)
    bench.start()
    reader = bench.drain("orders")
    bench.wait(1_500)
    assert planned(reader) == [1_000, *late, 6_000, 7_000]


def test_what_is_sent_late_says_so_by_its_due_instant_and_expires_by_it(bench: Bench) -> None:
    give(bench, every_ms=HOUR_MS, missed="all", ttl_ms=90 * MINUTE_MS)
    bench.kill()
    bench.clock.advance(3 * HOUR_MS + MINUTE_MS)
    bench.start()
    bench.wait(1_000)
    # The first was due two hours ago: its time to live is over.
    assert planned(bench.drain("orders")) == [2 * HOUR_MS, 3 * HOUR_MS]


def test_a_clock_set_far_forward_is_a_stop(bench: Bench) -> None:
    give(bench, missed="latest")
    reader = bench.drain("orders")
    bench.leap(DAY_MS)
    bench.wait(1_000)
    # The latest of the missed ones, then those of the last minute, which are only late.
    assert planned(reader) == list(range(DAY_MS - MINUTE_MS - 1_000, DAY_MS + 1_001, 1_000))


def test_catching_up_with_very_many_is_paced_and_delays_no_other_repeat(bench: Bench) -> None:
    give(bench, "flood", every_ms=1, missed="all")
    bench.wait(10)
    bench.kill()
    bench.clock.advance(DAY_MS)
    bench.start()
    started_ms = bench.now_ms
    give(bench, "other", destination="others", every_ms=100)
    flood, other = bench.drain("orders"), bench.drain("others")
    bench.wait(2_000)
    assert [one.published_at_ms - started_ms for one in other.got] == list(range(100, 2_001, 100))
    # Some of them, in order; of 86 million no more in a turn than fit.
    assert 500 <= len(flood.got) <= 4_000
    assert planned(flood) == list(range(1, len(flood.got) + 1))


# Bounds


def test_a_repeat_of_every_millisecond_for_a_century_is_accepted_held_and_listed_at_no_cost(
    bench: Bench,
) -> None:
    shown = give(bench, every_ms=1, start_at_ms=STARTS_MS + DAY_MS, end_at_ms=STARTS_MS + 36_500 * DAY_MS)
    assert shown.next_due_at_ms == [STARTS_MS + DAY_MS + n for n in range(5)]
    assert bench.engine.stats().pending == 0
    (listed,) = bench.ask(bench.engine.repeats.page(None)).repeats
    assert listed.next_due_at_ms == [STARTS_MS + DAY_MS]


def test_every_millisecond_comes(bench: Bench) -> None:
    give(bench, every_ms=1, count=700)
    reader = bench.drain("orders")
    bench.wait(1_000)
    assert planned(reader) == list(range(1, 701))
    assert all(
        one.published_at_ms >= STARTS_MS + plan for one, plan in zip(reader.got, planned(reader), strict=True)
    )


def test_thousands_due_together_are_taken_in_turns(bench: Bench) -> None:
    for n in range(300):
        give(bench, f"n{n:03}", every_ms=DAY_MS)
    reader = bench.drain("orders")
    bench.wait(DAY_MS)
    assert sorted(one.headers["tarry-repeat"] for one in reader.got) == [f"n{n:03}" for n in range(300)]
    assert {one.published_at_ms for one in reader.got} == {STARTS_MS + DAY_MS}


def test_repeats_count_for_the_limit_of_their_owner(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(max_pending_per_owner=2)))
    give(bench, "one", owner="ann", every_ms=DAY_MS)
    bench.schedule(owner="ann", delay_ms=DAY_MS)
    refused(bench, TooManyPending, owner="ann")
    give(bench, "other", owner="bob")
    # One that is replaced takes its own place.
    give(bench, "one", owner="ann", every_ms=HOUR_MS)


def test_the_content_of_all_repeats_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MAX_REPEATS", 2)
    give(bench, "one")
    give(bench, "two")
    assert "2 repeats" in str(refused(bench, Conflict))
    bench.ask(bench.engine.repeats.remove(HOME, "one"))
    monkeypatch.setattr(repeats, "MAX_REPEATS_BYTES", 2_000)
    refused(bench, Conflict, payload=bytes(2_000))
    give(bench)


def test_no_namespace_takes_the_last_repeats_from_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(namespace: str, name: str, size_bytes: int = 0) -> Any:
        repeat = Repeat(destination=FOREIGN, every_ms=DAY_MS, payload=bytes(size_bytes))
        return bench.engine.repeats.set(namespace, name, repeat)

    bench.shared = True
    monkeypatch.setattr(repeats, "MAX_REPEATS", 4)
    for name in ("one", "two"):
        bench.ask(ask(HOME, name))
    refusal = bench.refused(ask(HOME, "three"), Conflict)
    assert (refusal.state, "public/default has its share of the 4 repeats" in str(refusal)) == ("full", True)
    bench.ask(ask("acme/eu", "one"))
    # The place of one that is replaced is taken already, and one that is removed gives it back.
    bench.ask(ask(HOME, "two", 10))
    bench.ask(bench.engine.repeats.remove(HOME, "one"))
    bench.ask(ask(HOME, "three"))
    monkeypatch.setattr(repeats, "MAX_REPEATS", 100)
    monkeypatch.setattr(repeats, "MAX_REPEATS_BYTES", 10_000)
    bench.ask(ask(HOME, "four", 2_000))
    assert "MiB for the payloads" in str(bench.refused(ask(HOME, "five", 2_000), Conflict))
    assert "MiB for the payloads" in str(bench.refused(ask(HOME, "four", 5_000), Conflict))
    bench.ask(ask("acme/eu", "two", 2_000))
    bench.reopen()
    assert bench.engine_state.repeats.by_namespace == {HOME: 3, "acme/eu": 2}
    # One that shrinks is taken, whatever the namespace has.
    monkeypatch.setattr(repeats, "MAX_REPEATS_BYTES", 6_600)
    bench.ask(ask(HOME, "four", 1_900))
    monkeypatch.setattr(repeats, "MAX_REPEATS_BYTES", 10_000)
    bench.refused(ask(HOME, "five", 2_000), Conflict)
    bench.shared = False
    bench.ask(ask(HOME, "five", 2_000))


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"every_ms": 0}, Invalid, "give an interval or cron"),
        ({"cron": "* * * * *"}, Invalid, "not both"),
        ({"every_ms": -1}, Invalid, "every"),
        ({"every_ms": 101 * 366 * DAY_MS}, Invalid, "100 years"),
        ({"zone": "Europe/Berlin"}, Invalid, "is for cron"),
        (
            {"every_ms": 0, "cron": "* * * * *", "zone": "Europe/Berlinn"},
            Invalid,
            "did you mean Europe/Berlin?",
        ),
        ({"every_ms": 0, "cron": "* * * * *", "zone": "../../etc/passwd"}, Invalid, "no IANA time zone"),
        ({"every_ms": 0, "cron": "61 * * * *"}, Invalid, "minute"),
        ({"every_ms": 0, "cron": "0 0 30 2 *"}, Invalid, "never is"),
        ({"start_at_ms": STARTS_MS + 10, "end_at_ms": STARTS_MS}, Invalid, "before the start"),
        ({"end_at_ms": STARTS_MS + 10}, Invalid, "there is no occurrence"),
        ({"count": 0}, Invalid, "count"),
        ({"jitter_ms": 2 * DAY_MS}, Invalid, "jitter"),
        ({"payload": bytes(65 * 1024)}, TooLarge, "payload"),
        ({"headers": {"tarry-repeat": "x"}}, Invalid, "set by the repeat"),
        ({"destination": "ftp://x"}, Invalid, "ftp"),
        ({"destination": "persistent://a/b/c"}, Invalid, "namespace"),
    ],
)
def test_bad_repeats_are_refused_and_change_nothing(
    bench: Bench, fields: dict[str, Any], error: type[Any], words: str
) -> None:
    head = bench.engine.ledger.next_seq
    assert words in str(refused(bench, error, **fields))
    assert bench.engine.ledger.next_seq == head
    bench.refused(bench.engine.repeats.get(HOME, "tick"), NotFound)


def test_bad_names_are_refused(bench: Bench) -> None:
    for name in ("", "a/b", "x" * 256, "a\n"):
        bench.refused(bench.engine.repeats.set(HOME, name, Repeat(destination="o", every_ms=1)), Invalid)
    bench.refused(bench.engine.repeats.page(None, after="x"), Invalid)


# Commands


def test_once_a_removal_is_answered_nothing_that_was_not_due_goes_out(bench: Bench) -> None:
    give(bench)
    reader = bench.drain("orders")
    # The next occurrence is accepted already.
    bench.wait(1_900)
    assert bench.engine.stats().pending == 1
    bench.ask(bench.engine.repeats.remove(HOME, "tick"))
    assert bench.engine.stats().pending == 0
    bench.wait(10_000)
    assert planned(reader) == [1_000]
    bench.refused(bench.engine.repeats.remove(HOME, "tick"), NotFound)


def test_a_pause_takes_back_what_is_not_due_and_outlives_a_crash(bench: Bench) -> None:
    give(bench, missed="all")
    bench.wait(1_900)
    paused = bench.ask(bench.engine.repeats.pause(HOME, "tick"))
    assert (paused.state, paused.made, paused.next_due_at_ms[0]) == ("paused", 1, STARTS_MS + 2_000)
    assert bench.ask(bench.engine.repeats.pause(HOME, "tick")) == paused
    bench.crash()
    bench.start()
    reader = bench.drain("orders")
    bench.wait(2_000)
    assert planned(reader) == [1_000]
    assert look(bench).state == "paused"
    resumed = bench.ask(bench.engine.repeats.resume(HOME, "tick"))
    assert resumed.state == "active"
    bench.wait(200)
    # The one that was taken back comes too, once.
    assert planned(reader) == [1_000, 2_000, 3_000, 4_000]


def test_what_is_over_cannot_be_paused_and_its_last_occurrence_can_until_it_is_due(bench: Bench) -> None:
    give(bench, count=1)
    bench.wait(900)
    assert look(bench).state == "over"
    assert bench.ask(bench.engine.repeats.pause(HOME, "tick")).state == "paused"
    bench.ask(bench.engine.repeats.resume(HOME, "tick"))
    bench.wait(200)
    assert bench.refused(bench.engine.repeats.pause(HOME, "tick"), Conflict).state == "over"


def test_after_a_pause_the_policy_for_missed_ones_holds(bench: Bench) -> None:
    give(bench, missed="none")
    reader = bench.drain("orders")
    bench.ask(bench.engine.repeats.pause(HOME, "tick"))
    bench.wait(2_500)
    bench.ask(bench.engine.repeats.resume(HOME, "tick"))
    bench.wait(1_000)
    assert planned(reader) == [3_000]


def test_an_occurrence_that_was_commanded_by_itself_is_a_message_of_its_own(bench: Bench) -> None:
    give(bench, owner="ann")
    bench.wait(900)
    (one,) = bench.listed(owner="ann")
    bench.ask(bench.engine.restart(one.id, delay_ms=DAY_MS))
    bench.ask(bench.engine.repeats.remove(HOME, "tick"))
    assert bench.view(one.id).state == "scheduled"


def test_the_same_again_goes_on_and_another_begins_anew(bench: Bench) -> None:
    give(bench, count=5)
    reader = bench.drain("orders")
    bench.wait(2_900)
    assert give(bench, count=5).made == 3
    changed = give(bench, count=5, payload=b"q")
    assert changed.made == 0
    bench.wait(1_000)
    assert [one.payload for one in reader.got] == [b"p", b"p", b"q"]
    assert planned(reader)[-1] == 3_900


def test_occurrences_for_another_system_are_messages_with_ids_of_their_own(bench: Bench) -> None:
    give(bench, destination=FOREIGN, count=2)
    bench.wait(3_000)
    ids = {attempt.delivery.id for attempt in bench.outlet.under_way}
    assert len(ids) == 2


def test_pages_are_by_name_and_by_namespace(bench: Bench) -> None:
    for n in range(5):
        give(bench, f"n{n}", every_ms=DAY_MS)
    give(bench, "x", "a/b", destination="persistent://a/b/orders")
    first = bench.ask(bench.engine.repeats.page(HOME, limit=3))
    rest = bench.ask(bench.engine.repeats.page(HOME, limit=3, after=first.next_page))
    assert [one.name for one in (*first.repeats, *rest.repeats)] == ["n0", "n1", "n2", "n3", "n4"]
    assert rest.next_page is None
    assert bench.ask(bench.engine.repeats.page(None)).repeats[0].name == "x"


def test_a_namespace_takes_its_repeats_along(bench: Bench) -> None:
    bench.ask(bench.engine.catalogue.add_tenant("a", b"{}"))
    bench.ask(bench.engine.catalogue.add_namespace("a/b"))
    give(bench, "x", "a/b", destination=FOREIGN)
    bench.ask(bench.engine.catalogue.remove_namespace("a/b", force=True))
    assert not len(bench.engine.repeats)


# Trouble


def test_a_part_that_is_missing_is_said_and_waited_for(bench: Bench) -> None:
    give(bench, destination=FOREIGN, missed="all", every_ms=MINUTE_MS)
    bench.has_outlet = False
    bench.reopen()
    bench.wait(MINUTE_MS)
    assert "sim" in (look(bench).trouble or "")
    bench.has_outlet = True
    bench.reopen()
    bench.wait(MINUTE_MS)
    assert look(bench).trouble is None
    assert [one.delivery.headers["tarry-occurrence"] for one in bench.outlet.under_way]
    assert look(bench).made == 2


def test_a_full_disk_delays_and_loses_none(bench: Bench) -> None:
    give(bench, missed="all")
    bench.wait(500)
    full_disk(bench)
    while bench.engine.schedule(Message(destination="x", delay_ms=1, payload=bytes(4_000))).error() is None:
        bench.rest()
    bench.refused(bench.engine.repeats.set(HOME, "other", Repeat(destination="o", every_ms=1)), Unavailable)
    bench.wait(3_000)
    bench.disk.capacity_bytes = None
    bench.wait(3_000)
    assert sorted(set(planned(bench.drain("orders")))) == planned(bench.drain("orders", "again"))
    assert set(planned(bench.drain("orders", "more"))) >= {1_000, 2_000, 3_000, 4_000, 5_000}


def test_an_unexpected_error_about_one_repeat_keeps_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.expects_errors = True
    give(bench, "bad")
    give(bench, "good")
    make = bench.repeating._versions.make

    def fails(message: Message, *args: Any) -> Any:
        if message.headers["tarry-repeat"] == "bad":
            raise RuntimeError("out of order")
        return make(message, *args)

    monkeypatch.setattr(bench.repeating._versions, "make", fails)
    reader = bench.drain("orders")
    bench.wait(2_000)
    assert {one.headers["tarry-repeat"] for one in reader.got} == {"good"}
    assert "RuntimeError" in (look(bench, "bad").trouble or "")


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_an_occurrence_whose_record_is_not_at_hand_is_taken_back_too(destination: str) -> None:
    bench = small_world()
    asked = Repeat(destination=destination, payload=b"needle", every_ms=HOUR_MS, key="k", owner="ann")
    bench.settle(bench.engine.repeats.set(HOME, "tick", asked))
    bench.clock.advance(HOUR_MS - 100)
    bench.run(10)
    (ahead,) = bench.settle(bench.engine.list_messages(MessageQuery(owner="ann"))).messages
    bench.clock.jump(-HOUR_MS // 2)
    reclaimed(bench)
    assert bench.settle(bench.engine.repeats.pause(HOME, "tick")).made == 0
    view = bench.settle(bench.engine.get(ahead.id))
    assert (view.state, view.destination, view.owner, view.key) == (
        "cancelled",
        ahead.destination,
        "ann",
        "k",
    )
    bench.clock.advance(HOUR_MS)
    bench.run(1_000)
    assert not [one for one in bench.outlet.arrivals if one.delivery.id == ahead.id]


@pytest.mark.parametrize("crash", [False, True])
def test_an_occurrence_that_is_being_sent_is_not_taken_back_though_the_clock_is_set_back(
    bench: Bench, crash: bool
) -> None:
    give(bench, destination=FOREIGN)
    bench.wait(SECOND_MS)
    (attempt,) = bench.outlet.under_way
    if crash:
        bench.reopen()
    bench.clock.jump(-HOUR_MS)
    bench.ask(bench.engine.repeats.remove(HOME, "tick"))
    if not crash:
        attempt.answer(Delivered())
    else:
        bench.leap(HOUR_MS)
        bench.verdict(Delivered())
    bench.rest()
    assert bench.state(attempt.delivery.id) == "sent"


def test_after_a_failed_disk_repeats_are_unavailable(bench: Bench) -> None:
    give(bench)
    bench.disk.fail_next("sync", errno.EIO)
    bench.wait(2 * SECOND_MS)
    for answer in (
        bench.engine.repeats.remove(HOME, "tick"), bench.engine.repeats.get(HOME, "other"),
        bench.engine.repeats.set(HOME, "tick", Repeat(destination="orders", every_ms=7)),
    ):  # fmt: skip
        bench.refused(answer, Unavailable)


def test_an_occurrence_that_was_sent_long_ago_stays_sent_though_the_clock_is_set_back() -> None:
    world = World(
        settings=EngineSettings(snapshot_every_ms=100, reclaim_every_ms=100),
        ledger_settings=LedgerSettings(segment_bytes=4096 + 8192), dead_block_bits=SMALLEST_BLOCK_BITS,
    )  # fmt: skip
    world.settle(
        world.engine.repeats.set(HOME, "tick", Repeat(destination=FOREIGN, every_ms=MINUTE_MS, count=1))
    )
    world.clock.advance(MINUTE_MS - 100)
    world.run(200)
    (sent,) = world.outlet.arrivals
    seq = world.ids.read(sent.delivery.id)
    assert seq is not None
    reclaimed(world)
    for _ in range(60):
        indexed(world)
        world.settle(world.engine.schedule(Message(destination="noise", payload=bytes(200), delay_ms=1)))
    assert seq[0] not in world.dead, "it is known by the watermark alone that it has ended"
    world.clock.jump(-HOUR_MS)
    world.settle(world.engine.repeats.remove(HOME, "tick"))
    assert str(world.settle(world.engine.get(sent.delivery.id)).state) == "sent"


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_an_occurrence_that_was_sent_before_a_start_stays_sent_though_the_clock_is_set_back(
    destination: str,
) -> None:
    """The index has both, so a start does not read its end, and the watermark has not come to it."""
    world = small_world()
    asked = Repeat(destination=destination, every_ms=MINUTE_MS, count=1, owner="ann")
    world.settle(world.engine.repeats.set(HOME, "tick", asked))
    world.clock.advance(MINUTE_MS - 100)
    world.run(10)
    (ahead,) = world.settle(world.engine.list_messages(MessageQuery(owner="ann"))).messages
    world.run(100)
    world.settle(world.engine.flush())
    world.index.flush(world.ledger)
    world.kill()
    world.clock.jump(-HOUR_MS)
    world.start()
    world.settle(world.engine.repeats.remove(HOME, "tick"))
    assert str(world.settle(world.engine.get(ahead.id)).state) == "sent"
