"""Delayed entries of a topic: list them, look at one, cancel it, give it another due instant."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tarry.core.errors import Invalid, NotFound
from tarry.core.messages.shapes import DelayedFacts
from tarry.core.time.times import format_instant
from tarry.doors.http.bodies import check_json, decode, read_query, text_or_bytes, times_of
from tarry.doors.http.responses import json_response
from tarry.doors.http.shapes import EntryId, Taken, Times
from tarry.doors.http.topics.topics import reach_topic
from tarry.engine.api import DelayedEntry
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response


class DelayedQuery(Taken, kw_only=True):
    """Which delayed entries to list."""

    key: str | None = None
    start: EntryId = 0
    """The `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class RescheduleRequest(Times, kw_only=True):
    """When it is due now: exactly one of these."""


class DelayedAnswer(DelayedFacts, frozen=True, kw_only=True):
    """An entry that waits for its due instant; the answer to a cancel shows the cancelled entry."""

    due_at: str
    payload: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    """Instead of `payload` where that is not UTF-8. Of a Pulsar client it has the metadata before it."""


class DelayedPageAnswer(Struct, kw_only=True):
    """A page in publish order. It may be short or empty and still have a next page."""

    entries: list[DelayedAnswer]
    next: int | None


_decoder = msgspec.json.Decoder(RescheduleRequest)


class DelayedEndpoints:
    """The endpoints under `/v1/topics/{tenant}/{namespace}/{topic}/delayed`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        """GET …/delayed."""
        name = reach_topic(request)
        asked = read_query(request.query, DelayedQuery)
        page = await self._engine.delayed.list(name.full, key=asked.key, start=asked.start, limit=asked.limit)
        return json_response(DelayedPageAnswer(entries=[_shown(one) for one in page.entries], next=page.next))

    async def get(self, request: Request) -> Response:
        """GET …/delayed/{entry_id}."""
        name = reach_topic(request)
        return json_response(_shown(await self._engine.delayed.get(name.full, _entry_id(request))))

    async def cancel(self, request: Request) -> Response:
        """DELETE …/delayed/{entry_id}."""
        name = reach_topic(request)
        return json_response(_shown(await self._engine.delayed.cancel(name.full, _entry_id(request))))

    async def restart(self, request: Request) -> Response:
        """POST …/delayed/{entry_id}/restart."""
        name = reach_topic(request)
        entry_id = _entry_id(request)
        check_json(request)
        body = request.body
        due_at_ms, delay_ms = times_of(decode(_decoder, body))
        if due_at_ms is None:
            if delay_ms is None:
                raise Invalid("delay", "give a due instant or a delay")
            due_at_ms = self._engine.clock.now_ms() + delay_ms
        return json_response(_shown(await self._engine.delayed.reschedule(name.full, entry_id, due_at_ms)))


def _entry_id(request: Request) -> int:
    text = request.params["entry_id"]
    # A longer number is no entry's, and need not be read.
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise NotFound("an entry id is a number, such as 17")
    return int(text)


def _shown(entry: DelayedEntry) -> DelayedAnswer:
    facts: dict[str, Any] = {name: getattr(entry, name) for name in DelayedFacts.__struct_fields__}
    return DelayedAnswer(**facts, due_at=format_instant(entry.due_at_ms), **text_or_bytes(entry.payload))
