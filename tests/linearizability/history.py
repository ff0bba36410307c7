"""A history: all that happened to one message, as clients and receivers saw it."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from tests.linearizability.checker import Operation, order_of
from tests.linearizability.life import Happened, Life


class Steps(Protocol):
    """A model."""

    def step(self, life: Life, event: Happened) -> Iterator[Life]:
        """The lives to which an event may lead."""


class History(Struct, frozen=True):
    """The history of one message, and the model by which it is judged."""

    number: int
    model: Steps
    operations: list[Operation[Happened]]

    def is_explained(self) -> bool:
        """Whether there is an order in which it can have happened."""
        return order_of(self.operations, Life(), self.model.step) is not None

    def told(self) -> str:
        """The history in the order of its beginnings, for whoever looks into it."""
        began = min(one.called for one in self.operations if one.what.kind in ("schedule", "publish"))
        lines = [f"message {self.number}: {self.model}"]
        for one in sorted(self.operations, key=lambda one: one.called if one.called > 0 else one.returned):
            what = one.what
            span = f"{1000 * (one.called - began):9.2f} to {1000 * (one.returned - began):9.2f} ms"
            lines.append(f"  {span}  {what.kind:8} {what.result:9} {'(maybe)' if one.optional else ''}")
        return "\n".join(lines)


def unexplained(histories: Sequence[History]) -> list[str]:
    """Histories that no order of their operations explains, told."""
    return [history.told() for history in histories if not history.is_explained()]
