"""Turns by host and in all."""

import asyncio

import pytest

from tarry.outlets.webhook.slots import HostSlots


async def _waits(slots: HostSlots, host: str) -> bool:
    """Whether somebody who wants a turn now would have to wait; takes none."""
    waiter = asyncio.ensure_future(slots.acquire(host))
    for _ in range(5):
        await asyncio.sleep(0)
    if waiter.done():
        slots.release(host)
        return False
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    return True


async def test_a_full_host_does_not_stop_another() -> None:
    slots = HostSlots(total=10, per_host=2)
    await slots.acquire("a")
    assert not await _waits(slots, "a")
    await slots.acquire("a")
    assert await _waits(slots, "a")
    assert not await _waits(slots, "b")
    slots.release("a")
    assert not await _waits(slots, "a")


async def test_the_total_counts_for_all_hosts() -> None:
    slots = HostSlots(total=2, per_host=2)
    await slots.acquire("a")
    await slots.acquire("b")
    assert await _waits(slots, "c")
    slots.release("a")
    assert not await _waits(slots, "c")


async def test_whoever_waits_for_a_host_holds_no_common_turn() -> None:
    slots = HostSlots(total=2, per_host=1)
    await slots.acquire("a")
    waiter = asyncio.ensure_future(slots.acquire("a"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not await _waits(slots, "b")
    slots.release("a")
    await waiter


async def test_nothing_is_remembered_or_lost_after_waits_were_given_up() -> None:
    slots = HostSlots(total=1, per_host=1)
    await slots.acquire("a")
    assert await _waits(slots, "a")  # gives up at the host
    assert await _waits(slots, "b")  # gives up at the total
    assert len(slots) == 1
    slots.release("a")
    assert len(slots) == 0
    assert not await _waits(slots, "a")
    assert not await _waits(slots, "b")
    assert len(slots) == 0


async def test_giving_up_at_the_total_gives_the_turn_of_the_host_back() -> None:
    slots = HostSlots(total=2, per_host=2)
    await slots.acquire("a")
    await slots.acquire("b")
    assert await _waits(slots, "a")
    slots.release("b")
    assert not await _waits(slots, "a")
