"""Messages as they can be shown."""

from typing import Any

import msgspec

from tarry.core.lifecycle import State
from tarry.core.message import MessageView
from tarry.ledger.record import Put
from tarry.registry.registry import Ended


def view_of_put(put: Put, id_: str, state: State) -> MessageView:
    """A message that waits, or is being sent."""
    return MessageView(
        id=id_, state=state, destination=put.destination, namespace=put.namespace, owner=put.owner, door=put.door,
        key=put.key, group=put.group, due_at_ms=put.due_at_ms, accepted_at_ms=put.accepted_at_ms,
        delayed_since_ms=put.delayed_since_ms, delay_ms=put.delay_ms, ttl_ms=put.ttl_ms, attempts=put.attempts,
        headers=put.headers, payload=put.payload, commanded=bool(put.commanded),
    )  # fmt: skip


def view_of_ended(ended: Ended, id_: str) -> MessageView:
    """A message that is finalised."""
    kept: dict[str, Any] = {} if ended.kept is None else msgspec.structs.asdict(ended.kept)
    return MessageView(
        id=id_, state=State(ended.outcome), destination=ended.destination, namespace=ended.namespace,
        owner=ended.owner, door=ended.door, key=ended.key, group=ended.group, due_at_ms=ended.due_at_ms,
        accepted_at_ms=ended.accepted_at_ms, attempts=ended.attempts, finalised_at_ms=ended.finalised_at_ms,
        reason=ended.reason, reference=ended.reference, error=ended.error, **kept,
    )  # fmt: skip
