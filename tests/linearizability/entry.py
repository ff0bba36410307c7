"""The model of a delayed entry of a topic: it waits, is due by the clock, is given to a consumer, and may be cancelled or moved.

An entry that is due waits no more: from the first answer that says so it can be neither cancelled nor moved. It may be given
to a consumer again, but never early, and never after an answered cancel.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from tests.linearizability.life import Happened, Life


class EntryModel(Struct, frozen=True):
    """The steps of an entry with one delay. Its phases are those of a message: one that is due is `sending`."""

    delay_ms: int

    def step(self, life: Life, event: Happened) -> Iterator[Life]:
        """The lives to which an event may lead."""
        yield from getattr(self, f"_{event.kind}")(life, event)

    def _publish(self, life: Life, event: Happened) -> Iterator[Life]:
        if life.phase == "absent":
            yield self._begun(event)

    def _begun(self, event: Happened) -> Life:
        return Life(
            "scheduled", since_from_ms=event.from_ms, since_to_ms=event.to_ms,
            not_before_ms=event.from_ms + self.delay_ms,
        )  # fmt: skip

    def _restart(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "conflict":
            yield from self._gone(life, event)
        elif life.phase == "scheduled":
            yield self._begun(event)

    def _cancel(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "conflict":
            yield from self._gone(life, event)
        elif life.phase == "scheduled":
            yield replace(life, phase="cancelled")

    def _look(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "conflict":
            yield from self._gone(life, event)
        elif life.phase == "scheduled":
            assert event.since_ms is not None
            if life.since_from_ms <= event.since_ms <= life.since_to_ms:
                yield life

    def _gone(self, life: Life, event: Happened) -> Iterator[Life]:
        """States of an entry that does not wait any more."""
        if life.phase in ("cancelled", "sending", "sent"):
            yield life
        elif life.phase == "scheduled" and event.to_ms >= life.not_before_ms:
            yield replace(life, phase="sending")

    def _delivery(self, life: Life, event: Happened) -> Iterator[Life]:
        due = life.phase == "scheduled" and event.to_ms >= life.not_before_ms
        if due or life.phase in ("sending", "sent"):
            yield replace(life, phase="sent")

    def _crash(self, life: Life, _event: Happened) -> Iterator[Life]:
        yield life
