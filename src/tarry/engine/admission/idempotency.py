"""Idempotency: a request that comes again with its key gets the first answer, durable or on its way (R13)."""

import hashlib

import msgspec

from tarry.core.errors import Conflict, Unavailable
from tarry.core.holder import UNSCOPED, Holder
from tarry.core.ids import Ids
from tarry.core.message import Message, Scheduled
from tarry.core.names import parse_namespace
from tarry.engine.admission.destinations import Destinations
from tarry.engine.answer import Answer, settled
from tarry.engine.journal.journal import Journal
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Put
from tarry.registry.registry import RepeatRow

_Key = tuple[str, str, str]
"""Namespace, owner, idempotency key."""


class Idempotency:
    """Knows the requests whose answers may be asked for again."""

    def __init__(self, journal: Journal, state: EngineState, ids: Ids, destinations: Destinations) -> None:
        self._journal = journal
        self._state = state
        self._ids = ids
        self._destinations = destinations
        self._in_flight: dict[_Key, tuple[bytes, Answer[Scheduled]]] = {}
        """By key: the first request's fingerprint and answer, until that is durable."""

    def enter(self, put: Put, key: str, answer: Answer[Scheduled]) -> None:
        """A first request is on its way to the ledger."""
        self._in_flight[put.namespace, put.owner, key] = put.fingerprint, answer

    def leave(self, put: Put, key: str) -> None:
        """A first request is durable, or never will be."""
        self._in_flight.pop((put.namespace, put.owner, key), None)

    def repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The first answer again, if this key was seen with the same request."""
        holder, key = self.holder(message), message.idempotency_key or ""
        print_ = fingerprint(message)
        in_flight = self._in_flight.get((*holder, key))
        if in_flight is not None:
            first_print, first = in_flight
            _check_print(first_print, print_)
            return first.turned(lambda scheduled: msgspec.structs.replace(scheduled, repeated=True))
        known = self._state.registry.idempotency.get(*holder, key)
        if known is None:
            known = self._unscoped(holder.owner, key, print_)
        if known is None:
            return None
        _check_print(known.fingerprint, print_)
        if known.origin.seq > self._journal.durable_seq:
            # The disk failed under the first request: whether it is stored is not known.
            raise Unavailable("the first request with this idempotency key is not known to be stored")
        id_ = self._ids.make(known.origin.seq, known.origin.fire_at_ms)
        return settled(Scheduled(id_, known.due_at_ms, known.past_due, repeated=True))

    def holder(self, message: Message) -> Holder:
        """The holder of a message; raises what is wrong with its namespace or destination."""
        if message.namespace is not None:
            # One that is not its topic's own is refused later.
            return Holder(parse_namespace(message.namespace), message.owner)
        return Holder(self._destinations.find(message.destination, None).namespace, message.owner)

    def _unscoped(self, owner: str, key: str, print_: bytes) -> RepeatRow | None:
        """The row of a request in format 1. Another request may be another namespace's, and is none of its business."""
        if not self._state.pending.scoped_from:
            return None
        known = self._state.registry.idempotency.get(UNSCOPED, owner, key)
        return known if known is not None and known.fingerprint == print_ else None


def _check_print(first: bytes, again: bytes) -> None:
    if first != again:
        raise Conflict("this idempotency key was used with another request", "reused")


def fingerprint(message: Message) -> bytes:
    """Everything that was asked for, as a hash that tells a repeated request from another one."""
    if message.any_repeat:
        return b""
    body = msgspec.msgpack.encode(msgspec.structs.replace(message, idempotency_key=None))
    return hashlib.blake2b(body, digest_size=16).digest()
