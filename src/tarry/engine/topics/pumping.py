"""Pumping: subscriptions that have something to give out, each once in a turn, and some milliseconds' worth at a time."""

from collections.abc import Callable
from typing import Protocol


class Pumped(Protocol):
    """A subscription, as far as it is pumped."""

    def pump(self) -> None:
        """Give out what can be given."""


class Pumping:
    """The subscriptions that are pumped at the end of this turn, and those that go on in the next."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` has the next turn come at once."""
        self._wake = wake
        self.closed = False
        """Whether nothing may be given out for now; what was to be is kept (R15)."""
        self.look: Callable[[], None] | None = None
        """Called before anything is given out: it may close."""
        self._woken: dict[Pumped, None] = {}
        self._unfinished: dict[Pumped, None] = {}
        """Subscriptions that have more to give out than they may in one turn."""

    def wake(self, sub: Pumped) -> None:
        """Something became visible or ready for a subscription."""
        self._woken[sub] = None

    def go_on(self, sub: Pumped) -> None:
        """Have a subscription give out more in the next turn, which is to come at once."""
        self._unfinished[sub] = None
        self._wake()

    def may_give_out(self) -> bool:
        """Whether entries may be given to consumers now."""
        if self.look is not None:
            self.look()
        return not self.closed

    def open(self) -> None:
        """Let entries be given out again: in the next turn, which is to come at once."""
        self.closed = False
        self._wake()

    def pump(self) -> None:
        """Give out what became visible or ready in this turn."""
        if not self.may_give_out():
            return
        while self._woken:
            woken, self._woken = self._woken, {}
            for sub in woken:
                sub.pump()
        self._woken, self._unfinished = self._unfinished, {}

    @property
    def unfinished(self) -> bool:
        """Whether there is more to give out than one turn may take."""
        return bool(self._woken or self._unfinished) and not self.closed
