"""Dispatch classes: what due messages have in common that were scheduled alike.

Of ten thousand that are due at one instant most are alike in all that deciding about them needs. So that is looked at
when a message is read, for the most part ahead of its due instant; then it is decided once, and counted.
"""

from collections.abc import Sequence

from tarry.core.names import TOPIC_SCHEME
from tarry.ledger.read_record import PutHead


class DispatchClass:
    """Messages that differ in nothing that matters when they are sent. Each object is equal to itself alone."""

    __slots__ = ("destination", "door", "known", "late_from_ms", "namespace", "owner", "plain")

    def __init__(self, head: PutHead, late_from_ms: int | None, plain: bool, known: bool) -> None:
        self.destination = head.destination
        self.namespace = head.namespace
        self.owner = head.owner
        self.door = head.door
        self.late_from_ms = late_from_ms
        """Since when they are late, if they ever are."""
        self.plain = plain
        """Whether they are for a topic and there is nothing to decide about each: no time to live, no group."""
        self.known = known
        """Whether the registry has rows of them."""

    def late_ms(self, now_ms: int) -> int:
        """How late they are at an instant. What has no due instant never is."""
        return 0 if self.late_from_ms is None else now_ms - self.late_from_ms


def dispatch_classes(heads: Sequence[PutHead]) -> list[DispatchClass]:
    """The dispatch class of each message; one object for all that are alike."""
    found: dict[tuple[object, ...], DispatchClass] = {}
    column: list[DispatchClass] = []
    for head in heads:
        due_at_ms, accepted_at_ms = head.due_at_ms, head.accepted_at_ms
        late_from_ms = due_at_ms if due_at_ms is None or due_at_ms > accepted_at_ms else accepted_at_ms
        loose = head.ttl_ms is None and head.group is None
        known = head.listed or head.origin is not None
        key = (head.destination, head.namespace, head.owner, head.door, late_from_ms, loose, known)
        alike = found.get(key)
        if alike is None:
            plain = loose and head.destination.startswith(TOPIC_SCHEME)
            alike = found[key] = DispatchClass(head, late_from_ms, plain, known)
        column.append(alike)
    return column
