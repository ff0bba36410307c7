"""Backoff: how long to wait before the next attempt. Pure: tells the wait, and never waits itself."""

from collections.abc import Callable, Iterator

MAX_DOUBLINGS = 40
"""Where doubling ends whatever the longest wait is, so that numbers stay small."""


def doubling(first: float, longest: float) -> Iterator[float]:
    """Waits without end: the first one, then each twice the one before, up to the longest."""
    wait = first
    while True:
        yield wait
        wait = min(wait * 2, longest)


def after_attempts(attempts: int, first: int, longest: int) -> int:
    """The wait after so many attempts have failed, doubled by each attempt but the first, up to the longest."""
    return min(longest, first << min(max(attempts - 1, 0), MAX_DOUBLINGS))


def spread(wait: float, random: Callable[[], float]) -> float:
    """A wait between half of this one and the whole, so that attempts that failed together are not repeated together.

    `random` gives a number from 0 up to 1, as `random.random` does.
    """
    return wait * (0.5 + random() / 2)
