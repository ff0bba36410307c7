"""Repeats under their names: set, look at, list, pause, resume, remove."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tarry.core.errors import Invalid
from tarry.core.messages.repeat import Missed, Repeat
from tarry.core.messages.shapes import RepeatFacts
from tarry.core.names import parse_namespace
from tarry.core.time.times import format_instant
from tarry.doors.http.bodies import (
    check_json,
    decode,
    duration_of,
    instant_of,
    payload_of,
    read_query,
    text_or_bytes,
)
from tarry.doors.http.responses import json_response, nothing
from tarry.doors.http.shapes import MAX_EXACT_INT, Duration, Instant, Json, Milliseconds, Taken, Text
from tarry.engine.api import RepeatCondition, RepeatView
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

CronText = Annotated[
    str,
    Meta(
        max_length=200, description="Five fields, or six with the second first", examples=["30 8 * * mon-fri"]
    ),
]
Zone = Annotated[str, Meta(max_length=64, description="An IANA time zone", examples=["Europe/Berlin"])]


class RepeatRequest(Taken, kw_only=True):
    """A repeat: the message as in a schedule, and when. Either an interval or cron."""

    destination: str
    payload: Text | None = None
    payload_base64: bytes | None = None
    payload_json: Json | UnsetType = UNSET
    headers: dict[str, str] | None = None
    key: str | None = None
    owner: str = ""
    ttl_ms: Annotated[int, Meta(ge=1, le=MAX_EXACT_INT)] | None = None
    every: Duration | None = None
    """The interval. It is time that passes: clocks that are set do not change it."""
    every_ms: Milliseconds | None = None
    cron: CronText | None = None
    zone: Zone | None = None
    """The zone of cron; UTC if it is left out."""
    start_at: Instant | None = None
    """No occurrence is before this. With an interval it is the first one."""
    start_at_ms: Milliseconds | None = None
    end_at: Instant | None = None
    """No occurrence is after this."""
    end_at_ms: Milliseconds | None = None
    count: Annotated[int, Meta(ge=1, le=MAX_EXACT_INT)] | None = None
    """How many occurrences there are in all."""
    jitter: Duration | None = None
    """Each occurrence is due up to so much later, and always before the next one is planned."""
    jitter_ms: Milliseconds | None = None
    missed: Missed = "latest"
    """Which missed occurrences are sent late."""


class RepeatsQuery(Taken, kw_only=True):
    """Which repeats to list."""

    namespace: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100
    page: Annotated[str, Meta(description="The next_page of the page before")] | None = None


class RepeatAnswer(RepeatFacts, frozen=True, kw_only=True):
    """A repeat: what was asked for, and how far it has come."""

    state: RepeatCondition
    missed: Missed
    next_due_at: list[str]
    headers: dict[str, str]
    payload: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    """Instead of `payload` where that is not UTF-8."""


class RepeatsAnswer(Struct, kw_only=True):
    """One page, by namespace and name. Without the payloads."""

    repeats: list[RepeatAnswer]
    next_page: str | None


_decoder: Final = msgspec.json.Decoder(RepeatRequest)


class RepeatEndpoints:
    """The endpoints under `/v1/repeats`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        """GET /v1/repeats."""
        query = read_query(request.query, RepeatsQuery)
        request.caller.require_listed(query.namespace)
        page = await self._engine.repeats.page(query.namespace, limit=query.limit, after=query.page)
        answers = [_shown(view, whole=False) for view in page.repeats]
        return json_response(RepeatsAnswer(repeats=answers, next_page=page.next_page))

    async def set(self, request: Request) -> Response:
        """PUT /v1/repeats/{tenant}/{namespace}/{name}."""
        place = _reach(request)
        check_json(request)
        asked = _asked(decode(_decoder, request.body))
        return json_response(_shown(await self._engine.repeats.set(*place, asked)))

    async def get(self, request: Request) -> Response:
        """GET /v1/repeats/{tenant}/{namespace}/{name}."""
        return json_response(_shown(await self._engine.repeats.get(*_reach(request))))

    async def remove(self, request: Request) -> Response:
        """DELETE /v1/repeats/{tenant}/{namespace}/{name}."""
        await self._engine.repeats.remove(*_reach(request))
        return nothing()

    async def pause(self, request: Request) -> Response:
        """POST …/{name}/pause."""
        return json_response(_shown(await self._engine.repeats.pause(*_reach(request))))

    async def resume(self, request: Request) -> Response:
        """POST …/{name}/resume."""
        return json_response(_shown(await self._engine.repeats.resume(*_reach(request))))


def _reach(request: Request) -> tuple[str, str]:
    """The namespace and the name in the path, once it is clear that the caller may touch them."""
    params = request.params
    namespace = parse_namespace(f"{params['tenant']}/{params['namespace']}")
    request.caller.require_namespace(namespace)
    return namespace, str(params["name"])


def _asked(request: RepeatRequest) -> Repeat:
    payload, headers = payload_of(request)
    every_ms = duration_of("every", request.every, request.every_ms)
    if every_ms == 0:
        raise Invalid("every", "is not between 1 ms and 100 years")
    return Repeat(
        destination=request.destination, payload=payload, headers=headers, key=request.key, owner=request.owner,
        ttl_ms=request.ttl_ms, every_ms=every_ms or 0, cron=request.cron, zone=request.zone or "",
        start_at_ms=instant_of("start_at", request.start_at, request.start_at_ms),
        end_at_ms=instant_of("end_at", request.end_at, request.end_at_ms), count=request.count,
        jitter_ms=duration_of("jitter", request.jitter, request.jitter_ms) or 0, missed=request.missed,
    )  # fmt: skip


def _shown(view: RepeatView, *, whole: bool = True) -> RepeatAnswer:
    facts: dict[str, Any] = {name: getattr(view, name) for name in RepeatFacts.__struct_fields__}
    return RepeatAnswer(
        **facts,
        next_due_at=[format_instant(at_ms) for at_ms in view.next_due_at_ms],
        headers=view.headers,
        **(text_or_bytes(view.payload) if whole else {}),
    )
