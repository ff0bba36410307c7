"""The ends of versions on their way into the ledger: those that are enqueued and not durable yet, and those that wait for space.

An end is never given up: when the ledger has no space for it, it is written as soon as there is (R2). Commands
that wait for the verdict of an attempt are told here, once that verdict is durable.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tarry.core.errors import Unavailable
from tarry.core.time.clock import Clock
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.records.versions import end_unread
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key, Record

SPACE_RETRY_MS: Final = 1_000
"""When the ledger has no space, how long until it is tried again."""

OnVerdict = Callable[[], None]

Otherwise = Callable[[str], list[Record]]
"""Makes the records that end versions whose intended records cannot be written, of the reason."""


class EndWriter:
    """Units that end versions, on their way into the ledger."""

    def __init__(self, journal: Journal, state: EngineState, clock: Clock, isolation: Isolation) -> None:
        self._journal = journal
        self._state = state
        self._clock = clock
        self._isolation = isolation
        self._open: dict[int, Key] = {}
        """The lowest key of each unit that is not durable yet."""
        self._units = 0
        self._unwritten: deque[Callable[[], bool]] = deque()
        """Units that found no space. They are written in this order, and nothing overtakes them."""
        self._waiting: dict[int, list[OnVerdict]] = {}
        """By seq: commands that wait for the verdict on an attempt."""

    def open(self, key: Key) -> int:
        """A unit whose lowest key is this is on its way; gives its number, for `close`."""
        self._units += 1
        self._open[self._units] = key
        return self._units

    def close(self, unit: int) -> None:
        """That unit is durable, or never will be."""
        del self._open[unit]

    def write(
        self,
        make: Callable[[], list[Record]],
        keys: list[Key],
        done: Callable[[], None] | None = None,
        otherwise: Otherwise | None = None,
    ) -> None:
        """Write records that end or replace the versions at these keys; again if there is no space.

        `make` is called at each try: entry ids and the like are those of that moment. If it fails, or what it makes
        cannot be a unit, the versions end with the records that `otherwise` makes of the reason.
        """
        unit = self.open(min(keys))

        def written(error: Exception | None) -> None:
            self.close(unit)
            if error is None:
                if done is not None:
                    done()
                self.settled(key.seq for key in keys)

        def attempt() -> bool:
            try:
                records = self._append(make, keys, written, otherwise)
            except Unavailable:
                return False
            if not records:
                written(None)
            return True

        if self._unwritten or not attempt():
            self._unwritten.append(attempt)

    def _append(
        self,
        make: Callable[[], list[Record]],
        keys: list[Key],
        written: Callable[[Exception | None], None],
        otherwise: Otherwise | None,
    ) -> list[Record]:
        """Append as many ends as fit: the records meant, the others, or in the end nothing but the ends of the keys."""
        try:
            records = make()
            if records:
                self._journal.append(records, written, essential=True)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about these versions
            reason = self._isolation.reason(keys[0].seq, error, "was ended")
            if otherwise is None:
                unread = self._unread(keys, reason)
                self._journal.append(unread, written, essential=True)
                return unread
            return self._append(partial(otherwise, reason), keys, written, None)
        return records

    def _unread(self, keys: list[Key], reason: str) -> list[Record]:
        """The ends of versions of which nothing but their keys can be relied on."""
        now_ms = self._clock.now_ms()
        return [end_unread(key, now_ms, reason) for key in keys if key.seq not in self._state.dead]

    def is_writing(self, key: Key) -> bool:
        """Whether a unit that ends the version at a key alone is on its way, or waits for space."""
        return key in self._open.values()

    def end(self, key: Key, make: Callable[[], list[Record]], otherwise: Otherwise | None = None) -> None:
        """Write the end of one version, or its next one, unless a command ends it before there is space."""
        self.write(lambda: [] if key.seq in self._state.dead else make(), [key], None, otherwise)

    def try_again(self) -> bool:
        """Write the units that found no space before; whether none is left."""
        while self._unwritten and self._unwritten[0]():
            self._unwritten.popleft()
        return not self.waits_for_space

    @property
    def waits_for_space(self) -> bool:
        """Whether a unit has found no space."""
        return bool(self._unwritten)

    def when_settled(self, seq: int, callback: OnVerdict) -> None:
        """Call back once the attempt under way, or about to be, has its verdict."""
        self._waiting.setdefault(seq, []).append(callback)

    def settled(self, seqs: Iterable[int]) -> None:
        """These have their verdict."""
        if self._waiting:
            for seq in seqs:
                for callback in self._waiting.pop(seq, ()):
                    callback()

    def settle_dead(self, first_seq: int, last_seq: int) -> None:
        """Versions in a range have ended without a record of their own: commands that wait for a verdict on one look again."""
        dead = self._state.dead
        self.settled([seq for seq in self._waiting if first_seq <= seq <= last_seq and seq in dead])

    def settle_all(self) -> None:
        """There will be no more verdicts: nobody waits for one any longer."""
        self.settled(list(self._waiting))

    def lowest(self) -> Key | None:
        """The lowest key of a unit that is not durable yet."""
        return min(self._open.values()) if self._open else None
