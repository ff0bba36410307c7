"""The ends of messages that cannot be sent: refused, expired, damaged, set aside, or in the way of an error of their own."""

import logging
from collections.abc import Callable

from tarry.core.errors import Damage
from tarry.core.messages.ids import Ids
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.flights.flight import Flight
from tarry.engine.records.versions import dead_letter, dead_letter_topic, end_of, end_unread, failure_of
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.read_record import PutHead, decode_head
from tarry.ledger.record import Key, Put, Record, Tried

log = logging.getLogger(__name__)

EXPIRED = "its time to live was over before it could be sent"


class Failures:
    """Ends messages as failed, with the messages that wait for them and their copies in the dead-letter topic."""

    def __init__(
        self,
        state: EngineState,
        ids: Ids,
        bodies: Bodies,
        settings: EngineSettings,
        end_writer: EndWriter,
        killed: Callable[[int], None],
    ) -> None:
        """`killed` is told the seq of a version that is over, so that messages behind it go on."""
        self._state = state
        self._ids = ids
        self._bodies = bodies
        self._settings = settings
        self._end_writer = end_writer
        self._killed = killed

    def records(
        self,
        key: Key,
        head: Put | PutHead,
        reason: str,
        now_ms: int,
        attempts: int,
        error: str | None = None,
        *,
        uncertain: bool = False,
        tried: Tried | None = None,
    ) -> list[Record]:
        """The end of a message as failed, and in the same unit its copy in the dead-letter topic, by which it can be retried.

        A listed message needs no copy, and where there is no such topic none has one: it is remembered with its content.
        """
        origin = head.origin or key
        orphans = self._state.groups.ends_of_orphans(head, origin, now_ms)
        try:
            put = head if isinstance(head, Put) else self._bodies.version(key.seq)
        except Damage as damage:
            log.error("the content of a message that failed cannot be kept: %s", damage)
            return [end_of(head, key, "failed", now_ms, reason, None, attempts, error, tried), *orphans]
        uncertain |= self._state.may_have_been_sent(key, put)
        if head.listed or not self._settings.dead_letter_topic:
            return [failure_of(put, key, now_ms, reason, attempts, error, uncertain, None, tried), *orphans]
        topic = dead_letter_topic(head.namespace, self._settings.dead_letter_topic)
        entry_id = self._state.topics.next_id(topic)
        end = failure_of(put, key, now_ms, reason, attempts, error, uncertain, (topic, entry_id), tried)
        id_ = self._ids.make(origin.seq, origin.fire_at_ms)
        return [end, *orphans, dead_letter(put, id_, topic, entry_id, now_ms, reason, attempts)]

    def expire(self, key: Key, head: PutHead, now_ms: int, flight: Flight | None) -> None:
        """End a message whose time to live is over. It has no dead letter."""
        attempts, tried = (head.attempts, None) if flight is None else (flight.attempts, flight.tried_last)

        def ends() -> list[Record]:
            orphans = self._state.groups.ends_of_orphans(head, head.origin or key, now_ms)
            told = tried or self._tried_before(key, head)
            return [end_of(head, key, "failed", now_ms, EXPIRED, None, attempts, tried=told), *orphans]

        self._end_writer.end(key, ends)
        self._killed(key.seq)

    def _tried_before(self, key: Key, head: PutHead) -> Tried | None:
        """The attempts that a version tells of, whose beginning has their number alone."""
        try:
            return self._bodies.version(key.seq).tried if head.attempts else None
        except Damage:
            return None

    def end_failed(self, key: Key, reason: str, now_ms: int) -> None:
        """End a message that cannot be dispatched."""
        if self._state.topics.ready_unread(key.seq):
            # A delayed entry: whoever reads it finds what is wrong with it, and passes it over.
            return

        def ends() -> list[Record]:
            head = decode_head(self._bodies.one(key.seq))
            return self.records(key, head, reason, now_ms, head.attempts)

        self._end_writer.end(key, ends, lambda _: self._by_key_alone(key, reason, now_ms))
        self._killed(key.seq)

    def end_unread(self, key: Key, reason: str, now_ms: int) -> bool:
        """End a message whose record cannot be read, or is set aside, by its key alone.

        Answers whether it is one: of a delayed entry whoever reads it finds what is wrong with it, and passes it over.
        """
        if self._state.topics.ready_unread(key.seq):
            return False
        self._end_writer.end(key, lambda: self._by_key_alone(key, reason, now_ms))
        return True

    def end_damaged(self, key: Key, damage: Damage | None, now_ms: int) -> None:
        """End a due message whose record cannot be read, and say so."""
        reason = str(damage) if damage is not None else f"there is no record at seq {key.seq}"
        if self.end_unread(key, reason, now_ms):
            self._state.counters["damaged"] += 1
            log.error("a due message cannot be read and ends as failed: %s", reason)

    def _by_key_alone(self, key: Key, reason: str, now_ms: int) -> list[Record]:
        return [end_unread(key, now_ms, reason), *self._state.groups.ends_of_led(key, now_ms)]
