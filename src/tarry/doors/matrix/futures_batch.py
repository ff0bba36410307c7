"""A batch of the Futures draft: an event now, one after a time and one for each action, in a single request.

They are accepted as one unit of the ledger. The event that is sent at once leads the others' group: their time begins
when it is sent, they can refer to it by its id, and if the homeserver refuses it none of them is left. A crash at any
moment leaves all of it or none.
"""

import asyncio
from typing import Any

import msgspec

from tarry.core.errors import TarryError
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import Message, MessageView
from tarry.doors.matrix.errors import MatrixError, error_of
from tarry.doors.matrix.event import EventToSend, check_event, message_of
from tarry.doors.matrix.futures import DIALECT, KIND, URL, Futures, explained, url_of
from tarry.doors.matrix.futures_asked import GROUP, FutureBatch, FutureEvent, read_batch
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.settings import FUTURES
from tarry.doors.matrix.wire import Account, MatrixRequest, ok
from tarry.http.response import Response


class FutureBatches:
    """The endpoint that takes a batch."""

    def __init__(self, parts: Parts, futures: Futures) -> None:
        self._parts = parts
        self._futures = futures

    async def schedule(self, request: MatrixRequest) -> Response:
        """PUT …/rooms/{room}/send/future/{txn}."""
        batch = read_batch(request.body)
        messages = self._messages(request, request.account, batch)
        try:
            scheduled = await self._parts.engine.schedule_many(messages, all_or_none=True)
        except TarryError as error:
            raise explained(error) from None
        ids = [one.id for one in scheduled]
        event_id = None if batch.now is None else await self._sent(ids.pop(0))
        return ok(self._response(batch, ids, event_id))

    def _messages(self, request: MatrixRequest, account: Account, batch: FutureBatch) -> list[Message]:
        """The messages of a batch: first the one that leads, then the timed one."""
        room_id, txn = request.params.values()
        names = ("send/future", room_id, txn)
        group = GROUP + self._futures.new_group_id(account, names)
        url = url_of(request)

        def message(sent: FutureEvent, kind: str, delay_ms: int | None, *name: str) -> Message:
            event = EventToSend(
                room_id=room_id,
                type=sent.type,
                state_key=sent.state_key,
                content=bytes(sent.content),
                sticky_ms=sent.sticky_ms,
            )
            check_event(event)
            return message_of(
                event,
                account,
                delay_ms=delay_ms,
                dialect=DIALECT,
                txn=(*names, kind, *name),
                group=group,
                namespace=FUTURES,
                extra={URL: url, KIND: kind},
            )

        messages = [message(batch.on_timeout, "timeout", batch.timeout_ms)]
        messages += (message(sent, "action", None, name) for name, sent in (batch.on_action or {}).items())
        if batch.now is not None:
            leader = message(batch.now, "now", 0)
            messages.insert(0, msgspec.structs.replace(leader, group=None, leads=group))
        return messages

    async def _sent(self, id_: str) -> str:
        """The id of the event that is sent at once; raises the homeserver's error if it refuses it."""
        try:
            async with asyncio.timeout(self._parts.settings.send_timeout_ms / 1000):
                view: MessageView = await self._parts.engine.ended(id_)
        except TimeoutError:
            text = "The batch is accepted, but the homeserver takes its time; ask again with the same transaction id."
            raise MatrixError(504, "M_UNKNOWN", text) from None
        except TarryError as error:
            raise explained(error) from None
        if view.state is not State.SENT:
            raise error_of(view)
        return view.reference or ""

    def _response(self, batch: FutureBatch, ids: list[str], event_id: str | None) -> dict[str, Any]:
        timed, *actions = (self._futures.tokens_of(id_, "", is_timed=at == 0) for at, id_ in enumerate(ids))
        # One request is one group: its id is of no use to anybody.
        del timed["future_group_id"]
        response: dict[str, Any] = {"send_on_timeout": timed}
        if batch.on_action is not None:
            names = zip(batch.on_action, actions, strict=True)
            response["send_on_action"] = {name: {"send_token": one["send_token"]} for name, one in names}
        if event_id is not None:
            response["send_now"] = {"eventId": event_id}
        return response
