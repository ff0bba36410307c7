"""Groups: of several messages at most one is ever sent, and what is left of a group does not wait for ever."""

from collections import Counter

import pytest

from tarry.core import limits
from tarry.core.errors import Conflict, TooLarge
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, use_up_space


@pytest.fixture
def bench() -> Bench:
    return Bench()


def states(bench: Bench, *ids: str) -> list[str]:
    return [bench.state(id_) for id_ in ids]


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_sending_one_discards_the_others(bench: Bench, destination: str) -> None:
    first = bench.schedule(destination, payload=b"1", group="g", delay_ms=10)
    second = bench.schedule(destination, payload=b"2", group="g", delay_ms=20)
    third = bench.schedule(destination, payload=b"3", group="g")
    bench.run(100)
    assert states(bench, first.id, second.id, third.id) == ["sent", "cancelled", "cancelled"]
    assert bench.drain("orders").payloads + bench.arrived() == [b"1"]
    assert bench.engine.stats().pending == 0


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_of_those_due_at_one_instant_one_is_sent(bench: Bench, destination: str) -> None:
    due_at_ms = bench.now_ms + 10
    ids = [
        bench.schedule(destination, payload=b"%d" % n, group="g", due_at_ms=due_at_ms).id for n in range(5)
    ]
    other = bench.schedule(destination, payload=b"other", group="h", due_at_ms=due_at_ms)
    bench.run(100)
    assert states(bench, *ids) == ["sent", "cancelled", "cancelled", "cancelled", "cancelled"]
    assert bench.state(other.id) == "sent"
    assert sorted(bench.drain("orders").payloads + bench.arrived()) == [b"0", b"other"]


def test_of_those_due_at_one_instant_in_both_worlds_one_is_sent(bench: Bench) -> None:
    due_at_ms = bench.now_ms + 10
    foreign = bench.schedule(FOREIGN, payload=b"f", group="g", due_at_ms=due_at_ms)
    own = bench.schedule("orders", payload=b"o", group="g", due_at_ms=due_at_ms)
    bench.run(100)
    assert sorted(states(bench, foreign.id, own.id)) == ["cancelled", "sent"]
    assert len(bench.drain("orders").payloads + bench.arrived()) == 1


def test_the_siblings_end_in_the_same_unit(bench: Bench) -> None:
    """A crash cannot come between: either one is sent and the others are ended, or none of it."""
    first = bench.schedule(group="g", delay_ms=10)
    second = bench.schedule(group="g", delay_ms=1000)
    bench.clock.advance(10)
    bench.tick()
    before = bench.durable_seq
    bench.commit()
    bodies = [bench.ledger.read(seq).kind for seq in (before + 1, before + 2)]
    assert bodies == [3, 2]  # an entry and a finalise, in one frame
    bench.crash()
    bench.start()
    assert states(bench, first.id, second.id) == ["sent", "cancelled"]


def test_a_foreign_outlet_needs_a_synced_claim_first(bench: Bench) -> None:
    first = bench.schedule(FOREIGN, group="g", delay_ms=10)
    second = bench.schedule(FOREIGN, group="g", delay_ms=1000)
    bench.clock.advance(10)
    bench.tick()
    assert not bench.outlet.under_way
    bench.commit()
    assert bench.attempt().delivery.id == first.id
    # The siblings are ended before it is known whether it arrives.
    assert bench.state(second.id) == "cancelled"
    bench.crash()
    bench.start()
    assert bench.state(second.id) == "cancelled"
    bench.rest()
    assert bench.attempt().delivery.id == first.id
    bench.verdict(Delivered())
    assert bench.state(first.id) == "sent"


def test_a_message_whose_claim_has_no_room_goes_out_once_it_has() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 14))
    first = bench.schedule(FOREIGN, payload=b"1", group="g", delay_ms=limits.MINUTE_MS)
    second = bench.schedule(FOREIGN, payload=b"2", group="g", delay_ms=limits.HOUR_MS)
    use_up_space(bench)
    bench.leap(limits.MINUTE_MS)
    assert not bench.outlet.under_way
    assert states(bench, first.id, second.id) == ["scheduled", "scheduled"]
    bench.disk.capacity_bytes = None
    bench.wait(5_000)
    bench.verdict(Delivered())
    assert states(bench, first.id, second.id) == ["sent", "cancelled"]


