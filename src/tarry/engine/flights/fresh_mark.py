"""A fresh mark: one small record by which a server learns whether it still owns its ledger (R15).

A ledger on a replicated log may have another owner since the last record that became durable here: this process was paused, or
cut off. A departure, which cannot be taken back, waits for a mark (R9) that says nothing new, and leaves once it is
durable. With a ledger on this disk there is no other owner, and nobody asks.
"""

from collections.abc import Callable

from tarry.core.errors import TarryError
from tarry.core.time.clock import Clock
from tarry.engine.journal.journal import Journal
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Mark


class FreshMark:
    """Appends marks that say nothing new."""

    def __init__(self, journal: Journal, state: EngineState, clock: Clock) -> None:
        self._journal = journal
        self._state = state
        self._clock = clock

    def append(self, then: Callable[[], None]) -> None:
        """Call back once a mark that is appended now is durable; never, if it does not become so. Raises `Unavailable`."""

        def durable(error: TarryError | None) -> None:
            if error is None:
                then()

        self._journal.append([Mark(self._state.watermark, self._clock.now_ms())], durable, essential=True)
