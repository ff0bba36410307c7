"""Commands on one message: look at it, cancel it, send it now, restart it.

What a command may do is read off the table in `tarry.core.messages.lifecycle`. It is decided in memory, on one thread, when its
record is enqueued; while an attempt is under way it waits for the verdict and looks again (R11).
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from tarry.core.errors import (
    Conflict,
    Invalid,
    NotFound,
    RateLimited,
    TarryError,
)
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import Event, State, Wait, next_state
from tarry.core.messages.message import LED_BY, MessagePage, MessageQuery, MessageView
from tarry.core.names import TOPIC_SCHEME
from tarry.core.rules import admission
from tarry.core.tenants.rates import Rates
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.finding import Finding, Found
from tarry.engine.queries.listing import Listing
from tarry.engine.queries.views import view_of_put
from tarry.engine.records.delayed_entry import BY_COMMAND
from tarry.engine.records.versions import new_version
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Claim, Put, Record

T = TypeVar("T")


class MadeDue(Struct, frozen=True):
    """A message that a command made due: the seq of the version that says so, and the message as it then is."""

    seq: int
    view: MessageView


class Ending(Struct, frozen=True, kw_only=True):
    """Why messages are ended unsent, and for which of those that could be it is meant."""

    reason: str
    error: str | None = None
    """The error in the words of a door."""
    namespace: str | None = None
    spare_owner: str | None = None
    """Whose messages are left alone."""
    accepted_before_ms: int | None = None
    """Later ones are left alone."""
    spare_led_by: str | None = None
    """Messages whose group was led by what the receiver calls so are left alone."""

    def is_for(self, put: Put) -> bool:
        """Whether a message is to be ended."""
        if self.accepted_before_ms is not None and put.accepted_at_ms >= self.accepted_before_ms:
            return False
        if self.spare_led_by is not None and put.headers.get(LED_BY) == self.spare_led_by:
            return False
        return self.namespace in (None, put.namespace) and put.owner != self.spare_owner


_BY_COMMAND: Final = Ending(reason=BY_COMMAND)


def check_times(delay_ms: int | None, due_at_ms: int | None) -> None:
    """Raise `Invalid` for two times, or one that is negative."""
    if delay_ms is not None and due_at_ms is not None:
        raise Invalid("delay_ms", "give a due instant or a delay, not both")
    if (delay_ms or 0) < 0 or (due_at_ms or 0) < 0:
        raise Invalid("delay_ms" if delay_ms else "due_at_ms", "is negative; give 0 or more")


class Commands:
    """Finds messages by their ids and acts on them."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        finding: Finding,
        listing: Listing,
        dispatcher: Dispatcher,
        ids: Ids,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._state = state
        self._finding = finding
        self._listing = listing
        self._ids = ids
        self._dispatcher = dispatcher
        self._clock = clock
        self._rates = Rates()

    def get(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """A message as it is now. Here and below, one outside the namespace that is given is not found."""
        return self._finding.find(id, lambda found: self._show(id, found), namespace, ended=True)

    def id_of_name(self, namespace: str, name: str) -> str:
        """The id of the message that has a name; raises `NotFound` if none has."""
        self._journal.check_shown()
        origin = self._state.names.message_of(namespace, name)
        if origin is None:
            raise NotFound("there is no message of this name")
        return self._ids.make(origin.seq, origin.fire_at_ms)

    def _show(self, id_: str, found: Found) -> Answer[MessageView]:
        flight = self._dispatcher.flights.by_seq.get(found.current.seq)
        view = view_of_put(found.put, id_, found.state, flight, self._state.pauses)
        return self._journal.once_durable(lambda: view, self._state.batches.accepted_by(found.current.seq))

    def list_messages(self, query: MessageQuery) -> Answer[MessagePage]:
        """A page of messages."""
        try:
            if query.state == "finalised":
                return self.after_flush(lambda: self._listing.list_finalised(query))
            self._journal.check_shown()
            return self._listing.list_scheduled(query)
        except TarryError as error:
            return failed(error)

    def after_flush(self, read: Callable[[], Any]) -> Answer[Any]:
        """Answer with the result of a look into the registry once it is up to date."""
        return self._finding.after_flush(read)

    # Commands

    def cancel(self, id: str, *, namespace: str | None = None) -> Answer[MessageView]:
        """End a message unsent. Once this is answered it never goes out."""
        return self._finding.find(
            id, self.charged(lambda found: self.cancel_found(id, found, _BY_COMMAND)), namespace
        )

    def end(self, id: str, ending: Ending) -> Answer[MessageView]:
        """End a message unsent for another reason than a command, if it is meant for it; else a conflict."""

        def act(found: Found) -> Answer[MessageView]:
            if not ending.is_for(found.put):
                return failed(
                    Conflict("the message is spared by its owner, its namespace or its age", "spared")
                )
            if ending.spare_led_by is not None:
                try:
                    # What leads its group may be just that.
                    self._state.groups.check_unled(found.put, found.origin)
                except Conflict as error:
                    return failed(error)
            return self.cancel_found(id, found, ending)

        return self._finding.find(id, act)

    def send(self, id: str) -> Answer[MessageView]:
        """Make a message due now. A cancel or a restart that is recorded before it has gone out holds over this."""
        return self.make_due(id).map(lambda due: due.view)

    def make_due(self, id: str, *, keep: bool = False, namespace: str | None = None) -> Answer[MadeDue]:
        """Make a message due now; with `keep`, one that is then refused waits for its due instant again."""
        how = "try" if keep else "send"
        return self._finding.find(id, self.charged(lambda found: self.send_found(id, found, how)), namespace)

    def restart(
        self,
        id: str,
        *,
        delay_ms: int | None = None,
        due_at_ms: int | None = None,
        namespace: str | None = None,
    ) -> Answer[MessageView]:
        """Begin a message's delay again, or give it a new delay or due instant."""
        try:
            check_times(delay_ms, due_at_ms)
        except TarryError as error:
            return failed(error)
        act = self.charged(lambda found: self.restart_found(id, found, delay_ms, due_at_ms))
        return self._finding.find(id, act, namespace)

    def move(self, id: str, instant: Callable[[Found], int | None]) -> Answer[None]:
        """Give a message another fire instant, if it is to have one; its due instant stays."""

        def act(found: Found) -> Answer[None]:
            fire_at_ms = instant(found)
            if fire_at_ms is None:
                return settled(None)
            put = new_version(found.put, found.current, fire_at_ms)
            return self.write(found, [found.record_of(put)], lambda _: None)

        return self._finding.find(id, act)

    def charged(self, act: Callable[[Found], Answer[T]]) -> Callable[[Found], Answer[T]]:
        """An action that is refused if the owner of the message has commanded too much of late."""

        def charge(found: Found) -> Answer[T]:
            try:
                self.charge(found.put.namespace, found.put.destination, found.put.owner)
            except RateLimited as error:
                return failed(error)
            return act(found)

        return charge

    def charge(self, namespace: str, destination: str, owner: str) -> None:
        """Charge a command on a message to its owner; raises `RateLimited`."""
        per_second = self._state.policies.of(destination, namespace).command_per_second
        if not per_second:
            return
        wait_ms = self._rates.wait_ms((namespace, owner), per_second, self._clock.now_ms())
        if wait_ms:
            level = self._state.policies.level_at(destination, namespace)("command_per_second")
            raise RateLimited(
                wait_ms, f"an owner may give at most {per_second:g} commands a second, set on {level}"
            )

    def decide(
        self, id_: str, found: Found, event: Event, again: Callable[[Found], Answer[T]]
    ) -> Answer[T] | None:
        """None if the event may happen now; else an answer that waits for the verdict and tries again."""
        answer: Answer[T] = Answer()
        if self.may(found, event, lambda: self._finding.find(id_, again).forward_to(answer)):
            return None
        return answer

    def may(self, found: Found, event: Event, look_again: Callable[[], None]) -> bool:
        """Whether an event may happen now; if not, `look_again` is called once the attempt has its verdict.

        Raises `Conflict` where it never may.
        """
        after = next_state(found.state, event)
        if event is Event.CANCEL and found.state is State.SCHEDULED and found.put.uncertain:
            raise Conflict(
                "the message may have been sent already: an attempt ended without a reply", "uncertain"
            )
        if isinstance(after, Wait):
            self._dispatcher.end_writer.when_settled(found.current.seq, look_again)
            return False
        return True

    def cancel_found(self, id_: str, found: Found, ending: Ending) -> Answer[MessageView]:
        """End a message that was found."""
        try:
            waiting = self.decide(
                id_, found, Event.CANCEL, lambda again: self.cancel_found(id_, again, ending)
            )
            if waiting is not None:
                return waiting
            now_ms = self._clock.now_ms()
            records = self.ends(found, ending, now_ms)
            row = msgspec.structs.replace(
                view_of_put(found.put, id_, State.CANCELLED), finalised_at_ms=now_ms, reason=ending.reason,
                error=ending.error,
            )  # fmt: skip
            return self.write(found, records, lambda _: row, essential=True)
        except TarryError as error:
            return failed(error)

    def ends(self, found: Found, ending: Ending, now_ms: int) -> list[Record]:
        """The records that end a message unsent, and with it the messages that cannot go out without it."""
        end = found.cancelled(now_ms, ending.reason, ending.error)
        return [end, *self._state.groups.ends_of_orphans(found.put, found.origin, now_ms)]

    def send_found(self, id_: str, found: Found, how: str, by: int = 0) -> Answer[MadeDue]:
        """Make a message due that was found; `by` is the number of a bulk command."""
        try:
            waiting = self.decide(id_, found, Event.SEND, lambda again: self.send_found(id_, again, how, by))
            if waiting is not None:
                return waiting
            self._state.groups.check_unled(found.put, found.origin)
            now_ms = self._clock.now_ms()
            fire_at_ms = admission.earliest(now_ms, now_ms, self._state.floor_ms)
            put = new_version(found.put, found.current, fire_at_ms, commanded=how, by=by)
            records = [*self._claim(found, now_ms), found.record_of(put)]
            return self.write(
                found,
                records,
                lambda seq: MadeDue(seq, view_of_put(put, id_, State.SCHEDULED, pauses=self._state.pauses)),
            )
        except TarryError as error:
            return failed(error)

    def _claim(self, found: Found, now_ms: int) -> list[Record]:
        """The records by which a member of a group is chosen: from now on no other one can be (R11).

        Whoever is told that a message goes out can rely on it, although another one may be told so before this one has
        left. A topic has it at once.
        """
        put = found.put
        if put.group is None or put.destination.startswith(TOPIC_SCHEME):
            return []
        claim = Claim(found.current.seq, put.group, put.owner, now_ms, put.namespace)
        return [claim, *self._state.groups.ends_of_siblings(put, found.origin, now_ms)]

    def restart_found(
        self, id_: str, found: Found, delay_ms: int | None, due_at_ms: int | None, by: int = 0
    ) -> Answer[MessageView]:
        """Begin the delay of a message anew that was found, or give it a new time; `by` is the number of a bulk command."""
        try:
            waiting = self.decide(
                id_,
                found,
                Event.RESTART,
                lambda again: self.restart_found(id_, again, delay_ms, due_at_ms, by),
            )
            if waiting is not None:
                return waiting
            self._state.groups.check_unled(found.put, found.origin)
            now_ms = self._clock.now_ms()
            policy = self._state.policies.of(found.put.destination, found.put.namespace)
            if due_at_ms is None:
                delay_ms = found.put.delay_ms if delay_ms is None else delay_ms
                if delay_ms is None:
                    raise Conflict(
                        "the message has no delay to begin again; give a due instant or a delay", "untimed"
                    )
                due_at_ms = now_ms + delay_ms
            delay_ms = max(0, due_at_ms - now_ms)
            level = self._state.policies.level_at(found.put.destination, found.put.namespace)
            admission.check_delay(delay_ms, policy, level)
            due_at_ms, fire_at_ms = admission.instants(due_at_ms, now_ms, self._state.floor_ms, policy)
            put = new_version(
                found.put, found.current, fire_at_ms, due_at_ms=due_at_ms, delay_ms=delay_ms, delayed_since_ms=now_ms,
                attempts=0, tried=None, commanded="", by=by,
            )  # fmt: skip
            return self.write(
                found,
                [found.record_of(put)],
                lambda _: view_of_put(put, id_, State.SCHEDULED, pauses=self._state.pauses),
            )
        except TarryError as error:
            return failed(error)

    def write(
        self, found: Found, records: list[Record], answered: Callable[[int], T], *, essential: bool = False
    ) -> Answer[T]:
        """Enqueue the records of a command; once they are durable, answer with what the seq of the last one leads to."""
        answer: Answer[T] = Answer()

        def durable() -> T:
            # Whoever waits for a verdict on the version that was replaced waits in vain.
            self._dispatcher.end_writer.settled([found.current.seq])
            return answered(first + len(records) - 1)

        first = self._journal.append(records, answer.completer(durable), essential=essential)
        self._dispatcher.killed(found.current.seq)
        return answer
