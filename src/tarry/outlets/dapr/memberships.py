"""Subscriptions of a component for as long as they are open."""

from collections.abc import Callable

from tarry.outlets.dapr.component import Subscribed


class Memberships:
    """Subscriptions of a component that are under way. One that is closed is forgotten: streams come and go for ever."""

    def __init__(self) -> None:
        self._open: set[Membership] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, subscribed: Subscribed) -> "Membership":
        """Keep a subscription until it is closed; the subscriber gets the returned membership."""
        member = Membership(subscribed, self._open.discard)
        self._open.add(member)
        return member

    async def close(self) -> None:
        """Close those that are left."""
        for member in list(self._open):
            await member.close()


class Membership:
    """One subscription of a component. Implements `Subscribed`."""

    def __init__(self, subscribed: Subscribed, forget: "Callable[[Membership], None]") -> None:
        self.subscribed = subscribed
        """The broker's own."""
        self._forget = forget

    async def close(self) -> None:
        """Receive no more."""
        await self.subscribed.close()
        self._forget(self)
