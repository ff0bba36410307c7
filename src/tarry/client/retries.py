"""When to try again after a broken connection. Pure: tells how long to wait, and never waits itself."""

from collections.abc import Iterator
from typing import Final

FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 1.0


def waits(retry_for_s: float) -> Iterator[float]:
    """The waits before each further attempt: doubling, and together no longer than `retry_for_s`."""
    wait_s, spent_s = FIRST_WAIT_S, 0.0
    while spent_s + wait_s <= retry_for_s:
        yield wait_s
        spent_s += wait_s
        wait_s = min(wait_s * 2, LONGEST_WAIT_S)
