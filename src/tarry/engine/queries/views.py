"""Messages as they can be shown."""

from typing import Any

import msgspec

from tarry.core.lifecycle import State
from tarry.core.message import MessageView
from tarry.engine.flights.flight import Flight
from tarry.engine.journal.journal import Journal
from tarry.ledger.record import Put
from tarry.registry.registry import EndedRow


def view_of_put(put: Put, id_: str, state: State, flight: Flight | None = None) -> MessageView:
    """A message that waits, or is being sent: then its flight knows of attempts that no version tells yet."""
    attempts = put.attempts if flight is None else flight.attempts
    tried = put.tried if flight is None or flight.tried_last is None else flight.tried_last
    again_at_ms = put.fire_at_ms if flight is None or flight.again_at_ms is None else flight.again_at_ms
    return MessageView(
        id=id_, state=state, destination=put.destination, namespace=put.namespace, owner=put.owner, door=put.door,
        key=put.key, group=put.group, due_at_ms=put.due_at_ms, accepted_at_ms=put.accepted_at_ms,
        delayed_since_ms=put.delayed_since_ms, delay_ms=put.delay_ms, ttl_ms=put.ttl_ms, attempts=attempts,
        headers=put.headers, payload=put.payload, commanded=bool(put.commanded), name=put.name,
        last_error=None if tried is None else tried.reason,
        last_attempt_at_ms=None if tried is None else tried.at_ms,
        next_attempt_at_ms=again_at_ms if tried and state is State.SCHEDULED else None,
    )  # fmt: skip


def view_of_ended(ended: EndedRow, id_: str, name: str | None = None) -> MessageView:
    """A message that is finalised, and the name by which it is found."""
    kept: dict[str, Any] = {} if ended.kept is None else msgspec.structs.asdict(ended.kept)
    return MessageView(
        id=id_, state=State(ended.outcome), destination=ended.destination, namespace=ended.namespace,
        owner=ended.owner, door=ended.door, key=ended.key, group=ended.group, due_at_ms=ended.due_at_ms,
        accepted_at_ms=ended.accepted_at_ms, attempts=ended.attempts, finalised_at_ms=ended.finalised_at_ms,
        reason=ended.reason, reference=ended.reference, error=ended.error, name=name, **kept,
    )  # fmt: skip


def ended_view(journal: Journal, ended: EndedRow) -> MessageView:
    """A message that is finalised, as its row alone tells."""
    id_ = journal.ids.make(ended.origin.seq, ended.origin.fire_at_ms)
    return view_of_ended(ended, id_, journal.names.name_of(ended.origin))
