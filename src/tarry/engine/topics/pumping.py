"""Pumping: subscriptions with entries to give out, each once in a turn, and some milliseconds' worth at a time."""

from collections.abc import Callable
from typing import Protocol

from tarry.engine.journal.tenure import Tenure


class Pumped(Protocol):
    """A subscription, as far as it is pumped."""

    def pump(self) -> None:
        """Give out entries as far as permits reach."""


class Pumping:
    """The subscriptions that are pumped at the end of this turn, and those that go on in the next."""

    def __init__(self, wake: Callable[[], None], tenure: Tenure | None) -> None:
        """`wake` has the next turn come at once. Without a fresh proof of ownership entries are kept back (R15)."""
        self._wake = wake
        self._tenure = tenure
        self._woken: dict[Pumped, None] = {}
        self._unfinished: dict[Pumped, None] = {}
        """Subscriptions that have more to give out than they may in one turn."""

    def wake(self, sub: Pumped) -> None:
        """Have a subscription pumped: entries became visible or ready for it."""
        self._woken[sub] = None

    def go_on(self, sub: Pumped) -> None:
        """Have a subscription give out more in the next turn, which is to come at once."""
        self._unfinished[sub] = None
        self._wake()

    def may_give_out(self) -> bool:
        """Whether entries may be given to consumers now."""
        return self._tenure is None or not self._tenure.in_doubt

    def pump(self) -> None:
        """Give out entries that became visible or ready in this turn."""
        if not self.may_give_out():
            return
        # Doubt may begin on the way: a subscription that keeps its entries back then has itself woken, and no turn of this loop
        # ends the doubt.
        while self._woken and self.may_give_out():
            woken, self._woken = self._woken, {}
            for sub in woken:
                sub.pump()
        self._woken |= self._unfinished
        self._unfinished = {}

    @property
    def unfinished(self) -> bool:
        """Whether there is more to give out than one turn may take."""
        return bool(self._woken or self._unfinished) and self.may_give_out()
