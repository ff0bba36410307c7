"""First versions of messages: a `Message` that breaks no rule becomes a `Put`, or an error says which rule it breaks."""

from collections.abc import Sequence
from typing import Final

import msgspec

from tarry.core import limits
from tarry.core.errors import Invalid
from tarry.core.messages.message import Message
from tarry.core.names import TOPIC_SCHEME
from tarry.core.rules import admission
from tarry.core.rules.admission import check_record, is_large
from tarry.core.tenants.holder import Holder
from tarry.engine.admission.destinations import Destinations, OwnerLimits
from tarry.engine.admission.idempotency import fingerprint
from tarry.engine.journal.journal import Journal
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Put


class Before:
    """The messages that come before one in its unit: no record has them yet, and limits count them all the same."""

    __slots__ = ("_groups", "_holders")

    def __init__(self) -> None:
        self._holders: dict[Holder, int] = {}
        self._groups: dict[tuple[Holder, str], list[bool]] = {}

    def of(self, holder: Holder) -> int:
        """By how many messages of a holder more there are; fewer if one ends."""
        return self._holders.get(holder, 0)

    def in_group(self, holder: Holder, group: str) -> Sequence[bool]:
        """The members that join a group, each with whether it has a time."""
        return self._groups.get((holder, group), ())

    def end(self, put: Put) -> None:
        """A message that waits ends in this unit."""
        holder = Holder(put.namespace, put.owner)
        self._holders[holder] = self._holders.get(holder, 0) - 1

    def add(self, put: Put) -> None:
        """One more was admitted."""
        holder = Holder(put.namespace, put.owner)
        self._holders[holder] = self._holders.get(holder, 0) + 1
        if put.group is not None:
            self._groups.setdefault((holder, put.group), []).append(put.delay_ms is not None)


NOTHING: Final = Before()
"""Before a message by itself."""


class FirstVersions:
    """Makes the first versions of messages, which accept them."""

    def __init__(
        self, journal: Journal, state: EngineState, destinations: Destinations, owner_limits: OwnerLimits
    ) -> None:
        self._journal = journal
        self._state = state
        self._destinations = destinations
        self._owner_limits = owner_limits

    def make(
        self,
        message: Message,
        now_ms: int,
        before: Before = NOTHING,
        trace: bytes | None = None,
        name: str | None = None,
    ) -> Put:
        """The version that accepts a message; raises the error of the first rule that it breaks.

        The message itself was checked (`Message.check`).
        """
        destination, namespace, policy = self._destinations.find(message.destination, message.namespace)
        holder = Holder(namespace, message.owner)
        to_topic = destination.startswith(TOPIC_SCHEME)
        level = self._state.policies.level_at(destination, namespace)
        if message.subject is not None and to_topic:
            raise Invalid("subject", "is not for messages that are bound for a topic")
        if message.leads is not None and to_topic:
            # What goes into a topic goes in a burst, where nobody looks at a single one.
            raise Invalid("leads", "only a message to another system can lead a group")
        if message.leads is not None:
            self._state.groups.check_new(holder, message.leads)
        asked_ms, delay_ms = message.due_at_ms, message.delay_ms
        if asked_ms is not None:
            delay_ms = max(0, asked_ms - now_ms)
        elif delay_ms is not None:
            asked_ms = now_ms + delay_ms
        due_at_ms, fire_at_ms = None, limits.NEVER_MS
        if asked_ms is not None and delay_ms is not None:
            admission.check_delay(delay_ms, policy, level)
            due_at_ms, fire_at_ms = admission.instants(asked_ms, now_ms, self._state.floor_ms, policy)
        unit_max_bytes = self._journal.unit_max_bytes
        if message.group is not None or is_large(len(message.payload), unit_max_bytes):
            names = (
                message.key,
                message.owner,
                message.group,
                message.subject,
                namespace,
                message.idempotency_key,
                name,
            )
            check_record(
                unit_max_bytes, len(message.payload), message.headers, destination, names,
                group=message.group is not None, listed=message.listed,
            )  # fmt: skip
        if message.group is not None:
            self._state.groups.check(
                holder, message.group, asked_ms is not None, limits.MAX_GROUP_MEMBERS,
                before.in_group(holder, message.group),
            )  # fmt: skip
        if not message.follows and self._owner_limits.applies(policy):
            self._owner_limits.charge(holder, policy, level, now_ms, before.of(holder))
        return Put(
            fire_at_ms, due_at_ms, now_ms, namespace, destination, message.key, message.owner, message.door,
            message.group, message.ttl_ms, None, 0, message.listed, message.payload, message.headers, now_ms,
            delay_ms,
            None, message.idempotency_key,
            fingerprint(message) if message.idempotency_key is not None else b"",
            subject=message.subject, trace=trace, leads=message.leads, name=name,
        )  # fmt: skip


def waits_for_leader(put: Put) -> Put:
    """The version of a member whose group is led: its delay begins when its leader is sent."""
    return msgspec.structs.replace(put, fire_at_ms=limits.NEVER_MS, due_at_ms=None)
