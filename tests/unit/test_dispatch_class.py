"""Messages of one dispatch class are decided about once, and a difference between messages is seen."""

from typing import Any

import msgspec
import pytest

from tarry.core.messages.message import Message
from tarry.engine.dispatch.burst import Burst
from tarry.engine.due.due_batch import dispatch_classes
from tarry.ledger.read_record import ReadPut
from tarry.ledger.record import Key
from tests.unit.engine_kit import Bench, full


def put(**changes: Any) -> ReadPut:
    plain = ReadPut(
        2000, 1999, 1000, "public/default", full("orders"), None, "ann", "http", None, None, None, 0, False,
        b"payload", {},
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def test_what_differs_in_its_content_alone_is_alike() -> None:
    one, two, three = dispatch_classes(
        [put(), put(payload=b"other", headers={"a": "b"}), put(key="k", fire_at_ms=1)]
    )
    assert one is two is three
    assert (one.destination, one.namespace, one.owner, one.door) == (
        full("orders"), "public/default", "ann", "http",
    )  # fmt: skip
    assert one.plain
    assert not one.known


@pytest.mark.parametrize(
    "changes",
    [
        {"destination": full("other")},
        {"namespace": "public/other"},
        {"owner": "bob"},
        {"door": "dapr"},
        {"due_at_ms": 1998},
        {"due_at_ms": None},
        {"accepted_at_ms": 2001},
        {"ttl_ms": 5},
        {"group": "g"},
        {"origin": Key(1, 2)},
        {"listed": True},
    ],
)
def test_what_matters_at_sending_sets_a_message_apart(changes: dict[str, Any]) -> None:
    one, other, again = dispatch_classes([put(), put(**changes), put()])
    assert one is again
    assert other is not one


@pytest.mark.parametrize("changes", [{"ttl_ms": 5}, {"group": "g"}, {"destination": "http://127.0.0.1/"}])
def test_about_these_there_is_something_to_decide(changes: dict[str, Any]) -> None:
    assert not dispatch_classes([put(**changes)])[0].plain


@pytest.mark.parametrize("changes", [{"origin": Key(1, 2)}, {"listed": True}])
def test_of_these_the_registry_has_a_row(changes: dict[str, Any]) -> None:
    assert dispatch_classes([put(**changes)])[0].known


@pytest.mark.parametrize(
    ("changes", "late_ms"),
    [({}, 1001), ({"accepted_at_ms": 2500}, 500), ({"due_at_ms": None}, 0)],
)
def test_lateness_counts_from_the_due_instant_or_the_acceptance_if_that_was_later(
    changes: dict[str, Any], late_ms: int
) -> None:
    assert dispatch_classes([put(**changes)])[0].late_ms(3000) == late_ms


def test_a_burst_that_is_too_large_for_a_unit_is_parted_with_nothing_lost() -> None:
    burst = Burst(3000)
    puts = [put(owner=owner, payload=bytes(1_000)) for owner in ("ann", "bob", "ann", "ann", "bob")]
    for seq, (one, alike) in enumerate(zip(puts, dispatch_classes(puts), strict=True), 1):
        burst.of(one.destination).add(one, bytes(1_000), alike, Key(2000, seq))
    parts = burst.parts(3_000)
    assert [part.seqs().tolist() for part in parts] == [[1, 2], [3, 4], [5]]
    counted = [{alike.owner: count for alike, count in part.kinds().items()} for part in parts]
    assert counted == [{"ann": 1, "bob": 1}, {"ann": 2}, {"bob": 1}]


def test_of_many_that_are_due_together_each_ends_as_it_would_alone() -> None:
    bench = Bench()
    told: list[tuple[str, int, int]] = []
    bench.dispatcher.sent.on_sent = lambda door, late_ms, count: told.append((door, late_ms, count))
    first, second = bench.reader(bench.subscribe("orders")), bench.reader(bench.subscribe("returns"))
    for number in range(20):
        topic = "returns" if number % 5 == 4 else "orders"
        owner = "bob" if number % 3 == 2 else "ann"
        _ = bench.engine.schedule(
            Message(destination=topic, payload=b"%d" % number, owner=owner, delay_ms=1_000, door="http")
        )
    bench.rest()
    moved = bench.schedule(payload=b"moved", delay_ms=5_000, owner="ann")
    bench.ask(bench.engine.restart(moved.id, delay_ms=1_000))
    assert bench.engine.pending_of("ann", "public/default") == 15
    assert bench.engine.pending_of("bob", "public/default") == 6
    bench.wait(1_000)
    assert first.payloads == [b"%d" % number for number in range(20) if number % 5 != 4] + [b"moved"]
    assert second.payloads == [b"4", b"9", b"14", b"19"]
    assert (
        bench.engine.pending_of("ann", "public/default")
        == bench.engine.pending_of("bob", "public/default")
        == 0
    )
    assert sum(count for _, _, count in told) == 21
    assert {(door, late_ms) for door, late_ms, _ in told} == {("http", 0)}
    assert bench.ask(bench.engine.get(moved.id)).state == "sent"
