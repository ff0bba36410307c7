"""Rate limits: how fast one owner or one token may go, with time passed in.

Each owner's allowance is one number, the instant at which the bucket would be full again (the generic
cell rate algorithm). A burst of one second's worth is allowed. The number of owners remembered is bounded: one
whose bucket is full again is the same as one never seen. No rate, however slow, leads to an instant further away than
the longest delay: what is put off has to come.
"""

from math import ceil
from typing import Final

from tarry.core.limits import DAY_MS, HOUR_MS, MAX_DELAY_MS

MAX_OWNERS: Final = 100_000
BURST_MS: Final = 1_000.0


class Rates:
    """Allowances by owner."""

    def __init__(self) -> None:
        self._full_at: dict[tuple[str, str], float] = {}
        self._now_ms = 0

    def wait_ms(self, key: tuple[str, str], per_second: float, now_ms: int) -> int:
        """Take one if it is allowed now and answer 0; else take nothing and say how long to wait."""
        full_at = self._current(key, now_ms)
        wait = full_at - now_ms - self._burst(per_second)
        if wait > 0:
            return ceil(wait)
        self._full_at[key] = full_at + _apart_ms(per_second)
        return 0

    def reserve(self, key: tuple[str, str], per_second: float, now_ms: int) -> int:
        """Take one whenever it will be allowed, and say at which instant that is."""
        full_at = self._current(key, now_ms)
        self._full_at[key] = min(full_at + _apart_ms(per_second), now_ms + float(MAX_DELAY_MS))
        return max(now_ms, ceil(full_at - self._burst(per_second)))

    def charge(self, key: tuple[str, str], per_second: float, now_ms: int, count: int) -> int:
        """Take so many although they may not be allowed yet, and say how long to wait for the next one: an hour at the most."""
        full_at = min(self._current(key, now_ms) + count * _apart_ms(per_second), now_ms + float(HOUR_MS))
        self._full_at[key] = full_at
        return max(0, ceil(full_at - now_ms - self._burst(per_second)))

    def forget(self, namespace: str | None) -> None:
        """Let all owners of a namespace, or all there are, have the whole of their allowance again."""
        kept = (
            {} if namespace is None else {key: at for key, at in self._full_at.items() if key[0] != namespace}
        )
        self._full_at = kept

    @staticmethod
    def _burst(per_second: float) -> float:
        # At least one message must be allowed at once, however slow the rate.
        return max(BURST_MS - _apart_ms(per_second), 0.0)

    def _current(self, key: tuple[str, str], now_ms: int) -> float:
        if now_ms < self._now_ms:
            # The clock was set back: what was owed then is owed now, and no more.
            back_ms = self._now_ms - now_ms
            self._full_at = {one: at - back_ms for one, at in self._full_at.items()}
        self._now_ms = now_ms
        if len(self._full_at) >= MAX_OWNERS:
            self._full_at = {one: at for one, at in self._full_at.items() if at > now_ms}
        return max(self._full_at.get(key, 0.0), float(now_ms))


def _apart_ms(per_second: float) -> float:
    """The time between two, a day at the most: slower rates are refused, but older versions let them into the ledger."""
    return min(1000.0 / per_second, float(DAY_MS))
