"""Idempotency: a request that comes again with its key gets the first answer, durable or on its way (R13)."""

import hashlib

import msgspec
import numpy as np

from tarry.core.errors import Conflict, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import Message, Scheduled
from tarry.core.names import parse_namespace
from tarry.core.tenants.holder import UNSCOPED, Holder
from tarry.engine.admission.columns import Columns
from tarry.engine.admission.destinations import Destinations
from tarry.engine.admission.request_keys import pages_of
from tarry.engine.answer import Answer
from tarry.engine.journal.journal import Journal
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.columns import Coded, holders_of
from tarry.registry.lines_row import FINGERPRINT_BYTES
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
        known = self._state.answered.get(holder, key) or self._unscoped(holder.owner, key, message)
        if known is None:
            return None
        if known.fingerprint != fingerprint(message):
            raise Conflict("this idempotency key was used with another request; use a new one", "reused")
        id_ = self._ids.make(known.origin.seq, known.origin.fire_at_ms)
        scheduled = Scheduled(id_, known.due_at_ms, known.past_due, repeated=True)
        return self._journal.once_durable(lambda: scheduled, known.origin.seq)

    def any_seen(self, columns: Columns, namespace: str | None) -> bool:
        """Whether one of these rows has an idempotency key that was seen before, or cannot be looked up."""
        keys, answered = columns.line_keys, self._state.answered
        if keys is None or not len(keys.numbers):
            return False
        spaces = [self._namespace_if_any(value, namespace) for value in columns.destinations.values]
        # Rows without a destination are refused, whatever is found for them.
        codes = np.maximum(columns.destinations.codes, 0)
        holders = holders_of(Coded(spaces or [UNSCOPED], codes), columns.contents.owners)
        unscoped = bool(self._state.pending.scoped_from)
        try:
            for holder, page, lines, _ in pages_of(keys, holders):
                if answered.any_of(holder, keys.request, page, lines):
                    return True
                if unscoped and answered.any_of(Holder(UNSCOPED, holder.owner), keys.request, page, lines):
                    return True
        except TarryError:
            return True
        return False

    def _namespace_if_any(self, destination: str, namespace: str | None) -> str:
        """The namespace of a destination; none if its messages are going to be refused."""
        try:
            return self._namespace(destination, namespace)
        except TarryError:
            return UNSCOPED

    def holder(self, message: Message) -> Holder:
        """The holder of a message; raises the error of a bad namespace or destination."""
        return Holder(self._namespace(message.destination, message.namespace), message.owner)

    def _namespace(self, destination: str, namespace: str | None) -> str:
        if namespace is not None:
            # One that is not its topic's own is refused later.
            return parse_namespace(namespace)
        return self._destinations.find(destination, None).namespace

    def _unscoped(self, owner: str, key: str, message: Message) -> RepeatRow | None:
        """The row of a request in format 1. Another request may be another namespace's, and is none of its business."""
        if not self._state.pending.scoped_from:
            return None
        known = self._state.answered.get(Holder(UNSCOPED, owner), key)
        return known if known is not None and known.fingerprint == fingerprint(message) else None


def fingerprint(message: Message) -> bytes:
    """Everything that was asked for, as a hash that tells a repeated request from another one."""
    if message.any_repeat:
        return b""
    body = msgspec.msgpack.encode(msgspec.structs.replace(message, idempotency_key=None))
    return hashlib.blake2b(body, digest_size=FINGERPRINT_BYTES).digest()
