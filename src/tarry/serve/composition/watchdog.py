"""The watchdog: a thread that notices when a turn of the loop takes long, and says where it was.

All that clients see happens on one thread, so that a turn of a second is a second's wait for everybody. The watchdog asks
the loop for a sign twenty times a second. When the sign takes long, the log gets the stack of the loop's thread, and
`/metrics` has the longest turn, by the clock and by the processor: the second tells work from a busy machine.
A turn that ends between two signs is measured from the first of them, and so up to a twentieth of a second short.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

from tarry.core.telemetry.figure import Figure

log = logging.getLogger(__name__)

EVERY_S: Final = 0.05
LONG_S: Final = 0.25
"""A turn over this is told."""

AGAIN_S: Final = 5.0
"""A turn that goes on for so long is told again, and then at twice the distance each time."""

PLACES: Final = 24
"""Lines of the stack in the log, the innermost ones."""


class Watchdog:
    """Watches the loop of the thread that makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0
        self.long_turns = 0
        self._loop = loop
        self._watched = threading.get_ident()
        self._cpu_clock = time.pthread_getcpuclockid(self._watched)
        self._stopped = threading.Event()
        self._signed = threading.Event()
        self._signed_at_s = 0.0
        self._signed_cpu_s = 0.0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    @property
    def figures(self) -> list[Figure]:
        """The watchdog's figures, for `/metrics`."""
        return [
            Figure(
                name="tarry_loop_longest_turn_seconds",
                text="The longest turn of the loop since the process began",
                values=lambda: {"": self.longest_s},
            ),
            Figure(
                name="tarry_loop_longest_turn_cpu_seconds",
                text="The processor time of the turn of the loop that took the most of it",
                values=lambda: {"": self.longest_cpu_s},
            ),
            Figure(
                name="tarry_loop_long_turns",
                text="Turns of the loop that took more than a quarter of a second",
                values=lambda: {"": self.long_turns},
                counts=True,
            ),
        ]

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._signed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY_S):
            asked_at_s, asked_cpu_s = time.monotonic(), time.clock_gettime(self._cpu_clock)
            self._signed.clear()
            try:
                self._loop.call_soon_threadsafe(self._sign)
            except RuntimeError:
                # The loop is closed.
                return
            is_long = not self._signed.wait(LONG_S)
            if is_long and not self._wait_on(asked_at_s):
                return
            if self._stopped.is_set():
                return
            took_s, cpu_s = self._signed_at_s - asked_at_s, self._signed_cpu_s - asked_cpu_s
            self.longest_s = max(self.longest_s, took_s)
            self.longest_cpu_s = max(self.longest_cpu_s, cpu_s)
            if is_long:
                self.long_turns += 1
                log.warning(
                    "the turn of the loop took %d ms, %d ms of them of the processor",
                    took_s * 1000,
                    cpu_s * 1000,
                )

    def _wait_on(self, asked_at_s: float) -> bool:
        """Say where a long turn is, and again as it goes on, until it ends; False if the loop is closed instead."""
        wait_s = AGAIN_S
        while not self._stopped.is_set():
            taken_ms = (time.monotonic() - asked_at_s) * 1000
            self.longest_s = max(self.longest_s, taken_ms / 1000)
            log.warning("a turn of the loop has taken %d ms so far, and is at\n%s", taken_ms, self._places())
            if self._signed.wait(wait_s):
                return True
            if self._loop.is_closed():
                return False
            wait_s *= 2
        return True

    def _sign(self) -> None:
        """Say, on the loop's thread, that it is turning."""
        self._signed_at_s = time.monotonic()
        self._signed_cpu_s = time.thread_time()
        self._signed.set()

    def _places(self) -> str:
        """The stack of the loop's thread: places in the code alone, no values."""
        frame = sys._current_frames().get(self._watched)
        if frame is None:
            return "(its thread has ended)"
        places = [
            f"  {at.f_code.co_filename}:{line} in {at.f_code.co_name}"
            for at, line in traceback.walk_stack(frame)
            if not at.f_code.co_filename.startswith("<frozen importlib")
        ]
        return "\n".join(reversed(places[:PLACES]))
