"""Pausing: one message, whose remaining delay is frozen, or all messages of a place (ADR 0027)."""

from typing import Final

import msgspec

from tarry.core.errors import Conflict, NotFound, TarryError
from tarry.core.limits import PAUSED_MS
from tarry.core.messages.lifecycle import Event, State
from tarry.core.messages.message import MessageView
from tarry.core.messages.pause import MAX_PAUSES, PausablePlace, Pause
from tarry.core.messages.shapes import PauseFacts
from tarry.core.rules import admission
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.namespace_shares import NamespaceShares
from tarry.engine.namespaces.pauses import paused
from tarry.engine.queries.commands import Commands
from tarry.engine.queries.finding import Finding, Found
from tarry.engine.queries.views import view_of_put
from tarry.engine.records.versions import new_version, wanted_at_ms
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Put, Record

NOT_PAUSED: Final = "the message is not paused"


class Pausing:
    """Pauses and resumes messages and places."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        dispatcher: Dispatcher,
        finding: Finding,
        commands: Commands,
        clock: Clock,
        shares: NamespaceShares,
    ) -> None:
        self._shares = shares
        self._journal = journal
        self._state = state
        self._dispatcher = dispatcher
        self._finding = finding
        self._commands = commands
        self._clock = clock

    # One message

    def pause(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """Keep a message from going out until it is resumed; the rest of its delay is frozen."""
        return self._finding.find(id, self._commands.charged(lambda found: self._pause(id, found)), namespace)

    def resume(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """Let the delay of a message go on from where it was paused; one that was due then is due now."""
        return self._finding.find(
            id, self._commands.charged(lambda found: self._resume(id, found)), namespace
        )

    def _pause(self, id_: str, found: Found) -> Answer[MessageView]:
        try:
            waiting = self._commands.decide(id_, found, Event.PAUSE, lambda again: self._pause(id_, again))
            if waiting is not None:
                return waiting
            put = found.put
            if found.current.fire_at_ms == PAUSED_MS:
                return self._shown(id_, found)
            if put.due_at_ms is None:
                raise Conflict(
                    "the message goes out by command only, so there is no delay to pause", "untimed"
                )
            version = new_version(put, found.current, PAUSED_MS, delayed_since_ms=self._clock.now_ms())
            return self._write(id_, found, version)
        except TarryError as error:
            return failed(error)

    def _resume(self, id_: str, found: Found) -> Answer[MessageView]:
        try:
            put, now_ms = found.put, self._clock.now_ms()
            if found.current.fire_at_ms != PAUSED_MS:
                kind = self._state.pauses.at(put.namespace, put.destination, put.owner)
                held = NOT_PAUSED if kind is None else f"{NOT_PAUSED} itself: its {kind} is, so resume that"
                raise Conflict(held, "held" if kind is not None else found.state.value)
            # A message sent by command was due, whatever it was scheduled for.
            left_ms = 0 if put.commanded else max(0, (put.due_at_ms or 0) - put.delayed_since_ms)
            policy = self._state.policies.of(put.destination, put.namespace)
            asked_ms = now_ms + left_ms if left_ms else wanted_at_ms(put)
            due_at_ms, fire_at_ms = admission.instants(asked_ms, now_ms, self._state.floor_ms, policy)
            version = new_version(
                put, found.current, fire_at_ms, due_at_ms=due_at_ms if left_ms else put.due_at_ms,
                delayed_since_ms=now_ms,
            )  # fmt: skip
            return self._write(id_, found, version)
        except TarryError as error:
            return failed(error)

    def _write(self, id_: str, found: Found, version: Put) -> Answer[MessageView]:
        record: Record = found.record_of(version)
        return self._commands.write(
            found, [record], lambda _: view_of_put(version, id_, State.SCHEDULED, pauses=self._state.pauses)
        )

    def _shown(self, id_: str, found: Found) -> Answer[MessageView]:
        view = view_of_put(found.put, id_, found.state, pauses=self._state.pauses)
        return self._journal.once_durable(lambda: view, found.current.seq)

    # Places

    def pause_place(self, place: PausablePlace) -> Answer[PauseFacts]:
        """Hold the messages of a place once they are due; one that is paused stays so."""
        try:
            before = self._state.pauses.by_place.get(place)
            if before is not None and not before.resumed:
                return self._told(place, before)
            if before is None:
                self._check_limit(place.namespace)
            return self._say(place, Pause(self._clock.now_ms()))
        except TarryError as error:
            return failed(error)

    def _check_limit(self, namespace: str) -> None:
        pauses = self._state.pauses
        taken = len(pauses.by_place)
        if taken >= MAX_PAUSES:
            raise Conflict(f"{MAX_PAUSES} places are paused, as many as can be: resume some", "full")
        self._shares.check(
            namespace, MAX_PAUSES, taken, pauses.by_namespace[namespace], 1, f"the {MAX_PAUSES} places that can be paused",
            "resume some there",
        )  # fmt: skip

    def resume_place(self, place: PausablePlace) -> Answer[PauseFacts]:
        """Let the messages of a place go out again, in order, as fast as their rates allow."""
        try:
            before = self._state.pauses.by_place.get(place)
            if before is None:
                raise NotFound(f"{place.kind} {place.name} is not paused in {place.namespace}")
            if before.resumed:
                return self._told(place, before)
            told = self._say(place, msgspec.structs.replace(before, resumed=True))
            self._dispatcher.holding.resumed(self._clock.now_ms())
            return told
        except TarryError as error:
            return failed(error)

    def places(self, namespace: str | None) -> Answer[list[PauseFacts]]:
        """The paused places of a namespace or of all, and those whose messages are on their way back."""
        found = sorted(self._state.pauses.by_place.items())
        views = [_view(*one) for one in found if namespace in (None, one[0].namespace)]
        return self._journal.once_durable(lambda: views)

    def _say(self, place: PausablePlace, pause: Pause) -> Answer[PauseFacts]:
        return self._journal.write([paused(place, pause)], lambda: _view(place, pause), essential=True)

    def _told(self, place: PausablePlace, pause: Pause) -> Answer[PauseFacts]:
        return self._journal.once_durable(lambda: _view(place, pause))


def _view(place: PausablePlace, pause: Pause) -> PauseFacts:
    return PauseFacts(
        kind=place.kind, namespace=place.namespace, name=place.name, since_ms=pause.since_ms, resumed=pause.resumed
    )  # fmt: skip
