"""Retries of failed messages: one that has failed is accepted once more, under its id (ADR 0030).

Its content is in its dead letter, or where there is none beside its end. A retry takes the dead letter out of its topic by
the same unit, so that nobody handles what is on its way again; and a dead letter that every subscription has acknowledged is
settled, so that its message cannot be retried.
"""

from typing import Final, NamedTuple

from tarry.core.errors import Conflict, Damage, NotFound, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import Event, State, next_state
from tarry.core.messages.message import MessageView
from tarry.core.rules import admission
from tarry.core.tenants.holder import Holder
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed
from tarry.engine.bodies.bodies import Bodies, BodyNotAtHand
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands, check_times
from tarry.engine.queries.finding import Finding
from tarry.engine.queries.views import view_of_put
from tarry.engine.records.versions import LETTER_HEADERS, withdrawn
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Entry, Put, Record, Unsent, decode
from tarry.registry.registry import EndedRow

SETTLED: Final = "its dead letter was acknowledged, or is gone: nothing is left to send"


class _FailedContent(NamedTuple):
    """The content of a failed message, and what takes its dead letter out of the topic."""

    payload: bytes
    headers: dict[str, str]
    withdrawal: list[Record]


class Retries:
    """Retries messages that have failed."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        finding: Finding,
        commands: Commands,
        ids: Ids,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._state = state
        self._bodies = bodies
        self._finding = finding
        self._commands = commands
        self._ids = ids
        self._clock = clock

    def retry(
        self,
        id: str,
        *,
        delay_ms: int | None = None,
        due_at_ms: int | None = None,
        namespace: str | None = None,
        by: int = 0,
        charged: bool = True,
    ) -> Answer[MessageView]:
        """Accept a failed message once more, due now or at a new time; raises `Conflict` for one that has not failed."""
        try:
            check_times(delay_ms, due_at_ms)
        except TarryError as error:
            return failed(error)

        def act(ended: EndedRow) -> Answer[MessageView]:
            if charged:
                self._commands.charge(ended.namespace, ended.destination, ended.owner)
            return self._retry(id, ended, delay_ms, due_at_ms, by)

        return self._finding.find_ended(id, act, namespace)

    def _retry(
        self, id_: str, ended: EndedRow, delay_ms: int | None, due_at_ms: int | None, by: int
    ) -> Answer[MessageView]:
        next_state(State(ended.outcome), Event.RETRY)
        unsent = ended.unsent
        if unsent is None:
            raise Conflict("the message cannot be retried: its content was not kept", "settled")
        if ended.group is not None:
            raise Conflict(
                "a message of a group cannot be retried: another of its group may have been sent", "grouped"
            )
        now_ms = self._clock.now_ms()
        content = self._content(ended, unsent, now_ms)
        policy = self._state.policies.of(ended.destination, ended.namespace)
        level = self._state.policies.level_at(ended.destination, ended.namespace)
        asked_ms = due_at_ms if due_at_ms is not None else now_ms + (delay_ms or 0)
        admission.check_delay(max(0, asked_ms - now_ms), policy, level)
        self._state.pending.check(Holder(ended.namespace, ended.owner), policy.max_pending_per_owner, level)
        due_at_ms, fire_at_ms = admission.instants(asked_ms, now_ms, self._state.floor_ms, policy)
        put = Put(
            fire_at_ms, due_at_ms, ended.accepted_at_ms, ended.namespace, ended.destination, ended.key, ended.owner,
            ended.door, None, unsent.ttl_ms, ended.origin, 0, unsent.listed, content.payload, content.headers, now_ms,
            unsent.delay_ms, uncertain=unsent.uncertain, subject=unsent.subject,
            name=self._state.names.name_of(ended.origin), by=by,
        )  # fmt: skip
        view = view_of_put(put, id_, State.SCHEDULED, pauses=self._state.pauses)
        return self._journal.write([put, *content.withdrawal], lambda: view)

    def _content(self, ended: EndedRow, unsent: Unsent, now_ms: int) -> _FailedContent:
        if unsent.letter is None:
            assert ended.kept is not None
            return _FailedContent(ended.kept.payload, ended.kept.headers, [])
        topic, entry_id = self._state.topics.by_name.get(unsent.letter[0]), unsent.letter[1]
        seq = 0 if topic is None or entry_id < topic.first else topic.seq(entry_id)
        if topic is None or not seq or topic.is_settled(entry_id):
            raise Conflict(SETTLED, "settled")
        try:
            letter = decode(self._bodies.one(seq))
        except (BodyNotAtHand, NotFound, Damage):
            raise Conflict(SETTLED, "settled") from None
        id_ = self._ids.make(ended.origin.seq, ended.origin.fire_at_ms)
        if not isinstance(letter, Entry) or letter.headers.get(LETTER_HEADERS[0]) != id_:
            # Another topic of this name was made since.
            raise Conflict(SETTLED, "settled")
        headers = {name: text for name, text in letter.headers.items() if name not in LETTER_HEADERS}
        return _FailedContent(letter.payload, headers, [withdrawn(letter, seq, now_ms)])
