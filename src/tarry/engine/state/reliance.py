"""Reliance on the index: which records were reclaimed because it has them, and so which versions of it will do."""

from tarry.core.errors import Unavailable
from tarry.index.index import IndexView
from tarry.ledger.ledger import Ledger
from tarry.registry.registry import Relied


class Reliance:
    """How far the server relies on the index."""

    def __init__(self, ledger: Ledger) -> None:
        self.relied = Relied()
        """The bounds of the records that were reclaimed because the index has them."""
        self._ledger = ledger

    def check(self, view: IndexView) -> None:
        """Raise `Unavailable` unless a view belongs to this ledger and has all records that were reclaimed because of it."""
        relied, first_seq = self.relied, self._ledger.first_seq
        if relied.seq and view.identity != relied.index:
            raise Unavailable(
                "the index was removed or replaced by another, and with it messages that are nowhere else:"
                " bring its folder back from a backup"
            )
        if view.cursor < relied.seq:
            raise Unavailable(
                f"the index ends at seq {view.cursor}, but {relied.seq} was reached before: it is an older copy"
            )
        # A new index begins with the ledger, wherever that is; until it does, it has reached nothing.
        if 0 < view.cursor < first_seq - 1:
            raise Unavailable(
                f"the index ends at seq {view.cursor}, but the ledger begins at {first_seq}: it is an older copy"
            )
