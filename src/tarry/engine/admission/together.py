"""Scheduling together: several messages are accepted as one unit of the ledger, or none of them is.

One of them may lead a group: the members of that group, which come with it, are then due only after it was sent.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import count

import msgspec

from tarry.core import limits
from tarry.core.clock import Clock
from tarry.core.errors import Conflict, Invalid, TarryError, TooLarge
from tarry.core.holder import Holder
from tarry.core.message import Message, Scheduled
from tarry.core.names import TOPIC_SCHEME
from tarry.engine.admission.scheduling import Scheduling
from tarry.engine.answer import Answer, all_of, failed
from tarry.engine.journal import Journal
from tarry.engine.versions import past_due
from tarry.ledger.frame import ROW_BYTES
from tarry.ledger.record import Put, encode


class Together:
    """Accepts messages that belong together."""

    def __init__(self, scheduling: Scheduling, journal: Journal, clock: Clock) -> None:
        self._scheduling = scheduling
        self._journal = journal
        self._clock = clock

    def schedule(self, messages: Sequence[Message], trace: bytes | None = None) -> Answer[list[Scheduled]]:
        """Accept all of them or, for the reason of the first that cannot be, none.

        Either all have idempotency keys or none has.
        """
        try:
            repeat = self._repeated(messages)
            if repeat is not None:
                return repeat
            planned = self._plan(messages, trace)
        except TarryError as error:
            return failed(error)
        answers: list[Answer[Scheduled]] = [Answer() for _ in messages]
        in_flight = self._scheduling.in_flight
        keys = [
            (put.namespace, put.owner, put.idempotency_key)
            for put, _ in planned
            if put.idempotency_key is not None
        ]

        def durable(error: TarryError | None) -> None:
            for key in keys:
                in_flight.pop(key, None)
            for seq, (put, due_at_ms), answer in zip(count(first), planned, answers, strict=False):
                if error is not None:
                    answer.fail(error)
                else:
                    id_ = self._journal.ids.make(seq, put.fire_at_ms)
                    answer.settle(Scheduled(id_, due_at_ms, past_due(put)))

        for key, (put, _), answer in zip(keys, planned, answers, strict=False):
            in_flight[key] = (put.fingerprint, answer)
        try:
            first = self._journal.append([put for put, _ in planned], durable)
        except TarryError as error:
            for key in keys:
                in_flight.pop(key, None)
            return failed(error)
        return _values(answers)

    def _repeated(self, messages: Sequence[Message]) -> Answer[list[Scheduled]] | None:
        """The first answer again, if these idempotency keys were seen with the same request."""
        for message in messages:
            self._scheduling.check(message)
        repeats = [self._scheduling.repeated(one) for one in messages if one.idempotency_key is not None]
        if len(repeats) not in (0, len(messages)):
            raise Invalid("idempotency_key", "all messages have one, or none has")
        known = [repeat for repeat in repeats if repeat is not None]
        if known and len(known) != len(messages):
            raise Conflict("an idempotency key was used with another request", "reused")
        return _values(known) if known else None

    def _plan(self, messages: Sequence[Message], trace: bytes | None) -> list[tuple[Put, int | None]]:
        """The versions that accept them, and the due instants to answer; raises what forbids any of them."""
        led = {(self._scheduling.holder(one), one.leads) for one in messages if one.leads is not None}
        for holder, name in led:
            self._journal.groups.check_new(holder, name)
        now_ms = self._clock.now_ms()
        planned: list[tuple[Put, int | None]] = []
        ahead: Counter[Holder] = Counter()
        joining: dict[tuple[Holder, str], list[bool]] = {}
        for message in messages:
            holder = self._scheduling.holder(message)
            group = [] if message.group is None else joining.setdefault((holder, message.group), [])
            put, due_at_ms = self._scheduling.plan(message, now_ms, ahead, group, trace)
            ahead[holder] += 1
            group.append(due_at_ms is not None)
            if message.leads is not None:
                put = _leading(put, message.leads)
            if (holder, message.group) in led:
                # Its delay begins when its leader is sent.
                due_at_ms = None
                put = msgspec.structs.replace(put, fire_at_ms=limits.NEVER_MS, due_at_ms=None)
            planned.append((put, due_at_ms))
        # All that is led is written once more, in one unit, when the leader is sent: with what the receiver called it.
        limit = self._journal.ledger.unit_max_bytes // 2
        if led and sum(len(encode(put).body) + ROW_BYTES for put, _ in planned) > limit:
            raise TooLarge("a group that is led", limit)
        return planned


def _leading(put: Put, group: str) -> Put:
    if put.destination.startswith(TOPIC_SCHEME):
        # What goes into a topic goes in a burst, where nobody looks at a single one.
        raise Invalid("leads", "only a message to another system can lead a group")
    return msgspec.structs.replace(put, leads=group)


def _values(answers: Sequence[Answer[Scheduled]]) -> Answer[list[Scheduled]]:
    """The values of all of them, or the first error."""
    return all_of(answers).turned(lambda all_: [one.value() for one in all_])
