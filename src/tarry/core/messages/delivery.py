"""Deliveries as an outlet gets them, and the verdicts that it gives."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct


class Delivery(Struct, frozen=True):
    """One attempt to send one due message. `id` is the idempotency key towards the receiver (R11)."""

    id: str
    destination: str
    payload: bytes
    headers: dict[str, str]
    key: str | None
    owner: str
    due_at_ms: int
    scheduled_at_ms: int
    attempt: int
    """1 for the first."""
    door: str = ""
    """Through which it came in."""
    namespace: str = ""


class Delivered(Struct, frozen=True):
    """The receiver has it. `reference` is the receiver's own name for it, if it gave one."""

    reference: str | None = None


class Retry(Struct, frozen=True):
    """A verdict: the message did not arrive, as far as is known, and may at another attempt.

    `after_ms` is the receiver's wish (`Retry-After`); without it the engine backs off by itself.
    `uncertain` says that it may have arrived all the same, as after a time-out: a cancel is then
    refused, for it could not keep its word (R11).
    `counted` is false where the receiver as a whole is away or busy: however often, that never makes the message fail.
    `error` is what the receiver said, in its own words, for the door to repeat.
    """

    reason: str
    after_ms: int | None = None
    uncertain: bool = False
    counted: bool = True
    error: str | None = None


class Refused(Struct, frozen=True):
    """A verdict: the message will never be taken, so that trying again is useless. `error` is the receiver's, for the door to repeat."""

    reason: str
    error: str | None = None


class Missing(Struct, frozen=True):
    """This start does not have the part that the destination names, such as a component.

    That is no attempt: the message waits, uncounted, for a start that has it.
    """

    reason: str


Verdict = Delivered | Retry | Refused | Missing


class Outlet(Protocol):
    """A way a due message goes out, chosen by the scheme of its destination.

    `send` must end, with a verdict, within a bounded time, and never raise for what the
    receiver or the network does. Errors go into the verdict without payload or secrets.
    """

    def check(self, destination: str) -> None:
        """Raise `Invalid` if this destination can never be sent to. Cheap, does no I/O."""

    def order_key(self, destination: str, key: str | None) -> str | None:
        """Deliveries with the same order key go out one after another; None means no order."""

    async def send(self, delivery: Delivery) -> Verdict:
        """Send a delivery once; gives the verdict."""


@runtime_checkable
class NamespacedOutlet(Outlet, Protocol):
    """An outlet whose destinations are open to some namespaces only."""

    def check_namespace(self, destination: str, namespace: str) -> None:
        """Raise `Invalid` unless messages of a namespace may be sent there. Cheap, does no I/O."""


@runtime_checkable
class BulkOutlet(Outlet, Protocol):
    """An outlet that takes several deliveries to one destination in one call."""

    together: int
    """How many, at the most."""

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        """Send each delivery once; gives their verdicts, in order. The rules of `send` hold for each."""
