"""Messages as they can be shown."""

from typing import Any, Final

import msgspec

from tarry.core.limits import HELD_MS, PAUSED_MS
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import MessageView
from tarry.engine.flights.flight import Flight
from tarry.engine.namespaces.pauses import Pauses
from tarry.engine.records.versions import attempts_of
from tarry.engine.state.names import Names
from tarry.ledger.record import Put
from tarry.registry.registry import EndedRow

_OF_PUT: Final = tuple(name for name in Put.__struct_fields__ if name in MessageView.__struct_fields__)
_OF_ENDED: Final = tuple(name for name in EndedRow.__struct_fields__ if name in MessageView.__struct_fields__)


def view_of_put(
    put: Put, id_: str, state: State, flight: Flight | None = None, pauses: Pauses | None = None
) -> MessageView:
    """A message that waits, or is being sent: then its flight knows of attempts that no version tells yet."""
    facts: dict[str, Any] = {name: getattr(put, name) for name in _OF_PUT}
    facts["commanded"] = bool(put.commanded)
    tried, again_at_ms = put.tried, put.fire_at_ms
    if flight is not None:
        facts["attempts"] = flight.attempts
        tried = flight.tried_last or tried
        again_at_ms = flight.again_at_ms if flight.again_at_ms is not None else again_at_ms
    if tried is not None:
        facts |= {"last_error": tried.reason, "last_attempt_at_ms": tried.at_ms}
        facts["attempts_made"] = attempts_of(tried)
        facts["next_attempt_at_ms"] = (
            again_at_ms if state is State.SCHEDULED and again_at_ms < HELD_MS else None
        )
    if put.fire_at_ms == PAUSED_MS:
        facts["paused"] = "message"
    elif pauses:
        facts["paused"] = pauses.at(put.namespace, put.destination, put.owner)
    return MessageView(id=id_, state=state, **facts)


def view_of_ended(ended: EndedRow, id_: str, name: str | None = None) -> MessageView:
    """A message that is finalised, and the name by which it is found."""
    kept: dict[str, Any] = {} if ended.kept is None else msgspec.structs.asdict(ended.kept)
    if ended.unsent is not None:
        kept |= {"ttl_ms": ended.unsent.ttl_ms, "delay_ms": ended.unsent.delay_ms}
    facts = {field: getattr(ended, field) for field in _OF_ENDED}
    facts["attempts_made"] = attempts_of(ended.tried)
    return MessageView(id=id_, state=State(ended.outcome), name=name, **facts, **kept)


def ended_view(names: Names, ids: Ids, ended: EndedRow) -> MessageView:
    """A message that is finalised, as its row alone tells."""
    id_ = ids.make(ended.origin.seq, ended.origin.fire_at_ms)
    return view_of_ended(ended, id_, names.name_of(ended.origin))
