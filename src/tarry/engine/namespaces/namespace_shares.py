"""Shares by namespace of what a server has a bounded number of: commands, repeats, paused places, places for sending.

Asked when something is taken, and never of a record: what was admitted stays, whoever shares the server at a later start.
"""

from collections.abc import Callable

from tarry.core.errors import Conflict
from tarry.core.tenants.shares import is_within_share


class NamespaceShares:
    """The share of each namespace, where there are several to share with."""

    def __init__(self, shared: Callable[[], bool]) -> None:
        """`shared`: whether the server has several tenants; one alone has everything."""
        self._shared = shared

    def allow(self, limit: int, taken: int, held: int, more: int = 1) -> bool:
        """Whether a namespace may have more."""
        return is_within_share(limit, taken, held, more) or not self._shared()

    def check(
        self, namespace: str, limit: int, taken: int, held: int, more: int, what: str, cure: str
    ) -> None:
        """Raise `Conflict` for a namespace that has its share and asks for more."""
        if not self.allow(limit, taken, held, more):
            raise Conflict(
                f"{namespace} has its share of {what}, which all namespaces have together: {cure}", "full"
            )
