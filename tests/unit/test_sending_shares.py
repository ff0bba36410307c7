"""Places for sending by namespace: whoever has many messages for slow receivers keeps no other tenant's waiting."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tarry.core.messages.delivery import Delivered
from tarry.core.messages.message import Message
from tarry.engine.flights.flight import Flight
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.serving import serving
from tests.unit.engine_kit import Bench
from tests.unit.webhook_kit import receiving
from tests.waiting import until

GREEDY, MODEST = "greedy/space", "modest/space"
PLACES = 16


class Tenants(Bench):
    """An engine that several tenants share."""

    def __init__(self, per_host: int = PLACES, *, shared: bool = True, together: int = 1) -> None:
        super().__init__(
            settings=EngineSettings(concurrency=PLACES, concurrency_per_host=per_host),
            ledger_settings=LedgerSettings(segment_bytes=16 << 20),
            together=together,
        )
        self.shared = shared

    def due(self, namespace: str, *destinations: str) -> None:
        """Accept messages of a namespace that are due at once."""
        messages = [
            Message(destination=one, namespace=namespace, payload=b"%d" % number, delay_ms=1)
            for number, one in enumerate(destinations)
        ]
        self.ask(self.engine.schedule_many(messages))
        self.leap(1)

    @property
    def away(self) -> Counter[str]:
        """How many messages of each namespace are under way."""
        return Counter(attempt.delivery.namespace for attempt in self.outlet.under_way)

    def answer(self, namespace: str, count: int = 1, host: str = "") -> None:
        """Receivers at hosts of such names take messages of a namespace, one after another."""
        for _ in range(count):
            attempt = next(
                attempt
                for attempt in self.outlet.under_way
                if attempt.delivery.namespace == namespace
                and attempt.delivery.destination.startswith(f"sim://{host}")
            )
            attempt.answer(Delivered())
            self.rest()

    def answer_all(self) -> None:
        """Receivers take everything, one after another."""
        while self.outlet.under_way:
            assert len(self.outlet.under_way) <= PLACES * self.outlet.together
            self.outlet.under_way[0].answer(Delivered())
            self.rest()


def slow(count: int, hosts: int = 7) -> list[str]:
    return [f"sim://slow{number % hosts}/in" for number in range(count)]


def test_many_messages_for_slow_hosts_keep_no_other_tenants_waiting() -> None:
    bench = Tenants()
    bench.due(GREEDY, *slow(300))
    assert bench.away == {GREEDY: PLACES // 2}
    bench.due(MODEST, "sim://quick/in")
    assert bench.away == {GREEDY: PLACES // 2, MODEST: 1}
    # One who has many as well has half of the rest, and there is always a place for the next.
    bench.due(MODEST, *["sim://quick/in"] * 99)
    assert bench.away == {GREEDY: 8, MODEST: 4}
    bench.due("third/space", *["sim://third/in"] * 9)
    bench.due("fourth/space", *["sim://fourth/in"] * 9)
    assert bench.away == {GREEDY: 8, MODEST: 4, "third/space": 2, "fourth/space": 1}


def test_whoever_has_the_share_goes_on_as_places_come_free_and_nothing_is_lost() -> None:
    bench = Tenants()
    bench.due(GREEDY, *slow(300))
    bench.due(MODEST, *["sim://quick/in"] * 50)
    assert bench.away == {GREEDY: 8, MODEST: 4}
    bench.answer(MODEST, 50)
    # What the other has no use for any more is the share of whoever remains.
    assert bench.away == {GREEDY: 8}
    bench.answer(GREEDY, 5)
    assert bench.away == {GREEDY: 8}
    bench.answer_all()
    assert bench.engine.stats().pending == 0
    arrived = Counter((one.delivery.namespace, one.delivery.payload) for one in bench.outlet.arrivals)
    assert len(arrived) == 350
    assert set(arrived.values()) == {1}


def test_one_tenant_alone_has_all_places() -> None:
    bench = Tenants(shared=False)
    bench.due(GREEDY, *slow(300))
    assert bench.away == {GREEDY: PLACES}
    # Tokens for others come while it runs: what is under way stays, and the next place is for them.
    bench.shared = True
    bench.due(MODEST, "sim://quick/in")
    bench.answer(GREEDY)
    assert bench.away == {GREEDY: PLACES - 1, MODEST: 1}
    bench.answer(GREEDY, PLACES - 9)
    assert bench.away == {GREEDY: 8, MODEST: 1}
    bench.shared = False
    bench.answer(MODEST)
    assert bench.away == {GREEDY: PLACES}


def test_a_crowded_host_goes_on_for_a_tenant_whose_share_was_used_up_meanwhile() -> None:
    """Nothing lands at that host when there is a share again: the place that it has is found all the same."""
    bench = Tenants(per_host=4)
    bench.due(GREEDY, *["sim://slow/in"] * 6)
    assert bench.away == {GREEDY: 4}
    bench.due(MODEST, *slow(20, hosts=5))
    bench.due("third/space", *slow(20, hosts=5))
    assert bench.away == {GREEDY: 4, MODEST: 6, "third/space": 3}
    bench.due("fourth/space", *["sim://fourth/in"] * 2)
    assert bench.away["fourth/space"] == 1 + 1
    # It gives a place back at its host, and has its share still, for there is one place left.
    bench.answer(GREEDY)
    assert bench.away[GREEDY] == 3
    bench.answer(MODEST, 20)
    assert bench.away[GREEDY] == 4
    bench.answer_all()
    assert bench.engine.stats().pending == 0


def test_tenants_take_turns_at_a_crowded_host() -> None:
    bench = Tenants(per_host=4)
    bench.due(GREEDY, *["sim://common/in"] * 50, *slow(50))
    bench.due(MODEST, *["sim://common/in"] * 3)
    assert bench.away == {GREEDY: 8}
    bench.answer(GREEDY, 2, "common")
    # They take turns there.
    assert bench.away == {GREEDY: 8, MODEST: 1}


def test_namespaces_take_turns_for_places_however_many_owners_each_has() -> None:
    bench = Tenants(shared=False)
    bench.due(GREEDY, *slow(PLACES))
    many = [
        Message(destination="sim://a/in", namespace=GREEDY, owner=f"o{number}", delay_ms=1)
        for number in range(40)
    ]
    bench.ask(bench.engine.schedule_many(many))
    bench.leap(1)
    bench.due(MODEST, *["sim://b/in"] * 3)
    bench.answer(GREEDY, 6)
    assert bench.away[MODEST] == 3


@pytest.mark.parametrize("together", [1, 10])
def test_a_turn_costs_the_same_however_many_wait_for_their_share(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Tenants(per_host=4, together=together)
    bench.due(GREEDY, *slow(20_000))
    bench.due(MODEST, "sim://quick/in")
    looked_at: Counter[str] = Counter()
    may_leave = bench.flights._may_leave

    def counted(flight: Flight, now_ms: int) -> bool:
        looked_at[flight.head.namespace] += 1
        return may_leave(flight, now_ms)

    monkeypatch.setattr(bench.flights, "_may_leave", counted)
    for _ in range(50):
        bench.answer(MODEST)
        bench.due(MODEST, "sim://quick/in")
    assert bench.away[MODEST] == 1
    assert looked_at[MODEST] >= 50
    # One of them is asked, to see whose turn it is, at each line that is looked at.
    assert looked_at[GREEDY] <= 50 * 10


def test_messages_of_a_tenant_without_a_share_leave_in_a_call_that_is_made_anyway() -> None:
    """The last place of its share takes as many as the receiver takes at once."""
    bench = Tenants(together=100)
    bench.due(GREEDY, *[f"sim://slow{number}/in" for number in range(10)], *["sim://slow3/in"] * 30)
    assert bench.away == {GREEDY: 8 + 30}
    bench.due(GREEDY, "sim://slow3/in")
    assert bench.away == {GREEDY: 8 + 30}
    bench.answer_all()


async def test_on_a_server_one_tenants_slow_receivers_keep_no_other_tenants_waiting(tmp_path: Path) -> None:
    tokens = [
        {"name": name, "token": f"{name}-token", "roles": ["produce"], "namespaces": [namespace]}
        for name, namespace in (("greedy", GREEDY), ("modest", MODEST))
    ]
    settings: dict[str, Any] = {
        "webhook.allow": ["127.0.0.1"],
        "webhook.total_timeout_ms": 300_000,
        "engine.concurrency": PLACES,
        "tokens": tokens,
    }
    async with (
        receiving() as (slow_one, slow_port),
        receiving() as (another, another_port),
        receiving() as (quick, quick_port),
        serving(tmp_path, **settings) as served,
    ):
        slow_one.gate = another.gate = asyncio.Event()

        async def send(name: str, namespace: str, *ports: int) -> None:
            lines = [
                {
                    "destination": f"http://127.0.0.1:{port}/",
                    "namespace": namespace,
                    "payload": "x",
                    "delay_ms": 1,
                }
                for port in ports
            ]
            done = await served.client.post(
                "/v1/messages/batch",
                content=b"".join(json.dumps(line).encode() + b"\n" for line in lines),
                headers={"authorization": f"Bearer {name}-token", "content-type": "application/x-ndjson"},
            )
            assert done.text.count('"id"') == len(ports), done.text

        await send("greedy", GREEDY, *[slow_port, another_port] * 150)
        await until(lambda: len(slow_one.requests) + len(another.requests) == PLACES // 2)
        await send("modest", MODEST, quick_port)
        await until(lambda: quick.requests)
        # The receivers hold on to theirs, and get no more.
        assert (slow_one.running, another.running) == (PLACES // 4, PLACES // 4)
        slow_one.gate.set()
        await until(lambda: not served.engine.stats().pending)
        assert len(slow_one.requests) == len(another.requests) == 150
