"""A clock that a test owns: it stands still until it is told to move, forwards or backwards."""

from typing import Final

FIRST_AT_MS: Final = 1_700_000_000_000
"""Where a simulated clock begins unless it is told otherwise: 2023-11-14T22:13:20Z."""


class SimulatedClock:
    """A wall clock that is set by hand."""

    def __init__(self, at_ms: int = FIRST_AT_MS) -> None:
        self._at_ms = at_ms
        self._elapsed_ms = 0
        self._together = [self]
        """The clocks for which time passes together."""
        self.readings: list[int] = []
        """Every instant that somebody was told, in order, without repetitions in a row.

        What was done at an instant can be checked against it: an instant that nobody read was never reached.
        """

    def beside(self, ahead_ms: int = 0) -> "SimulatedClock":
        """The clock of another machine, which shows so much more: time passes for both, and each is set by itself."""
        other = SimulatedClock(self._at_ms + ahead_ms)
        other._elapsed_ms = self._elapsed_ms
        other._together = self._together
        self._together.append(other)
        return other

    def now_ms(self) -> int:
        """The present instant."""
        if not self.readings or self.readings[-1] != self._at_ms:
            self.readings.append(self._at_ms)
        return self._at_ms

    def elapsed_ms(self) -> int:
        """How much time has passed, however often the clock was set."""
        return self._elapsed_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        if ms < 0:
            raise ValueError("time does not pass backwards; `jump` sets the clock back")
        for clock in self._together:
            clock._at_ms += ms
            clock._elapsed_ms += ms

    def jump(self, ms: int) -> None:
        """Set the clock forwards or backwards, as an operator or a time server may."""
        self._at_ms += ms

    def set(self, at_ms: int) -> None:
        """Let time pass until an instant; one in the past sets the clock back."""
        self.advance(max(0, at_ms - self._at_ms))
        self._at_ms = at_ms
