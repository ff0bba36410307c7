"""Bulk commands: ask for one, look at its count, confirm it, watch it, stop it."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from tarry.core.errors import NotFound
from tarry.core.messages.bulk_command import Action, BulkCommand, ChosenState, MessageFilter, Phase
from tarry.core.messages.shapes import BulkCommandFacts
from tarry.core.names import parse_destination, parse_namespace
from tarry.core.time.times import format_instant
from tarry.doors.http.bodies import check_json, decode, instant_of, read_query, times_of
from tarry.doors.http.responses import json_response
from tarry.doors.http.shapes import MAX_EXACT_INT, Instant, Milliseconds, Taken, Times
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response


class FilterRequest(MessageFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter that chooses messages; absent fields do not filter."""

    state: ChosenState = "scheduled"
    """`retrying`: of those that are scheduled, the ones that wait for another attempt. `failed` is for retries."""
    due_from: Instant | None = None
    due_from_ms: Milliseconds | None = None
    due_to: Instant | None = None
    due_to_ms: Milliseconds | None = None


class CommandRequest(Times, kw_only=True):
    """A command for all messages that a filter chooses. A time is for `move`, where it is needed, and `retry`."""

    action: Action
    filter: FilterRequest


class ConfirmRequest(Taken, kw_only=True):
    """The count that is confirmed."""

    counted: Annotated[int, Meta(ge=0, le=MAX_EXACT_INT)]


class CommandsQuery(Taken, kw_only=True):
    """Which bulk commands to list."""

    namespace: str | None = None


class FilterAnswer(MessageFilter, frozen=True, kw_only=True):
    """Which messages a bulk command is for: always its state and namespace, and whatever else filters."""

    state: ChosenState
    namespace: str


class CommandAnswer(BulkCommandFacts, frozen=True, kw_only=True):
    """A bulk command: what was asked for, by whom and when, and how far it has come."""

    action: Action
    filter: FilterAnswer
    phase: Phase
    asked_at: str


class CommandsAnswer(Struct, kw_only=True):
    """Bulk commands, the newest first."""

    commands: list[CommandAnswer]


_decoder: Final = msgspec.json.Decoder(CommandRequest)
_confirm_decoder: Final = msgspec.json.Decoder(ConfirmRequest)


class CommandEndpoints:
    """The endpoints under `/v1/commands`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ask(self, request: Request) -> Response:
        """POST /v1/commands."""
        check_json(request)
        asked = decode(_decoder, request.body)
        request.caller.require_namespace(parse_namespace(asked.filter.namespace))
        due_at_ms, delay_ms = times_of(asked)
        command = await self._engine.bulk_commands.ask(
            asked.action, _chosen(asked.filter), request.caller.name, due_at_ms=due_at_ms, delay_ms=delay_ms
        )
        return json_response(_shown(command), 201)

    async def list(self, request: Request) -> Response:
        """GET /v1/commands."""
        query = read_query(request.query, CommandsQuery)
        request.caller.require_listed(query.namespace)
        commands = await self._engine.bulk_commands.all(query.namespace)
        return json_response(CommandsAnswer(commands=[_shown(one) for one in commands]))

    async def get(self, request: Request) -> Response:
        """GET /v1/commands/{command}."""
        return json_response(_shown(await self._reach(request)))

    async def confirm(self, request: Request) -> Response:
        """POST /v1/commands/{command}/confirm."""
        number = (await self._reach(request)).number
        check_json(request)
        counted = decode(_confirm_decoder, request.body).counted
        return json_response(
            _shown(await self._engine.bulk_commands.confirm(number, counted, request.caller.name))
        )

    async def stop(self, request: Request) -> Response:
        """POST /v1/commands/{command}/stop."""
        number = (await self._reach(request)).number
        return json_response(_shown(await self._engine.bulk_commands.stop(number, request.caller.name)))

    async def _reach(self, request: Request) -> BulkCommand:
        """The command in the path; one of another namespace is not found."""
        id_ = str(request.params["command"])
        if not id_.isdecimal() or len(id_) > 16:
            raise NotFound("there is no such command")
        command = await self._engine.bulk_commands.get(int(id_))
        if not request.caller.covers(command.chosen.namespace):
            raise NotFound("there is no such command")
        return command


def _chosen(asked: FilterRequest) -> MessageFilter:
    destination = asked.destination
    if destination is not None and "://" not in destination:
        destination = parse_destination(destination).full
    said = {name: getattr(asked, name) for name in MessageFilter.__struct_fields__}
    return MessageFilter(
        **said
        | {
            "destination": destination,
            "due_from_ms": instant_of("due_from", asked.due_from, asked.due_from_ms),
            "due_to_ms": instant_of("due_to", asked.due_to, asked.due_to_ms),
        }
    )


def _shown(command: BulkCommand) -> CommandAnswer:
    facts = {name: getattr(command, name) for name in BulkCommandFacts.__struct_fields__ if name != "id"}
    asked_at = format_instant(command.asked_at_ms)
    chosen = FilterAnswer(**asdict(command.chosen))
    return CommandAnswer(id=str(command.number), filter=chosen, asked_at=asked_at, **facts)
