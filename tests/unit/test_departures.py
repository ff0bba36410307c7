"""Departures: flights to one destination leave in one call of their outlet, and what came of them is written together."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tarry.core.errors import TarryError
from tarry.core.messages.delivery import Delivered, Delivery, Outlet, Refused, Retry, Verdict
from tarry.core.messages.message import Message
from tarry.engine.flights.flight import DEPARTURE_BYTES
from tarry.engine.flights.flights import OnVerdicts
from tarry.engine.loop.driver import launcher
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.read_record import PutHead
from tests.unit.engine_kit import Bench

A, B = "sim://shop/a", "sim://shop/b"


class Calls(Bench):
    """A world whose outlet takes several deliveries in a call; the payloads of each call are kept."""

    def __init__(self, together: int, **settings: Any) -> None:
        super().__init__(
            together=together,
            settings=EngineSettings(**settings),
            ledger_settings=LedgerSettings(segment_bytes=16 << 20),
            start=False,
        )
        self.calls: list[list[bytes]] = []
        launch = self.outlet.launch

        def kept(outlet: Outlet, deliveries: Sequence[Delivery], told: OnVerdicts) -> None:
            self.calls.append([delivery.payload for delivery in deliveries])
            launch(outlet, deliveries, told)

        self.outlet.launch = kept  # type: ignore[method-assign]
        self.start()

    def due(self, *destinations: str, **fields: object) -> None:
        """Messages that are due now, numbered."""
        many = [
            Message(destination=destination, payload=b"%d" % n, delay_ms=1, **fields)  # type: ignore[arg-type]
            for n, destination in enumerate(destinations)
        ]
        self.ask(self.engine.schedule_many(many))
        self.leap(1)

    def answer(self, *payloads: bytes, verdict: Verdict | None = None) -> None:
        """Give one verdict on several flights under way, at one time."""
        chosen = [one for one in self.outlet.under_way if one.delivery.payload in payloads]
        assert len(chosen) == len(payloads)
        self.outlet.answer([(attempt, verdict or Delivered()) for attempt in chosen])
        self.rest()

    @property
    def under_way(self) -> list[bytes]:
        return [attempt.delivery.payload for attempt in self.outlet.under_way]


def test_what_is_due_together_for_one_destination_leaves_in_one_call() -> None:
    bench = Calls(together=3)
    bench.due(A, A, B, A, A, B)
    assert bench.calls == [[b"0", b"1", b"3"], [b"2", b"5"], [b"4"]]


def test_an_outlet_that_takes_one_at_a_time_is_called_for_each() -> None:
    bench = Calls(together=1)
    bench.due(A, A, A)
    assert bench.calls == [[b"0"], [b"1"], [b"2"]]


def test_a_call_has_no_more_than_its_bytes() -> None:
    bench = Calls(together=10)
    for n in range(5):
        bench.schedule(A, payload=b"%d" % n + bytes(DEPARTURE_BYTES // 2), delay_ms=10)
    bench.leap(10)
    assert [[payload[:1] for payload in call] for call in bench.calls] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


def test_what_is_in_order_is_never_in_one_call() -> None:
    bench = Calls(together=10)
    bench.due(A, A, A, key="k")
    assert bench.calls == [[b"0"]]
    bench.answer(b"0")
    assert bench.calls == [[b"0"], [b"1"]]


def test_members_of_groups_leave_alone_and_of_one_group_only_one() -> None:
    bench = Calls(together=10)
    messages = [
        Message(destination=A, payload=b"%d" % n, group=group, delay_ms=1)
        for n, group in enumerate(["g", None, "g", None, "h"])
    ]
    bench.ask(bench.engine.schedule_many(messages))
    bench.leap(1)
    assert sorted(bench.calls) == [[b"0"], [b"1", b"3"], [b"4"]]
    assert bench.engine.stats().counters["cancelled"] == 1


def test_a_call_has_one_place_until_the_last_of_it_has_landed() -> None:
    bench = Calls(together=2, concurrency=1)
    bench.due(A, A, A, A)
    assert bench.calls == [[b"0", b"1"]]
    bench.answer(b"1")
    assert bench.calls == [[b"0", b"1"]]
    bench.answer(b"0")
    assert bench.calls == [[b"0", b"1"], [b"2", b"3"]]


def test_a_place_at_a_crowded_host_is_filled_with_what_goes_to_one_destination() -> None:
    bench = Calls(together=3, concurrency_per_host=1)
    bench.due(A, A, A, *[B, A] * 3)
    assert bench.calls == [[b"0", b"1", b"2"]]
    bench.answer(b"0", b"1", b"2")
    # The first that waits goes to B, and all that go there with it; then it is the turn of the others.
    assert bench.calls[1:] == [[b"3", b"5", b"7"]]
    bench.answer(b"3", b"5", b"7")
    assert bench.calls[2:] == [[b"4", b"6", b"8"]]


def test_a_crowded_host_holds_up_no_other() -> None:
    bench = Calls(together=2, concurrency_per_host=1)
    bench.due(A, A, A, A, "sim://other/a", A)
    assert bench.calls == [[b"0", b"1"], [b"4"]]


def test_owners_take_turns_for_room_in_a_call() -> None:
    bench = Calls(together=4)
    for n in range(6):
        bench.schedule(A, payload=b"a%d" % n, owner="ann", delay_ms=10)
    bench.schedule(A, payload=b"b", owner="bob", delay_ms=10)
    bench.leap(10)
    assert bench.calls == [[b"a0", b"b", b"a1", b"a2"], [b"a3", b"a4", b"a5"]]


def test_what_came_together_is_written_in_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Calls(together=10)
    bench.due(*[A] * 5)
    journal, units = bench.journal, []
    append = journal.append

    def counted(records: Sequence[object], *args: object, **options: object) -> int:
        units.append(len(records))
        return append(records, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(journal, "append", counted)
    bench.answer(b"0", b"1", b"2", b"3")
    assert units == [4]
    assert bench.engine.stats().counters["sent"] == 4
    assert bench.under_way == [b"4"]


def test_ends_that_do_not_fit_one_unit_are_written_in_several() -> None:
    bench = Bench(together=8, ledger_settings=LedgerSettings(segment_bytes=1 << 18))
    done = [
        bench.schedule(A, payload=bytes([n]) * 50_000, owner="ann", listed=True, delay_ms=10)
        for n in range(8)
    ]
    bench.leap(10)
    bench.outlet.answer([(attempt, Delivered()) for attempt in bench.outlet.under_way])
    bench.rest()
    assert [bench.state(one.id) for one in done] == ["sent"] * 8


def test_each_of_a_call_has_its_own_verdict() -> None:
    bench = Calls(together=5, attempts=2)
    done = [bench.schedule(A, payload=b"%d" % n, delay_ms=10) for n in range(4)]
    bench.leap(10)
    verdicts: list[Verdict] = [
        Delivered("name"),
        Refused("never"),
        Retry("busy", after_ms=50),
        Retry("later", 100_000),
    ]
    bench.outlet.answer(list(zip(bench.outlet.under_way, verdicts, strict=True)))
    bench.rest()
    views = [bench.view(one.id) for one in done]
    assert [view.state for view in views] == ["sent", "failed", "scheduled", "scheduled"]
    assert (views[0].reference, views[1].reason) == ("name", "never")
    bench.leap(50)
    assert bench.calls[1:] == [[b"2"]]
    bench.answer(b"2")
    bench.leap(100_000)
    assert bench.calls[2:] == [[b"3"]]


def test_a_cancel_waits_for_the_verdict_on_its_own_message() -> None:
    bench = Calls(together=2)
    kept = bench.schedule(A, payload=b"0", delay_ms=10)
    bench.schedule(A, payload=b"1", delay_ms=10)
    bench.leap(10)
    answer = bench.engine.cancel(kept.id)
    bench.answer(b"1")
    assert not answer.settled
    bench.answer(b"0", verdict=Retry("busy"))
    assert bench.ask(answer).state == "cancelled"


def test_what_waits_or_is_tried_again_has_no_payload_in_memory() -> None:
    bench = Calls(together=1, concurrency=1)
    bench.due(A, A)
    bench.answer(b"0", verdict=Retry("busy"))
    flights = bench.flights
    assert {type(flight.head) for flight in flights.by_seq.values()} == {PutHead}
    assert len(flights.by_seq) == 2
    assert not flights._at_hand


def test_the_verdicts_of_a_call_are_lost_together_and_it_is_made_again() -> None:
    bench = Calls(together=3)
    bench.due(A, A, A)
    bench.outlet.answer([(attempt, Delivered()) for attempt in bench.outlet.under_way])
    bench.crash()
    bench.start()
    bench.rest()
    assert bench.calls == [[b"0", b"1", b"2"]] * 2


# On an event loop


class Several:
    """An outlet that says what it is told to."""

    together = 10

    def __init__(self, verdicts: list[Verdict] | Exception) -> None:
        self.verdicts = verdicts

    def check(self, destination: str) -> None:
        """Anything goes."""

    def order_key(self, destination: str, key: str | None) -> str | None:
        return None

    async def send(self, delivery: Delivery) -> Verdict:
        return (await self.send_many([delivery]))[0]

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        if isinstance(self.verdicts, Exception):
            raise self.verdicts
        return self.verdicts[: len(deliveries)]


def deliveries(*ids: str) -> list[Delivery]:
    return [Delivery(id_, A, b"", {}, None, "", 0, 0, 1) for id_ in ids]


async def launched(outlet: Outlet, *calls: list[Delivery]) -> list[list[tuple[str, Verdict]]]:
    """Launch calls in one turn of the loop; gives what is told, time by time."""
    faults: list[Exception] = []
    come: list[list[tuple[str, Verdict]]] = []
    enough = asyncio.Event()

    def told(verdicts: Sequence[tuple[str, Verdict]]) -> None:
        come.append(list(verdicts))
        if sum(map(len, come)) == sum(map(len, calls)):
            enough.set()

    launch = launcher(asyncio.get_running_loop(), faults.append)
    for call in calls:
        launch(outlet, call, told)
    await asyncio.wait_for(enough.wait(), 30)
    assert not faults
    return come


async def test_verdicts_of_one_turn_are_told_together_in_the_order_of_the_calls() -> None:
    outlet = Several([Delivered("x"), Refused("no")])
    come = await launched(outlet, deliveries("a", "b"), deliveries("c"))
    assert come == [[("a", Delivered("x")), ("b", Refused("no")), ("c", Delivered("x"))]]


@pytest.mark.parametrize("verdicts", [ValueError("a bug"), [Delivered()], []])
async def test_an_outlets_bug_loses_none_of_a_call(verdicts: list[Verdict] | Exception) -> None:
    ((first, second),) = await launched(Several(verdicts), deliveries("a", "b"))
    for id_, verdict in (first, second):
        assert id_ in "ab"
        assert isinstance(verdict, Retry)
        assert verdict.uncertain


async def test_an_error_of_the_engine_is_a_fault() -> None:
    faults: list[Exception] = []
    seen = asyncio.Event()

    def fault(error: Exception) -> None:
        faults.append(error)
        seen.set()

    def told(_verdicts: object) -> None:
        raise TarryError("what is in memory is wrong")

    launcher(asyncio.get_running_loop(), fault)(Several([Delivered()]), deliveries("a"), told)
    await asyncio.wait_for(seen.wait(), 30)
    assert isinstance(faults[0], TarryError)
