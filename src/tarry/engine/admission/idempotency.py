"""Idempotency: a request that comes again with its key gets the first answer, durable or on its way (R13)."""

import hashlib
from collections.abc import Sequence

import msgspec

from tarry.core.errors import Conflict, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import Message, Scheduled
from tarry.core.names import parse_namespace
from tarry.core.tenants.holder import UNSCOPED, Holder
from tarry.engine.admission.destinations import Destinations
from tarry.engine.answer import Answer
from tarry.engine.journal.journal import Journal
from tarry.engine.state.engine_state import EngineState
from tarry.registry.registry import RepeatRow


class Idempotency:
    """Knows the requests whose answers may be asked for again."""

    def __init__(self, journal: Journal, state: EngineState, ids: Ids, destinations: Destinations) -> None:
        self._journal = journal
        self._state = state
        self._ids = ids
        self._destinations = destinations

    def repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The first answer again, if this key was seen with the same request."""
        holder, key = self.holder(message), message.idempotency_key or ""
        known = self._state.registry.idempotency.get(*holder, key) or self._unscoped(
            holder.owner, key, message
        )
        if known is None:
            return None
        if known.fingerprint != fingerprint(message):
            raise Conflict("this idempotency key was used with another request; use a new one", "reused")
        id_ = self._ids.make(known.origin.seq, known.origin.fire_at_ms)
        scheduled = Scheduled(id_, known.due_at_ms, known.past_due, repeated=True)
        return self._journal.once_durable(lambda: scheduled, known.origin.seq)

    def any_seen(self, messages: Sequence[Message]) -> bool:
        """Whether one of these idempotency keys was seen before, or cannot be looked up."""
        holders: dict[tuple[str, str | None, str], Holder | None] = {}
        for message in messages:
            place = message.destination, message.namespace, message.owner
            if place not in holders:
                holders[place] = self._holder_if_any(message)
            holder, key = holders[place], message.idempotency_key or ""
            try:
                if holder is not None and (
                    self._state.registry.idempotency.get(*holder, key) is not None
                    or self._unscoped(holder.owner, key, message) is not None
                ):
                    return True
            except TarryError:
                return True
        return False

    def _holder_if_any(self, message: Message) -> Holder | None:
        """The holder of a message; None if it is going to be refused."""
        try:
            return self.holder(message)
        except TarryError:
            return None

    def holder(self, message: Message) -> Holder:
        """The holder of a message; raises the error of a bad namespace or destination."""
        if message.namespace is not None:
            # One that is not its topic's own is refused later.
            return Holder(parse_namespace(message.namespace), message.owner)
        return Holder(self._destinations.find(message.destination, None).namespace, message.owner)

    def _unscoped(self, owner: str, key: str, message: Message) -> RepeatRow | None:
        """The row of a request in format 1. Another request may be another namespace's, and is none of its business."""
        if not self._state.pending.scoped_from:
            return None
        known = self._state.registry.idempotency.get(UNSCOPED, owner, key)
        return known if known is not None and known.fingerprint == fingerprint(message) else None


def fingerprint(message: Message) -> bytes:
    """Everything that was asked for, as a hash that tells a repeated request from another one."""
    if message.any_repeat:
        return b""
    body = msgspec.msgpack.encode(msgspec.structs.replace(message, idempotency_key=None))
    return hashlib.blake2b(body, digest_size=16).digest()
