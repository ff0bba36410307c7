"""Pauses of places: topics, owners and destinations whose messages do not go out until they are resumed."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from tarry.core.messages.pause import PausablePlace, PlaceKind, place_of
from tarry.core.messages.shapes import PauseFacts
from tarry.core.time.times import format_instant
from tarry.doors.http.bodies import check_json, decode, read_query
from tarry.doors.http.responses import json_response
from tarry.doors.http.shapes import Taken
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response


class PlaceRequest(Taken, kw_only=True):
    """A place: one of a topic, an owner in a namespace, and a destination in a namespace."""

    topic: Annotated[str, Meta(description="With all of its partitions", examples=["orders"])] | None = None
    owner: str | None = None
    destination: (
        Annotated[
            str,
            Meta(description="An address, or all of a host", examples=["https://example.org"]),
        ]
        | None
    ) = None
    namespace: str | None = None
    """The namespace of the owner or of the destination; `public/default` if it is left out."""


class PausesQuery(Taken, kw_only=True):
    """Which paused places to list."""

    namespace: str | None = None


class PauseAnswer(PauseFacts, frozen=True, kw_only=True):
    """A paused place."""

    kind: PlaceKind
    since: str


class PausesAnswer(Struct, kw_only=True):
    """All paused places that were asked for."""

    pauses: list[PauseAnswer]


_decoder: Final = msgspec.json.Decoder(PlaceRequest)


class PauseEndpoints:
    """The endpoints under `/v1/pauses`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        """GET /v1/pauses."""
        query = read_query(request.query, PausesQuery)
        request.caller.require_listed(query.namespace)
        places = await self._engine.pausing.places(query.namespace)
        return json_response(PausesAnswer(pauses=[_shown(place) for place in places]))

    async def pause(self, request: Request) -> Response:
        """POST /v1/pauses."""
        return json_response(_shown(await self._engine.pausing.pause_place(_place(request))))

    async def resume(self, request: Request) -> Response:
        """POST /v1/pauses/resume."""
        return json_response(_shown(await self._engine.pausing.resume_place(_place(request))))


def _place(request: Request) -> PausablePlace:
    """The place in the body, once it is clear that the caller may touch it."""
    check_json(request)
    asked = decode(_decoder, request.body)
    place = place_of(asked.namespace, asked.destination, asked.topic, asked.owner)
    request.caller.require_namespace(place.namespace)
    return place


def _shown(place: PauseFacts) -> PauseAnswer:
    return PauseAnswer(**asdict(place), since=format_instant(place.since_ms))
