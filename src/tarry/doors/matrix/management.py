"""Managing a delayed event: send, cancel, restart. Its delay id is all that is needed, unless the operator wants more.

What an action comes to on an event that is finalised already is one table, in the words of the dialect that the event was
scheduled in. Nothing here asks the homeserver whose token it is, but with the switch that demands the owner's. Ids of
messages that are no delayed events are not found.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from tarry.core.delivery import Delivered, Refused, Retry
from tarry.core.errors import Conflict, RateLimited, TarryError
from tarry.core.lifecycle import FINALISED, State
from tarry.core.message import MessageView
from tarry.core.rates import Rates
from tarry.doors.matrix.dialects import Speech, dialect_of
from tarry.doors.matrix.errors import MatrixError, error_of, explain, internal, not_found, repeat
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.paths import CLIENT, MSC4140, Route
from tarry.doors.matrix.sending import deliver
from tarry.doors.matrix.settings import EVENTS
from tarry.doors.matrix.wire import Answered, MatrixRequest, ok, read_object, refused
from tarry.engine.answer import Answer

ROOTS: Final = (f"{CLIENT}/v1/delayed_events", f"{MSC4140}/delayed_events")

ACTIONS: Final = {"send": "send", "cancel": "cancel", "restart": "restart", "refresh": "restart"}
"""Actions on a delayed event; `refresh` is a name that the proposal uses once for `restart`."""

QUICK: Final = {name.encode(): action for name, action in ACTIONS.items() if action != "send"}
"""Actions that are answered as soon as they are durable, and so without a task; a `send` waits for the homeserver."""


class _Body(Struct):
    action: str


_body_decoder = msgspec.json.Decoder(_Body)


class Management:
    """The endpoints that act on one event."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._rates = Rates()
        self._act_quick: dict[str, Callable[[str], Answer[MessageView]]] = {
            "cancel": partial(self._engine.cancel, namespace=EVENTS),
            "restart": partial(self._engine.restart, namespace=EVENTS),
        }
        self._act: dict[str, Callable[[str], Awaitable[object]]] = {"send": self._send, **self._act_quick}
        self.action = Route({"POST": self.by_path}, *(f"{events}/{{}}/{{}}" for events in ROOTS))
        self.routes = [self.action]

    async def by_path(self, request: MatrixRequest) -> Answered:
        """POST …/delayed_events/{id}/{action}."""
        delay_id, name = request.params
        if name not in ACTIONS:
            raise MatrixError(404, "M_UNRECOGNIZED", "The action is not send, cancel or restart.")
        return await self._manage(request, delay_id, ACTIONS[name])

    async def by_body(self, request: MatrixRequest) -> Answered:
        """POST …/delayed_events/{id} with the action in the body."""
        (delay_id,) = request.params
        name = read_object(request.body, _body_decoder).action
        if name not in ACTIONS:
            raise MatrixError(400, "M_INVALID_PARAM", "The action is not send, cancel or restart.")
        return await self._manage(request, delay_id, ACTIONS[name])

    async def _manage(self, request: MatrixRequest, delay_id: str, action: str) -> Answered:
        try:
            if self._parts.settings.management_token:
                await self._check_owner(request, delay_id)
            self._limit(delay_id)
            await self._act[action](delay_id)
        except Conflict:
            return await self._conflict(delay_id, action, request.unstable)
        except TarryError as error:
            raise explain(error) from None
        return ok()

    def quick(self, delay_id: str, action: str, unstable: bool, reply: Any) -> bool:
        """Restart or cancel an event without a task; False if it has to go the longer way."""
        if self._parts.settings.management_token:
            return False
        try:
            self._limit(delay_id)
        except RateLimited as error:
            reply(*refused(explain(error)))
            return True
        self._act_quick[action](delay_id).then(partial(self._acted, delay_id, action, unstable, reply))
        return True

    def _acted(
        self, delay_id: str, action: str, unstable: bool, reply: Any, answer: Answer[MessageView]
    ) -> None:
        error = answer.error()
        if error is None:
            reply(*ok())
        elif isinstance(error, Conflict):
            # What it comes to depends on the event, which is looked up first.
            self._engine.get(delay_id, namespace=EVENTS).then(
                partial(_reply_conflict, action, unstable, reply)
            )
        else:
            reply(*refused(explain(error) if isinstance(error, TarryError) else internal()))

    def _limit(self, delay_id: str) -> None:
        """Raise if one event is managed too fast. By event: an SFU manages many from one address."""
        per_second = self._parts.settings.manage_per_second_per_event
        if per_second:
            wait_ms = self._rates.wait_ms(("event", delay_id), per_second, self._parts.clock.now_ms())
            if wait_ms:
                raise RateLimited(wait_ms)

    async def _check_owner(self, request: MatrixRequest, delay_id: str) -> None:
        account = await self._parts.accounts.of(request)
        view = await self._engine.get(delay_id, namespace=EVENTS)
        if view.owner != account.user_id:
            raise not_found()

    async def _conflict(self, delay_id: str, action: str, unstable: bool) -> Answered:
        try:
            view = await self._engine.get(delay_id, namespace=EVENTS)
        except TarryError as error:
            raise explain(error) from None
        return finalised_answer(action, view, unstable)

    async def _send(self, delay_id: str) -> None:
        """Send an event now: returns once the homeserver has it, and raises what it or the network has against it."""
        view = await self._engine.get(delay_id, namespace=EVENTS)
        keep = dialect_of(view.headers).stays_on_refusal
        match await deliver(self._parts, delay_id, namespace=EVENTS, keep=keep):
            case Refused(error=str(error)) | Retry(error=str(error)):
                raise repeat(error)
            case Refused(reason=reason):
                raise MatrixError(500, "M_UNKNOWN", reason)
            case Delivered() | Retry():
                return


def finalised_answer(action: str, view: MessageView, unstable: bool) -> Answered:
    """The answer to an action that the event's state does not allow: its outcome again, or what the dialect says."""
    dialect = dialect_of(view.headers)
    speech = Speech(dialect, unstable)
    if view.state not in FINALISED:
        # It may have been sent: nobody can promise that it was cancelled.
        raise explain(Conflict("uncertain"), speech)
    if action == "send" and view.state is State.SENT:
        return ok()
    if action == "send" and view.state is State.FAILED and dialect.repeats_error:
        raise error_of(view)
    if action == "cancel" and view.state is not State.SENT and dialect.cancel_repeats:
        return ok()
    raise explain(Conflict("finalised"), speech)


def _reply_conflict(action: str, unstable: bool, reply: Any, answer: Answer[MessageView]) -> None:
    error = answer.error()
    try:
        if error is not None:
            raise explain(error) if isinstance(error, TarryError) else internal()
        answered = finalised_answer(action, answer.value(), unstable)
    except MatrixError as refusal:
        answered = refused(refusal)
    reply(*answered)
