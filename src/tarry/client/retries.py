"""When to try again after a broken connection. Pure: tells how long to wait, and never waits itself."""

from collections.abc import Iterator
from typing import Final

from tarry.core.time.backoff import doubling

FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 1.0


def waits(retry_for_s: float) -> Iterator[float]:
    """The waits before each further attempt: doubling, and together no longer than `retry_for_s`."""
    spent_s = 0.0
    for wait_s in doubling(FIRST_WAIT_S, LONGEST_WAIT_S):
        spent_s += wait_s
        if spent_s > retry_for_s:
            return
        yield wait_s
