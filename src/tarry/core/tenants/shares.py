"""Shares of a bounded thing that several use: nobody takes the last of it from the others.

Whoever holds some may take more only while at least as much is left as they hold then. So one alone gets half of it, the next
one half of the rest, and whoever comes later still finds some. Where there is nobody to share with, all of it is one's own.
"""

from collections import Counter

from tarry.core.errors import OverShare, Unavailable
from tarry.core.tenants.access import Access, Caller


def is_within_share(limit: int, taken: int, held: int, more: int = 1) -> bool:
    """Whether a holder of so many of the taken places may take more."""
    return held + more <= limit - taken


class Shares:
    """A bounded number of places that all tokens share."""

    def __init__(self, limit: int, what: str, access: Access | None) -> None:
        """`what` they are for, in the plural; shared while there are several tokens, and always without a list of these."""
        self._limit = limit
        self._what = what
        self._access = access
        self._held: Counter[str] = Counter()
        self.taken = 0

    def take(self, caller: Caller) -> None:
        """Take a place for a caller; raises `Unavailable`, and of that `OverShare` for whoever has its share."""
        free = self._limit - self.taken
        if free <= 0:
            raise Unavailable(f"all {self._limit} {self._what} are taken; try again in a moment")
        held = self._held[caller.name]
        shared = self._access is None or len(self._access.tokens) > 1
        if shared and not is_within_share(self._limit, self.taken, held):
            raise OverShare(
                f"the token {caller.name} has {held} {self._what}, which is its share of {self._limit} while others"
                " may want some; end one first"
            )
        self._held[caller.name] += 1
        self.taken += 1

    def give_back(self, caller: Caller) -> None:
        """A caller's place is free again."""
        self._held[caller.name] -= 1
        if not self._held[caller.name]:
            del self._held[caller.name]
        self.taken -= 1
