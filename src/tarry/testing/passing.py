"""Letting time pass for a real engine on its loop, from one due instant to the next, as it would have passed.

So a repeat has each of its occurrences, and a message that is tried again has its attempts at their instants. At each instant
everything that is due is done before the clock moves on: entries are in their topics, and attempts to send have their verdict.
"""

import asyncio
from typing import Final

from tarry.engine.engine import Engine
from tarry.ledger.record import NO_KEY
from tarry.testing.insides import InsidesOf
from tarry.testing.moved_clock import MovedClock

LOOK_EVERY_S: Final = 0.001


async def pass_time(engine: Engine, clock: MovedClock, until_ms: int) -> None:
    """Move the clock of an engine to an instant, with everything that happens on the way."""
    ran = clock.runs
    # What the engine takes to do its work is no time of the test.
    clock.stop()
    try:
        while True:
            await _rest(engine)
            next_ms = _next_ms(engine)
            if next_ms is None or next_ms > until_ms:
                break
            clock.move_to(max(next_ms, clock.now_ms() + 1))
        clock.move_to(until_ms)
    finally:
        if ran:
            clock.start()
        # The alarm was set by where the clock was.
        engine.wake()


async def _rest(engine: Engine) -> None:
    """Do all there is to do at this instant."""
    while not _at_rest(engine):  # noqa: ASYNC110 - there is no one event: it rests when nothing of many things is left
        await asyncio.sleep(LOOK_EVERY_S)


def _at_rest(engine: Engine) -> bool:
    now_ms = engine.clock.now_ms()
    again_ms = engine.tick()
    inside = InsidesOf(engine)
    due_ms = inside.horizon.next_fire_at_ms()
    waits = inside.dispatcher.gathering or inside.dispatcher.stuck or inside.dispatcher.holds_any
    durable = inside.durable_seq == inside.next_seq - 1
    return (
        durable
        and again_ms > now_ms
        and not (waits or engine.sending)
        and (due_ms is None or due_ms > now_ms)
    )


def _next_ms(engine: Engine) -> int | None:
    """The next instant at which something is to be done for a message or a repeat."""
    inside = InsidesOf(engine)
    first = inside.horizon.entries(NO_KEY, 1).fire_at_ms
    nexts = [inside.repeating.next_ms(), int(first[0]) if len(first) else None]
    return min((next_ms for next_ms in nexts if next_ms is not None), default=None)
