"""Overdue keys by lane, when more is due than one turn takes: owners take turns, and within a lane keys stay in order.

An owner with a million overdue messages does not delay another's one.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tarry.core.timers.run import Due

Keys = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Fire instants and seqs, side by side."""


class OverdueLanes:
    """Keys that were taken out of the wheel and wait for their lane's turn."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[Keys]] = {}

    def __len__(self) -> int:
        """How many lanes have keys."""
        return len(self._lanes)

    def parts(self) -> Iterator[Keys]:
        """All keys, in parts that were due together; each part is in order."""
        return (part for queue in self._lanes.values() for part in queue)

    def clear(self) -> list[tuple[int, Keys]]:
        """Take out everything: parts with their lanes."""
        lanes, self._lanes = self._lanes, {}
        return [(lane, part) for lane, queue in lanes.items() for part in queue]

    def add(self, due: Due) -> None:
        """Line up due keys, each in its lane."""
        if len(due.lanes) and (due.lanes == due.lanes[0]).all():
            self._line_up(int(due.lanes[0]), due.fire_at_ms, due.seqs)
            return
        order = np.argsort(due.lanes, kind="stable")
        cuts = np.flatnonzero(np.diff(due.lanes[order])) + 1
        for chosen in np.split(order, cuts):
            if len(chosen):
                self._line_up(int(due.lanes[chosen[0]]), due.fire_at_ms[chosen], due.seqs[chosen])

    def _line_up(self, lane: int, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> None:
        """Put keys into a lane, in key order: a version that was carried forward keeps its instant and comes late."""
        queue = self._lanes.setdefault(lane, deque())
        if queue and (fires[0], seqs[0]) < (queue[-1][0][-1], queue[-1][1][-1]):
            fires, seqs = (np.concatenate(column) for column in zip(*queue, (fires, seqs), strict=True))
            order = np.lexsort((seqs, fires))
            fires, seqs = fires[order], seqs[order]
            queue.clear()
        queue.append((fires, seqs))

    def take_turns(self, batch: int) -> Keys:
        """A batch of keys in which every lane that has keys has its share."""
        taken: list[Keys] = []
        left = batch
        while self._lanes and left > 0:
            share = max(1, left // len(self._lanes))
            for lane in list(self._lanes):
                # Whoever was served goes to the back.
                queue = self._lanes.pop(lane)
                fires, seqs = queue.popleft()
                some = min(share, len(seqs), left)
                taken.append((fires[:some], seqs[:some]))
                left -= some
                if some < len(seqs):
                    queue.appendleft((fires[some:], seqs[some:]))
                if queue:
                    self._lanes[lane] = queue
                if not left:
                    break
        fires, seqs = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        order = np.lexsort((seqs, fires))
        return fires[order], seqs[order]
