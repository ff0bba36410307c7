"""Due messages whose bodies only the index has, until these are fetched.

Bodies are fetched ahead, so that this is rare. Meanwhile nothing else is taken from the wheel, for it may have to follow these
messages in order; but an index that does not answer does not stop messages that are not in it for long.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.horizon import Horizon
from tarry.engine.due.overdue_lanes import Keys
from tarry.engine.due.postponed import Postponed
from tarry.ledger.record import Key

ORDER_WAITS_MS: Final = 1_000
"""How long messages that are due later wait for bodies that are being fetched."""


class AwaitedBodies:
    """Keys of due messages by the fetches that get their bodies."""

    def __init__(self, bodies: Bodies, horizon: Horizon, postponed: Postponed) -> None:
        self._bodies = bodies
        self._horizon = horizon
        self._postponed = postponed
        self.fetches: dict[int, list[Key]] = {}
        """The keys of each fetch, by the first of its seqs."""
        self.since_ms = 0
        """When the first of these fetches began to wait."""
        self._fetched: deque[Keys] = deque()
        """The keys whose bodies are there, by fetch."""

    def __bool__(self) -> bool:
        return bool(self.fetches)

    def keys(self) -> Iterator[Key]:
        """The keys of all messages that wait for bodies."""
        return chain.from_iterable(self.fetches.values())

    def lowest(self) -> Iterable[Key]:
        """The lowest key of each fetch."""
        return map(min, self.fetches.values())

    def keep_others_waiting(self, now_ms: int) -> bool:
        """Whether messages that are due later wait for these, to keep their order."""
        return bool(self.fetches) and 0 <= now_ms - self.since_ms < ORDER_WAITS_MS

    def fetch(self, fires: NDArray[np.int64], seqs: NDArray[np.int64], now_ms: int) -> None:
        """Fetch the bodies of some keys, those that are not at hand; then `take` gives its keys, due as they are."""
        keys = list(map(self._postponed.key_of, fires.tolist(), seqs.tolist()))
        if not self.fetches:
            self.since_ms = now_ms
        self.fetches[keys[0].seq] = keys

        def held() -> None:
            self._fetched.append((fires, seqs))
            self._horizon.wake()

        absent = self._bodies.absent(seqs)
        self._bodies.hold([key for key, away in zip(keys, absent, strict=True) if away], held)

    @property
    def has_fetched(self) -> bool:
        """Whether there is a fetch whose bodies are there."""
        return bool(self._fetched)

    def take(self) -> Keys:
        """The keys of the first fetch whose bodies are there."""
        fires, seqs = self._fetched.popleft()
        del self.fetches[int(seqs[0])]
        return fires, seqs
