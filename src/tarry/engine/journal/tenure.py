"""Tenure: how long ago this server is known to have owned its ledger (R15).

Each record that has become durable proves that nobody else owned the ledger when it was enqueued: the log holds it before any
newer claim. An owner that was paused, or is cut off from the log, has no fresh proof, and another server may have claimed the
ledger since. So it shows and gives out nothing until a record that was enqueued since is durable; at the latest the next
heartbeat (R9) is one. With a ledger on this machine's disk there is no other owner, and no tenure.
"""

import logging
from collections.abc import Callable
from typing import Final

from tarry.core.time.clock import SteadyClock

NEVER: Final = -(1 << 62)
DOUBT: Final = "the log has not answered for a while, and another server may own the ledger"

log = logging.getLogger(__name__)


class Tenure:
    """Knows the newest proof of ownership."""

    def __init__(self, clock: SteadyClock, lasts_ms: int, on_proved: Callable[[], None]) -> None:
        """A proof that is older than `lasts_ms` says nothing any more. `on_proved` is told of the next one after such a time."""
        self._on_proved = on_proved
        self._clock = clock
        self.lasts_ms = lasts_ms
        self._proved_ms = NEVER
        self._told = True
        """Whether the log was told that there is no proof; at a start there is none yet."""

    def now_ms(self) -> int:
        """Elapsed time: a record that is enqueued now proves ownership up to it."""
        return self._clock.elapsed_ms()

    @property
    def in_doubt(self) -> bool:
        """Whether another server may own the ledger."""
        gone_ms = self._clock.elapsed_ms() - self._proved_ms
        if gone_ms <= self.lasts_ms:
            return False
        if not self._told:
            self._told = True
            log.warning(
                "for %.1f s no record became durable: nothing is shown until the ledger is known to be ours",
                gone_ms / 1000,
            )
        return True

    def proved(self, enqueued_ms: int) -> None:
        """A record is durable that was enqueued then."""
        before = self.in_doubt
        self._proved_ms = max(self._proved_ms, enqueued_ms)
        if before and not self.in_doubt:
            self._told = False
            self._on_proved()