def test_a_claimed_message_that_fails_does_not_bring_its_siblings_back(bench: Bench) -> None:
    first = bench.schedule(FOREIGN, group="g", delay_ms=10)
    second = bench.schedule(FOREIGN, group="g", delay_ms=1000)
    bench.wait(10)
    bench.verdict(Retry("no", after_ms=5))
    bench.wait(5)
    bench.verdict(Refused("no"))
    assert states(bench, first.id, second.id) == ["failed", "cancelled"]
    bench.wait(2000)
    assert not bench.outlet.under_way


def test_a_claimed_message_can_be_restarted_and_goes_out_once(bench: Bench) -> None:
    first = bench.schedule(FOREIGN, group="g", delay_ms=10)
    bench.schedule(FOREIGN, group="g", delay_ms=1000)
    bench.wait(10)
    bench.verdict(Retry("no"))
    bench.ask(bench.engine.restart(first.id, delay_ms=50))
    assert not bench.engine.group_owners("public/default", "g"), "its group has ended"
    bench.run(2000)
    assert len(bench.outlet.arrivals) == 1


def test_sending_by_command_discards_the_others_too(bench: Bench) -> None:
    timed = bench.schedule(group="g", delay_ms=1000)
    untimed = bench.schedule(payload=b"by command", group="g")
    bench.ask(bench.engine.send(untimed.id))
    assert states(bench, timed.id, untimed.id) == ["cancelled", "sent"]
    bench.wait(2000)
    assert bench.drain("orders").payloads == [b"by command"]


# Members without a due instant


def test_a_member_without_a_due_instant_goes_out_only_by_command(bench: Bench) -> None:
    bench.schedule(group="g", delay_ms=50 * limits.YEAR_MS)
    untimed = bench.schedule(group="g")
    assert untimed.due_at_ms is None
    assert not untimed.past_due
    bench.leap(49 * limits.YEAR_MS)
    view = bench.view(untimed.id)
    assert (view.state, view.due_at_ms, view.delay_ms) == ("scheduled", None, None)


def test_it_needs_a_group_that_holds_a_timed_one(bench: Bench) -> None:
    refused = bench.engine.schedule(Message(destination="orders", group="g"))
    assert bench.refused(refused, Conflict).state == "untimed"
    bench.schedule(group="g", owner="ann", delay_ms=1000)
    # The group of another owner is another group.
    refused = bench.engine.schedule(Message(destination="orders", group="g", owner="bob"))
    assert bench.refused(refused, Conflict).state == "untimed"


def test_when_the_last_timed_member_is_cancelled_the_group_is_discarded(bench: Bench) -> None:
    one = bench.schedule(group="g", delay_ms=1000)
    two = bench.schedule(group="g", delay_ms=2000)
    untimed = [bench.schedule(group="g").id for _ in range(3)]
    bench.ask(bench.engine.cancel(one.id))
    assert states(bench, *untimed) == ["scheduled"] * 3
    bench.ask(bench.engine.cancel(two.id))
    assert states(bench, *untimed) == ["cancelled"] * 3
    assert "group" in (bench.view(untimed[0]).reason or "")
    assert bench.engine.stats().pending == 0


def test_when_the_last_timed_member_expires_the_group_is_discarded(bench: Bench) -> None:
    timed = bench.schedule(group="g", delay_ms=10, ttl_ms=5)
    untimed = bench.schedule(group="g")
    bench.leap(1000)
    assert states(bench, timed.id, untimed.id) == ["failed", "cancelled"]
    assert bench.engine.stats().pending == 0


def test_when_the_last_timed_member_is_stranded_the_group_waits_with_it(bench: Bench) -> None:
    timed = bench.schedule(FOREIGN, group="g", delay_ms=10)
    untimed = bench.schedule(group="g")
    bench.has_outlet = False
    bench.reopen()
    bench.leap(1000)
    assert states(bench, timed.id, untimed.id) == ["scheduled", "scheduled"]
    bench.has_outlet = True
    bench.reopen()
    bench.run(1000)
    assert states(bench, timed.id, untimed.id) == ["sent", "cancelled"]


def test_a_member_given_a_due_instant_holds_its_group(bench: Bench) -> None:
    timed = bench.schedule(group="g", delay_ms=1000)
    untimed = bench.schedule(group="g")
    assert bench.refused(bench.engine.restart(untimed.id), Conflict).state == "untimed"
    bench.ask(bench.engine.restart(untimed.id, delay_ms=500))
    bench.ask(bench.engine.cancel(timed.id))
    assert bench.state(untimed.id) == "scheduled"
    bench.wait(500)
    assert bench.state(untimed.id) == "sent"


# Joining


