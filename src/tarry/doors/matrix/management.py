"""Managing a delayed event: send, cancel, restart. Its delay id is all that is needed, unless the operator wants more.

What an action comes to on an event that is finalised already is one table, in the words of the dialect that the event was
scheduled in. Nothing here asks the homeserver whose token it is, but with the switch that demands the owner's. Ids of
messages that are no delayed events are not found.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from tarry.core.errors import Conflict, RateLimited, TarryError
from tarry.core.messages.delivery import Refused, Retry
from tarry.core.messages.lifecycle import FINALISED, State
from tarry.core.messages.message import MessageView
from tarry.core.tenants.rates import Rates
from tarry.doors.matrix.dialects import Speech, dialect_of
from tarry.doors.matrix.errors import MatrixError, error_of, explain, not_found, repeat
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.sending import deliver
from tarry.doors.matrix.settings import EVENTS
from tarry.doors.matrix.wire import MatrixRequest, ok, read_object
from tarry.engine.answer import Answer, failed
from tarry.http.response import Response

ACTIONS: Final = {"send": "send", "cancel": "cancel", "restart": "restart", "refresh": "restart"}
"""Actions on a delayed event; `refresh` is a name that the proposal uses once for `restart`."""


class _Body(Struct):
    action: str


_body_decoder = msgspec.json.Decoder(_Body)


class Management:
    """The endpoints that act on one event."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._rates = Rates()
        self._commands: dict[str, Callable[[str], Answer[MessageView]]] = {
            "cancel": partial(self._engine.cancel, namespace=EVENTS),
            "restart": partial(self._engine.restart, namespace=EVENTS),
        }

    def by_path(self, request: MatrixRequest) -> Response | Awaitable[Response]:
        """POST …/delayed_events/{delay}/{action}."""
        action = ACTIONS.get(request.params["action"])
        if action is None:
            raise MatrixError(404, "M_UNRECOGNIZED", "The action is not send, cancel or restart.")
        return self._manage(request, action)

    def by_body(self, request: MatrixRequest) -> Response | Awaitable[Response]:
        """POST …/delayed_events/{delay} with the action in the body."""
        action = ACTIONS.get(read_object(request.body, _body_decoder).action)
        if action is None:
            raise MatrixError(400, "M_INVALID_PARAM", "The action is not send, cancel or restart.")
        return self._manage(request, action)

    def _manage(self, request: MatrixRequest, action: str) -> Awaitable[Response]:
        if self._parts.settings.management_token:
            return self._manage_own(request, action)
        return self._act(request.params["delay"], action, request.unstable)

    async def _manage_own(self, request: MatrixRequest, action: str) -> Response:
        """Manage an event if it is the sender's."""
        account = await self._parts.accounts.of(request)
        delay_id = request.params["delay"]
        view = await self._engine.get(delay_id, namespace=EVENTS)
        if view.owner != account.user_id:
            raise not_found()
        return await self._act(delay_id, action, request.unstable)

    def _act(self, delay_id: str, action: str, unstable: bool) -> Awaitable[Response]:
        self._limit(delay_id)
        if action == "send":
            return self._send(delay_id, unstable)
        done = self._commands[action](delay_id).map(lambda _: ok())
        return done.or_else(partial(self._refused, delay_id, action, unstable))

    def _refused(self, delay_id: str, action: str, unstable: bool, error: TarryError) -> Answer[Response]:
        if not isinstance(error, Conflict):
            return failed(error)
        # What it comes to depends on the event, which is looked up first.
        view = self._engine.get(delay_id, namespace=EVENTS)
        return view.map(partial(finalised_answer, action, unstable))

    def _limit(self, delay_id: str) -> None:
        """Raise if one event is managed too fast. By event: an SFU manages many from one address."""
        per_second = self._parts.settings.manage_per_second_per_event
        if per_second:
            wait_ms = self._rates.wait_ms(("event", delay_id), per_second, self._parts.clock.now_ms())
            if wait_ms:
                raise RateLimited(wait_ms)

    async def _send(self, delay_id: str, unstable: bool) -> Response:
        """Send an event now: answers once the homeserver has it, and raises what it or the network has against it."""
        view = await self._engine.get(delay_id, namespace=EVENTS)
        keep = dialect_of(view.headers).stays_on_refusal
        try:
            verdict = await deliver(self._parts, delay_id, namespace=EVENTS, keep=keep)
        except Conflict as conflict:
            return await self._refused(delay_id, "send", unstable, conflict)
        match verdict:
            case Refused(error=str(error)) | Retry(error=str(error)):
                raise repeat(error)
            case Refused(reason=reason):
                raise MatrixError(500, "M_UNKNOWN", reason)
            case _:
                return ok()


def finalised_answer(action: str, unstable: bool, view: MessageView) -> Response:
    """The answer to an action that the event's state does not allow: its outcome again, or what the dialect says."""
    dialect = dialect_of(view.headers)
    speech = Speech(dialect, unstable)
    if view.state not in FINALISED:
        # It may have been sent: nobody can promise that it was cancelled.
        raise explain(Conflict("the event may have been sent: ask again for its outcome"), speech)
    if action == "send" and view.state is State.SENT:
        return ok()
    if action == "send" and view.state is State.FAILED and dialect.repeats_error:
        raise error_of(view)
    if action == "cancel" and view.state is not State.SENT and dialect.cancel_repeats:
        return ok()
    raise explain(Conflict("the event is finalised: only a pending one can be changed"), speech)
