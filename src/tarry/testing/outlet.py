"""An outlet whose receiver is the test: it says what arrives, and what the engine hears of it.

An attempt has two halves that need not agree. `arrive` is what the receiver gets; `answer` is the verdict
that the engine is told. A time-out after the receiver got it is an arrival and `Retry(uncertain=True)`.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Delivered, Delivery, Outlet, Verdict
from tarry.core.time.clock import Clock

SCHEME = "sim"


class Arrival(Struct, frozen=True):
    """A delivery as the receiver got it, and when."""

    at_ms: int
    delivery: Delivery


class Attempt:
    """One delivery on its way."""

    def __init__(
        self,
        outlet: "SimulatedOutlet",
        delivery: Delivery,
        told: Callable[[Sequence[tuple[str, Verdict]]], None],
        at_ms: int,
    ) -> None:
        self.delivery = delivery
        self.launched_at_ms = at_ms
        self.arrived = False
        self._outlet = outlet
        self.told = told
        """The callback for the verdict."""

    def arrive(self) -> None:
        """The receiver gets it, once."""
        if not self.arrived:
            self.arrived = True
            self._outlet.arrivals.append(Arrival(self._outlet.clock.now_ms(), self.delivery))

    def answer(self, verdict: Verdict) -> None:
        """Give the engine the verdict; the attempt is over."""
        self._outlet.answer([(self, verdict)])


class SimulatedOutlet:
    """The outlet of destinations `sim://host/anything`.

    Deliveries of one destination with the same key go out one after another. It takes one delivery in a call, or
    `together`.
    """

    def __init__(self, clock: Clock, together: int = 1) -> None:
        self.clock = clock
        self.together = together
        self.under_way: list[Attempt] = []
        """Attempts without a verdict, oldest first."""
        self.arrivals: list[Arrival] = []
        """Deliveries that the receiver got, in order; a repeated one is here again."""

    def check(self, destination: str) -> None:
        """Raise `Invalid` if this is not a destination of the simulation."""
        if not destination.startswith(f"{SCHEME}://"):
            raise Invalid("destination", f"does not begin with {SCHEME}://")

    def order_key(self, destination: str, key: str | None) -> str | None:
        """Order is kept within one key of one destination."""
        return None if key is None else f"{destination} {key}"

    async def send(self, delivery: Delivery) -> Verdict:
        """Let the delivery arrive at once; for an engine that is driven by an event loop."""
        self.arrivals.append(Arrival(self.clock.now_ms(), delivery))
        return Delivered()

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        """Let the deliveries arrive at once."""
        return [await self.send(delivery) for delivery in deliveries]

    def launch(
        self,
        outlet: Outlet,
        deliveries: Sequence[Delivery],
        told: Callable[[Sequence[tuple[str, Verdict]]], None],
    ) -> None:
        """Begin attempts: the engine's `launch`, where attempts wait in `under_way` for the test."""
        now_ms = self.clock.now_ms()
        self.under_way += [Attempt(self, delivery, told, now_ms) for delivery in deliveries]

    def answer(self, verdicts: Sequence[tuple[Attempt, Verdict]]) -> None:
        """Give the engine the verdicts on several attempts at one time."""
        for attempt, verdict in verdicts:
            if isinstance(verdict, Delivered):
                attempt.arrive()
            self.under_way.remove(attempt)
        verdicts[0][0].told([(attempt.delivery.id, verdict) for attempt, verdict in verdicts])

    def forget(self) -> list[Attempt]:
        """Forget the attempts under way, as when the process dies; gives their deliveries."""
        lost, self.under_way = self.under_way, []
        return lost
