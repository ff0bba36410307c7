"""Reports of the engine to a tracer: accepted messages, and each attempt to send one, over any number of lives."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tarry.core.errors import Invalid, TarryError
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message
from tarry.core.telemetry.tracing import SendOutcome
from tarry.engine.settings import EngineSettings
from tarry.engine.topics.entries import NewEntry
from tests.unit.engine_kit import FOREIGN, Bench, full, schedule_arrow

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Told:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.accepts: list[tuple[Any, ...]] = []
        self.sends: list[tuple[Any, ...]] = []
        self.sampled = True

    def accept(self, operation: str, door: str, messages: int, callers: Sequence[str]) -> "Accepting":
        return Accepting(self, (operation, door, messages, list(callers)))

    def send(self, context: bytes, **facts: Any) -> "Sending":
        return Sending(self, context, facts)


class Accepting:
    def __init__(self, told: Told, facts: tuple[Any, ...]) -> None:
        self._told = told
        self._facts = facts
        self.context = b"context %d" % len(told.accepts) if told.sampled else None

    def end(self, error: BaseException | None) -> None:
        self._told.accepts.append((*self._facts, None if error is None else type(error)))


class Sending:
    def __init__(self, told: Told, context: bytes, facts: dict[str, Any]) -> None:
        self._told = told
        self._begun = (context, facts)

    def end(self, outcome: SendOutcome) -> None:
        self._told.sends.append((*self._begun, outcome))


def traced(**how: Any) -> tuple[Bench, Told]:
    told = Told()
    return Bench(tracer=told, **how), told


def test_a_message_for_a_topic_is_told_when_it_is_accepted_and_when_it_is_sent_in_another_life() -> None:
    bench, told = traced()
    bench.schedule(delay_ms=1_000, payload=b"x", headers={"traceparent": PARENT})
    assert told.accepts == [("schedule", "http", 1, [PARENT], None)]
    assert told.sends == []
    bench.reopen()
    bench.leap(1_200)
    facts = {
        "door": "http",
        "outlet": "persistent",
        "namespace": "public/default",
        "attempt": 1,
        "lateness_ms": 200,
    }
    assert told.sends == [(b"context 0", facts, "sent")]
    (received,) = bench.drain("orders").got
    assert received.headers == {"traceparent": PARENT}


def test_each_attempt_is_told_with_what_came_of_it() -> None:
    bench, told = traced(settings=EngineSettings(attempts=3, carry_after_ms=1_000))
    bench.schedule(FOREIGN, delay_ms=0)
    bench.verdict(Retry("busy"))
    # So late that it is carried to a new version, and a new life: its trace goes along.
    bench.wait(1_000)
    bench.verdict(Retry("busy", after_ms=5_000))
    bench.reopen()
    bench.wait(5_000)
    bench.verdict(Retry("busy"))
    assert [(context, facts["attempt"], outcome) for context, facts, outcome in told.sends] == [
        (b"context 0", 1, "retried"),
        (b"context 0", 2, "retried"),
        (b"context 0", 3, "failed"),
    ]
    assert told.sends[2][1]["lateness_ms"] >= 5_000
    assert told.sends[2][1]["outlet"] == "sim"
    bench.schedule(FOREIGN, delay_ms=0)
    bench.verdict(Refused("never"))
    bench.schedule(FOREIGN, delay_ms=0)
    bench.verdict(Delivered())
    assert [outcome for _, _, outcome in told.sends[3:]] == ["failed", "sent"]


def test_a_restart_a_carried_chain_and_a_group_keep_their_trace() -> None:
    bench, told = traced()
    moved = bench.schedule(delay_ms=1_000)
    bench.ask(bench.engine.restart(moved.id, delay_ms=3_000))
    bench.schedule(delay_ms=2_000, group="g", owner="o")
    bench.wait(2_000)
    bench.wait(1_000)
    assert [(context, outcome) for context, _, outcome in told.sends] == [
        (b"context 1", "sent"),
        (b"context 0", "sent"),
    ]


def test_a_batch_is_told_once_and_each_of_its_messages_when_it_is_sent() -> None:
    bench, told = traced()
    batch = pa.record_batch(
        {"destination": ["a", "b", ""], "delay_ms": [10, 10, 10], "payload": [b"1", b"2", b"3"]}
    )
    bench.ask(schedule_arrow(bench.engine, batch, Message(destination="", door="http")))
    some: list[Message | TarryError] = [
        Message(destination="c", delay_ms=10, door="dapr"),
        Invalid("x", "is wrong"),
    ]
    bench.ask(bench.engine.schedule_many(some))
    together = [Message(destination=FOREIGN, delay_ms=10, door="matrix") for _ in range(2)]
    bench.ask(bench.engine.schedule_many(together, all_or_none=True))
    assert told.accepts == [
        ("schedule", "http", 3, [], None),
        ("schedule", "dapr", 1, [], None),
        ("schedule", "matrix", 2, [], None),
    ]
    bench.reopen()
    bench.wait(10)
    while bench.outlet.under_way:
        bench.outlet.under_way[0].answer(Delivered())
        bench.rest()
    assert sorted((context, facts["outlet"]) for context, facts, _ in told.sends) == [
        (b"context 0", "persistent"),
        (b"context 0", "persistent"),
        (b"context 1", "persistent"),
        (b"context 2", "sim"),
        (b"context 2", "sim"),
    ]
    assert [entry.payload for entry in bench.drain("a").got] == [b"1"]


def test_a_delayed_entry_is_told_when_it_can_be_had_and_others_only_when_they_come() -> None:
    bench, told = traced()
    sub = bench.subscribe("t")
    bench.ask(
        bench.engine.topics.publish(
            full("t"),
            [
                NewEntry(payload=b"now", door="pulsar", headers={"traceparent": PARENT}),
                NewEntry(
                    payload=b"later",
                    door="pulsar",
                    deliver_at_ms=bench.now_ms + 500,
                    callers=["of a property"],
                ),
            ],
        )
    )
    assert told.accepts == [("publish", "pulsar", 2, [PARENT, "of a property"], None)]
    bench.reopen()
    bench.wait(500)
    (context, facts, outcome), *more = told.sends
    assert (context, facts["door"], facts["namespace"], outcome, more) == (
        b"context 0", "pulsar", "public/default", "sent", [],
    )  # fmt: skip
    del sub
    assert bench.drain("t", "late").payloads == [b"now", b"later"]


def test_what_is_refused_is_told_with_its_error_and_what_is_not_sampled_is_not_told_again() -> None:
    bench, told = traced()
    bench.refused(bench.engine.schedule(Message(destination="orders", delay_ms=-1)), Invalid)
    assert told.accepts == [("schedule", "http", 1, [], Invalid)]
    told.sampled = False
    bench.schedule(delay_ms=10)
    bench.schedule(FOREIGN, delay_ms=10)
    bench.wait(10)
    bench.verdict(Delivered())
    assert told.sends == []


def test_without_a_tracer_a_traced_message_goes_out_all_the_same() -> None:
    bench, told = traced()
    bench.schedule(delay_ms=10)
    bench.schedule(FOREIGN, delay_ms=10)
    bench.tracer = None
    bench.reopen()
    bench.wait(10)
    bench.verdict(Delivered())
    assert len(bench.drain("orders").got) == 1
    assert told.sends == []