def test_a_closed_group_takes_no_new_members(bench: Bench) -> None:
    bench.schedule(group="g", delay_ms=10)
    bench.wait(10)
    message = Message(destination="orders", group="g", delay_ms=10)
    assert bench.refused(bench.engine.schedule(message), Conflict).state == "closed"
    bench.crash()
    bench.start()
    assert bench.refused(bench.engine.schedule(message), Conflict).state == "closed"
    bench.wait(5000)
    bench.reopen()
    assert bench.refused(bench.engine.schedule(message), Conflict).state == "closed"


def test_a_claimed_group_takes_no_new_members(bench: Bench) -> None:
    bench.schedule(FOREIGN, group="g", delay_ms=10)
    bench.wait(10)
    assert len(bench.outlet.under_way) == 1
    message = Message(destination="orders", group="g", delay_ms=10)
    assert bench.refused(bench.engine.schedule(message), Conflict).state == "closed"


def test_a_group_has_a_limit_of_members(bench: Bench) -> None:
    for _ in range(limits.MAX_GROUP_MEMBERS):
        bench.schedule(group="g", delay_ms=1000)
    message = Message(destination="orders", group="g", delay_ms=10)
    assert bench.refused(bench.engine.schedule(message), Conflict).state == "full"
    bench.schedule(group="h", delay_ms=1000)
    bench.wait(1000)
    assert len(bench.drain("orders").got) == 2


def test_the_ends_of_a_group_fit_into_the_ledger_together() -> None:
    """The end of a listed message remembers its content."""
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 20))
    large = Message(destination=FOREIGN, group="g", delay_ms=10, listed=True, payload=bytes(20_000))
    limit = bench.refused(bench.engine.schedule(large), TooLarge).limit
    ids = [
        bench.schedule(FOREIGN, group="g", delay_ms=10, listed=True, payload=bytes(limit), owner="o" * 255).id
        for _ in range(limits.MAX_GROUP_MEMBERS)
    ]
    bench.run(100)
    assert Counter(states(bench, *ids)) == {"sent": 1, "cancelled": limits.MAX_GROUP_MEMBERS - 1}
    # What leaves nothing behind may be as large as any message.
    bench.schedule(FOREIGN, group="h", delay_ms=10, payload=bytes(500_000))


@pytest.mark.parametrize("flushed", [False, True])
def test_groups_survive_a_restart(bench: Bench, flushed: bool) -> None:
    first = bench.schedule(group="g", payload=b"1", delay_ms=5000)
    second = bench.schedule(group="g", payload=b"2", delay_ms=6000)
    untimed = bench.schedule(group="g", payload=b"3")
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    bench.ask(bench.engine.restart(second.id, delay_ms=100))
    bench.wait(100)
    assert states(bench, first.id, second.id, untimed.id) == ["cancelled", "sent", "cancelled"]
    bench.wait(10_000)
    assert bench.drain("orders").payloads == [b"2"]


def test_a_group_member_can_be_named_by_its_group_in_lists(bench: Bench) -> None:
    bench.schedule(group="g", delay_ms=10)
    bench.schedule(delay_ms=10)
    assert [view.group for view in bench.listed(group="g")] == ["g"]


# Damage


def test_a_damaged_sibling_does_not_stop_the_one_that_is_due(bench: Bench) -> None:
    first = bench.schedule(payload=b"sound", group="g", delay_ms=10)
    second = bench.schedule(payload=b"DAMAGED-BODY", group="g", delay_ms=1000)
    bench.flip(b"DAMAGED-BODY")
    bench.wait(2000)
    assert bench.state(first.id) == "sent"
    assert bench.state(second.id) in ("cancelled", "failed")
    assert bench.drain("orders").payloads == [b"sound"]
    assert bench.engine.stats().pending == 0


def test_a_damaged_sibling_does_not_stop_a_claim(bench: Bench) -> None:
    first = bench.schedule(FOREIGN, payload=b"sound", group="g", delay_ms=10)
    second = bench.schedule(payload=b"DAMAGED-BODY", group="g", delay_ms=1000)
    bench.flip(b"DAMAGED-BODY")
    bench.run(2000)
    assert bench.state(first.id) == "sent"
    assert bench.state(second.id) in ("cancelled", "failed")


def test_a_damaged_sibling_does_not_stop_a_cancel(bench: Bench) -> None:
    timed = bench.schedule(payload=b"sound", group="g", delay_ms=1000)
    untimed = bench.schedule(payload=b"DAMAGED-BODY", group="g")
    bench.flip(b"DAMAGED-BODY")
    assert bench.ask(bench.engine.cancel(timed.id)).state == "cancelled"
    assert bench.state(untimed.id) in ("cancelled", "failed")
    assert bench.engine.stats().pending == 0
