"""The lapse: a long time in which this process did nothing, and after which it may not own the ledger any more (R15).

A server that was paused wakes with consumers that wait and entries that it has. Another server may have given them to its own
consumers meanwhile, and have taken their acknowledgements. So after a lapse nothing is given out until a mark that was
appended since is durable.
"""

import logging
from functools import partial

from tarry.core.clock import SteadyClock
from tarry.core.errors import Unavailable
from tarry.engine.flights.fresh_mark import FreshMark
from tarry.engine.topics.pumping import Pumping

log = logging.getLogger(__name__)


class Lapse:
    """Closes the way to consumers after a lapse, and opens it again."""

    def __init__(self, fresh: FreshMark, pumping: Pumping, clock: SteadyClock, longest_ms: int) -> None:
        """A longer time than `longest_ms` between two looks is a lapse."""
        self._fresh = fresh
        self._pumping = pumping
        self._clock = clock
        self._longest_ms = longest_ms
        self._looked_ms = clock.elapsed_ms()
        self._lapses = 0
        self._asked = 0
        """The lapse for which a mark is on its way."""

    def look(self) -> None:
        """Look at the time; called before anything is given out, and in every turn."""
        elapsed_ms = self._clock.elapsed_ms()
        gone_ms, self._looked_ms = elapsed_ms - self._looked_ms, elapsed_ms
        if gone_ms > self._longest_ms:
            log.warning(
                "nothing happened for %.1f s: consumers wait until the ledger is known to be ours",
                gone_ms / 1000,
            )
            self._lapses += 1
            self._pumping.closed = True
        if self._pumping.closed and self._asked < self._lapses:
            try:
                self._fresh.append(partial(self._durable, self._lapses))
                self._asked = self._lapses
            except Unavailable:
                # Asked again in the next turn, if there is one.
                return

    def _durable(self, lapse: int) -> None:
        # There may have been another lapse since.
        if lapse == self._lapses:
            self._pumping.open()
