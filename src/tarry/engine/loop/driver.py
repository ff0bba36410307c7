"""Driving the engine on an asyncio loop: the timer, the threads behind it, and a clean stop.

An error that escapes from the engine is a fault: the state in memory may no longer be what the ledger says. It goes
to `Fault`, and who provides that ends the process as a crash would; a start finds the truth in the ledger.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

from tarry.core.messages.delivery import BulkOutlet, Delivery, Outlet, Retry, Verdict
from tarry.core.telemetry import faults
from tarry.engine.engine import Engine
from tarry.engine.flights.flights import Launch, OnVerdicts
from tarry.engine.loop.alarm import Alarm
from tarry.ledger.wakeup import Wakeup

log = logging.getLogger(__name__)

MAX_SLEEP_MS: Final = 1_000

Fault = Callable[[Exception], None]
"""Told of an error that escaped from the engine."""


def launcher(loop: asyncio.AbstractEventLoop, fault: Fault) -> Launch:
    """Sending as tasks of the loop. Verdicts that come in one turn of it are told together."""
    tasks: set[asyncio.Task[None]] = set()
    come: dict[OnVerdicts, list[tuple[str, Verdict]]] = {}
    # What is sent belongs to no request, also where it is a request that sets it off.
    own = copy_context()

    async def send(outlet: Outlet, deliveries: Sequence[Delivery], told: OnVerdicts) -> None:
        try:
            if len(deliveries) > 1 and isinstance(outlet, BulkOutlet):
                verdicts = await outlet.send_many(deliveries)
            else:
                verdicts = [await outlet.send(delivery) for delivery in deliveries]
            if len(verdicts) != len(deliveries):
                raise RuntimeError("there is not one verdict for each delivery")
        except Exception as error:  # noqa: BLE001 - an outlet's bug must not lose the message
            log.error("an outlet failed with %s", faults.told(error))
            failed = Retry(f"the outlet failed: {type(error).__name__}", uncertain=True)
            verdicts = [failed] * len(deliveries)
        if not come:
            loop.call_soon(tell)
        ids = (delivery.id for delivery in deliveries)
        come.setdefault(told, []).extend(zip(ids, verdicts, strict=True))

    def tell() -> None:
        all_come = dict(come)
        come.clear()
        try:
            for told, verdicts in all_come.items():
                told(verdicts)
        except Exception as error:  # noqa: BLE001 - see above
            fault(error)

    def launch(outlet: Outlet, deliveries: Sequence[Delivery], told: OnVerdicts) -> None:
        task = loop.create_task(send(outlet, deliveries, told), context=own.copy())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return launch


class Offloader:
    """Slow work in a thread of its own, one piece after another: an `Offload`. Who was told of it goes on, on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, fault: Fault) -> None:
        self._loop = loop
        self._fault = fault
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False

    def __call__(self, work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
        """Do it, and then tell `done` on the loop how that went."""
        if not self._closed:
            self._pool.submit(self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
        try:
            work()
            error = None
        except Exception as caught:  # noqa: BLE001 - whatever it was, the engine is told
            error = caught
        self._loop.call_soon_threadsafe(self._finish, done, error)

    def _finish(self, done: Callable[[Exception | None], None], error: Exception | None) -> None:
        # Who is told goes on, and would find everything closed.
        if self._closed:
            return
        try:
            done(error)
        except Exception as escaped:  # noqa: BLE001 - see above
            self._fault(escaped)

    def close(self) -> None:
        """Let calls under way end, begin no more, and tell nobody of either."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


class Driver:
    """Calls the engine's turns: when something is due, and when there is something to see to."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, fault: Fault, alarm: Alarm | None = None
    ) -> None:
        """`alarm` rings by the engine's clock; nothing need be said if that is the machine's."""
        self._engine = engine
        self._loop = loop
        self._fault = fault
        self._posted: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        loop.add_reader(self._wakeup.fd, self._run_posted)
        self._alarm = alarm or Alarm()
        loop.add_reader(self._alarm.fd, self._rung)
        self._next: asyncio.TimerHandle | None = None
        """The turn that follows at once."""
        self._wake_ms: float = 0
        self._stopped = False
        # A turn belongs to no request, also where it is a request that asks for it.
        self._context = copy_context()
        engine.tell_of_earlier(self._earlier)

    def start(self) -> None:
        """Begin."""
        self._turn()

    def stop(self) -> None:
        """No more turns; what the ledger brings is still taken."""
        self._stopped = True
        self._loop.remove_reader(self._alarm.fd)
        if self._next is not None:
            self._next.cancel()

    def close(self) -> None:
        """Take nothing more from the ledger either: who would be told is closed as well."""
        self._loop.remove_reader(self._wakeup.fd)

    def post(self, work: Callable[[], None]) -> None:
        """Bring a call from the ledger's thread to the engine's."""
        if self._loop.is_closed():
            raise RuntimeError("the loop is closed")
        self._posted.append(work)
        self._wakeup.ring()

    def _run_posted(self) -> None:
        """Make the calls that were brought."""
        self._make_calls()
        # Not before, because it lets the other thread at the interpreter; what that brings now may have been rung for already.
        self._wakeup.wait()
        self._make_calls()

    def _make_calls(self) -> None:
        """Make calls, and give out the entries and answers that became visible."""
        while self._posted:
            try:
                self._posted.popleft()()
                self._engine.pump()
            except Exception as error:  # noqa: BLE001 - see above
                self._fault(error)

    def _rung(self) -> None:
        self._alarm.heard()
        self._turn()

    def _turn(self) -> None:
        if self._stopped:
            return
        try:
            wake_ms = self._engine.tick()
        except Exception as error:  # noqa: BLE001 - see above
            self._fault(error)
            return
        self._arm(wake_ms)
        # What became durable meanwhile can be given out before the next turn.
        self._make_calls()

    def _earlier(self, fire_at_ms: int) -> None:
        if fire_at_ms < self._wake_ms and not self._stopped:
            self._arm(fire_at_ms)

    def _arm(self, wake_ms: int) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._wake_ms = wake_ms
        if wake_ms == 0:
            # Through the loop, so that doors get their turn between two batches.
            self._next = self._loop.call_later(0, self._turn, context=self._context)
        else:
            # Never for long, whatever the clock does.
            self._alarm.set(min(wake_ms, self._engine.clock.now_ms() + MAX_SLEEP_MS))
