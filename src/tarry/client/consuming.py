"""The entries that a consuming loop holds: which were handled, which were not, and when to say so.

Pure, and the same for both clients. An entry counts as handled once the loop asks for the next one. Handled
entries are acknowledged together, after each batch or about once a second, and the rest is given back at the end.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Final

from tarry.client.shapes import Received

ACK_EVERY_S: Final = 1.0
BATCH: Final = 20
"""Few enough that a slow loop gets through them before the server gives them to somebody else."""


def consumer_name() -> str:
    """A name that no other consumer has."""
    return f"client-{secrets.token_hex(6)}"


class HeldEntries:
    """Entries between their receipt and their acknowledgement."""

    def __init__(self, now_s: float) -> None:
        self._handled: list[int] = []
        self._given: Sequence[Received] = ()
        self._next = 0
        self._acked_at_s = now_s

    def give(self, entries: Sequence[Received]) -> Iterator[Received]:
        """Each entry in turn; the one before counts as handled when the next is asked for."""
        self._given = entries
        for self._next, entry in enumerate(entries):
            yield entry
            self._handled.append(entry.entry_id)
        self._given, self._next = (), 0

    def ack_is_due(self, now_s: float) -> bool:
        """Whether it is time to acknowledge in the middle of a batch."""
        return now_s - self._acked_at_s >= ACK_EVERY_S and bool(self._handled)

    def take_handled(self, now_s: float) -> list[int]:
        """The entries to acknowledge now."""
        handled, self._handled = self._handled, []
        self._acked_at_s = now_s
        return handled

    def take_unhandled(self) -> list[int]:
        """The entries to give back when the loop is left; the one it was left at is among them."""
        left = [entry.entry_id for entry in self._given[self._next :]]
        self._given, self._next = (), 0
        return left
