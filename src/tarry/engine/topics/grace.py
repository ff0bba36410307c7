"""The time that entries stay after every subscription is done with them.

Who seeks back a few messages, or subscribes from the earliest a moment late, finds them: for some minutes, as long as
their segment of the ledger is there, and for so many of a topic. Nothing is kept from being reclaimed for it; a
retention policy does that.

What becomes unneeded within a step is let go of together, so that a busy topic costs a few marks, and one in which
nothing happens none. It knows no clock: instants are passed in.
"""

from collections import deque
from typing import Final

from tarry.core.limits import MINUTE_MS
from tarry.engine.topics.topic import Topic

GRACE_MS: Final = 10 * MINUTE_MS
STEP_MS: Final = MINUTE_MS
MOST_ENTRIES: Final = 1 << 18
"""Entries of one topic: their places take two mebibytes."""
MOST_IN_ALL: Final = 1 << 22
"""Entries of all topics: those that were kept for longest go first."""
LET_GO_AT_ONCE: Final = 1_000
"""Topics that are looked at in one turn."""


class GraceStep:
    """The entries of a topic that became unneeded within one step."""

    __slots__ = ("below", "ends_ms", "entries", "topic")

    def __init__(self, topic: Topic, below: int, ends_ms: int) -> None:
        self.topic = topic
        self.below = below
        self.entries = 0
        """How many they are."""
        self.ends_ms = ends_ms
        """When the step is over; from then on the time counts."""


class Grace:
    """Which entries of which topics go when."""

    def __init__(self) -> None:
        self._marks: deque[GraceStep] = deque()
        self._newest: dict[Topic, GraceStep] = {}
        self._entries = 0
        """Number of entries in all marks."""

    @property
    def waiting(self) -> int:
        """How many marks there are: a few for each topic with acknowledgements of late."""
        return len(self._marks)

    def note(self, topic: Topic, now_ms: int) -> None:
        """Mark that entries of a topic were acknowledged, or may have been."""
        below = topic.unneeded_below()
        if below <= topic.first:
            return
        topic.trim(below - MOST_ENTRIES)
        newest = self._newest.get(topic)
        more = below - max(topic.first, 0 if newest is None else newest.below)
        if newest is None or (more > 0 and now_ms >= newest.ends_ms):
            newest = self._newest[topic] = GraceStep(topic, below, now_ms + STEP_MS)
            self._marks.append(newest)
        newest.below = max(newest.below, below)
        newest.entries += max(0, more)
        self._entries += max(0, more)

    def over(self, now_ms: int) -> list[GraceStep]:
        """The entries whose time is over, of a bounded number of topics."""
        gone: list[GraceStep] = []
        while self._marks and len(gone) < LET_GO_AT_ONCE:
            mark = self._marks[0]
            # A clock that was set back must not keep them for ever.
            young = now_ms < mark.ends_ms + GRACE_MS and mark.ends_ms - now_ms <= STEP_MS
            if young and self._entries <= MOST_IN_ALL:
                break
            self._marks.popleft()
            self._entries -= mark.entries
            if self._newest.get(mark.topic) is mark:
                del self._newest[mark.topic]
            gone.append(mark)
        return gone

    def forget(self, topic: Topic) -> None:
        """A topic is deleted."""
        self._newest.pop(topic, None)
