"""Scheduling under a name: whether a message of that name waits is asked, and decided upon, in one turn.

Requests for one name stand in line: the first is decided before the second is looked at, so that of the lines of a batch
the later one finds what the earlier one did, although an answer of the index or a verdict may have to be waited for between.
A message that takes the place of another is in one unit of the ledger with the end of that one (ADR 0024).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from tarry.core.errors import Conflict, NotFound, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import Event
from tarry.core.messages.message import NamedMessage, NamedScheduled, Scheduled
from tarry.core.time.clock import Clock
from tarry.engine.admission.first_versions import NOTHING, Before, FirstVersions
from tarry.engine.admission.idempotency import Idempotency
from tarry.engine.answer import Answer, failed
from tarry.engine.bodies.bodies import Bodies, Body
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands, Ending
from tarry.engine.queries.finding import Elsewhere, Fetched, Finding, Found
from tarry.engine.records.versions import past_due
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Put

REPLACED: Final = Ending(reason="replaced by a new message of its name")

WriteVersions = Callable[[Sequence[Put], Sequence[Answer[Scheduled]]], None]
"""Enqueues first versions as one unit, and settles their answers once that is durable."""

_Name = tuple[str, str]
"""A namespace, and a name in it."""


class _Request(Struct, eq=False):
    """A request for a name, which is not decided yet."""

    message: NamedMessage
    trace: bytes | None
    answer: Answer[Scheduled]


class Naming:
    """Accepts messages with names."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        clock: Clock,
        ids: Ids,
        finding: Finding,
        commands: Commands,
        versions: FirstVersions,
        idempotency: Idempotency,
        write: WriteVersions,
    ) -> None:
        self._journal = journal
        self._state = state
        self._bodies = bodies
        self._ids = ids
        self._clock = clock
        self._finding = finding
        self._commands = commands
        self._versions = versions
        self._idempotency = idempotency
        self._write = write
        self._lines: dict[_Name, deque[_Request]] = {}
        """By name: the requests that are not decided yet, in the order in which they came."""

    def schedule(self, message: NamedMessage, trace: bytes | None = None) -> Answer[Scheduled]:
        """Accept a message with a name, or what its `on_conflict` says if a message of that name waits."""
        try:
            message.check()
            place = self._idempotency.holder(message).namespace, message.name
        except TarryError as error:
            return failed(error)
        request = _Request(message, trace, Answer())
        line = self._lines.setdefault(place, deque())
        line.append(request)
        if len(line) == 1:
            self._turn(place)
        return request.answer

    def _turn(self, place: _Name, fetched: Fetched | None = None) -> None:
        """Decide the requests for a name, up to one that has to wait; the end of that wait leads here again."""
        line = self._lines[place]
        while line:
            decided = self._decide(place, line[0], fetched)
            if decided is None:
                return
            decided.forward_to(line.popleft().answer)
            fetched = None
        del self._lines[place]

    def _decide(self, place: _Name, request: _Request, fetched: Fetched | None) -> Answer[Scheduled] | None:
        """The answer to a request; None if it has to wait."""
        message = request.message
        try:
            self._journal.check_shown()
            repeat = None if message.idempotency_key is None else self._idempotency.repeated(message)
            if repeat is not None:
                return repeat.map(partial(_named, message.name))
            found = self._waiting(place, fetched)
            if isinstance(found, Elsewhere):
                self._bodies.look_up(found.current, partial(self._fetched, place, found))
                return None
            if found is None:
                return self._accept(request)
            match message.on_conflict:
                case "replace":
                    return self._replace(place, request, found)
                case "keep":
                    return self._keep(message.name, found)
                case "fail":
                    raise Conflict(
                        f"a message named {message.name!r} is scheduled already; on_conflict=keep leaves it as it is, and"
                        " on_conflict=replace puts this one in its place",
                        "named",
                    )
        except TarryError as error:
            return failed(error)

    def _waiting(self, place: _Name, fetched: Fetched | None) -> Found | Elsewhere | None:
        """The message of a name, if it waits."""
        origin = self._state.names.message_of(*place)
        if origin is None:
            return None
        try:
            found = self._finding.at(origin, fetched)
        except NotFound:
            return None
        return found if isinstance(found, Found | Elsewhere) else None

    def _fetched(self, place: _Name, found: Elsewhere, body: Body) -> None:
        self._turn(place, Fetched(found.current, body))

    def _accept(self, request: _Request) -> Answer[Scheduled]:
        message, answer = request.message, Answer[Scheduled]()
        put = self._versions.make(message, self._clock.now_ms(), NOTHING, request.trace, message.name)
        self._write([put], [answer])
        return answer.map(partial(_named, message.name))

    def _keep(self, name: str, found: Found) -> Answer[Scheduled]:
        """The answer that a message which waits has got, once that is durable."""
        put = found.put
        id_ = self._ids.make(found.origin.seq, found.origin.fire_at_ms)
        kept: Scheduled = NamedScheduled(id_, put.due_at_ms, past_due(put), name=name, kept=True)
        accepted_seq = self._state.batches.accepted_by(found.current.seq)
        return self._journal.once_durable(lambda: kept, accepted_seq)

    def _replace(self, place: _Name, request: _Request, found: Found) -> Answer[Scheduled] | None:
        """Cancel a message that waits and accept another, by one unit; None while it is being sent."""
        message = request.message
        if not self._commands.may(found, Event.CANCEL, partial(self._turn, place)):
            return None
        now_ms, before = self._clock.now_ms(), Before()
        before.end(found.put)
        put = self._versions.make(message, now_ms, before, request.trace, message.name)

        def accepted(seq: int) -> Scheduled:
            id_ = self._ids.make(seq, put.fire_at_ms)
            return NamedScheduled(id_, put.due_at_ms, past_due(put), name=message.name, replaced=True)

        return self._commands.write(found, [*self._commands.ends(found, REPLACED, now_ms), put], accepted)


def _named(name: str, scheduled: Scheduled) -> Scheduled:
    """The answer to a message with a name."""
    return NamedScheduled(**{**msgspec.structs.asdict(scheduled), "name": name})
