"""Led groups: the delays of their members begin when the message that they waited for is sent."""

import msgspec

from tarry.core import limits
from tarry.core.errors import Damage
from tarry.core.messages.message import LED_BY
from tarry.core.rules import admission
from tarry.core.tenants.holder import Holder
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.records.versions import end_unread_member, new_version
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key, Put, Record
from tarry.registry.registry import MemberRow


def beginnings(
    state: EngineState, bodies: Bodies, leader: Key, reference: str | None, now_ms: int
) -> list[Record]:
    """The versions with which the delays of a group begin, in the unit that ends its leader as sent.

    Each says in a header what the receiver called the leader, so that it can refer to it for as long as it waits.
    """
    records: list[Record] = []
    for member in state.groups.led_by(leader):
        try:
            put = bodies.version(member.current.seq)
        except Damage as damage:
            records.append(_unread(member, state.groups.group_of(leader), now_ms, damage))
            continue
        if reference is not None:
            put = msgspec.structs.replace(put, headers={**put.headers, LED_BY: reference})
        records.append(_begin(state, put, member.current, now_ms))
    return records


def _begin(state: EngineState, put: Put, current: Key, now_ms: int) -> Put:
    if put.delay_ms is None:
        return new_version(put, current, limits.NEVER_MS)
    policy = state.policies.of(put.destination, put.namespace)
    # The delay was allowed when it was accepted, and is not judged a second time.
    due_at_ms, fire_at_ms = admission.instants(now_ms + put.delay_ms, now_ms, state.floor_ms, policy)
    return new_version(put, current, fire_at_ms, due_at_ms=due_at_ms, delayed_since_ms=now_ms)


def _unread(member: MemberRow, group: tuple[Holder, str], now_ms: int, damage: Damage) -> Record:
    return end_unread_member(member.current, member.origin, *group, "failed", now_ms, str(damage))
