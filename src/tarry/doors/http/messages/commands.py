"""Bulk commands: ask for one, look at its count, confirm it, watch it, stop it."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from tarry.core.bulk_command import Action, BulkCommand, ChosenState, MessageFilter, Phase
from tarry.core.errors import Invalid, NotFound
from tarry.core.names import DEFAULT_NAMESPACE, parse_destination, parse_namespace
from tarry.core.times import format_instant, parse_instant_ms
from tarry.doors.http.bodies import check_json, decode, read_query, times_of
from tarry.doors.http.responses import json_response
from tarry.doors.http.shapes import MAX_EXACT_INT, Instant, Milliseconds, Taken, Times
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response


class FilterRequest(Taken, kw_only=True):
    """Which messages are meant; what is not given does not filter."""

    state: ChosenState = "scheduled"
    """`retrying`: of those that are scheduled, the ones that wait for another attempt. `failed` is for retries."""
    namespace: str = DEFAULT_NAMESPACE
    owner: str | None = None
    key: str | None = None
    key_prefix: str | None = None
    destination: str | None = None
    door: str | None = None
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


class CommandAnswer(Struct, kw_only=True):
    """A bulk command: what was asked for, by whom and when, and how far it has come."""

    id: str
    action: Action
    filter: MessageFilter
    phase: Phase
    """`counting`, `counted` until it is confirmed, `running`, then `done` or `stopped`."""
    counted: int
    done: int
    passed: int
    """Messages that had ended by then, or whose state did not allow it."""
    due_at_ms: int | None
    delay_ms: int | None
    asked_by: str
    asked_at_ms: int
    asked_at: str
    confirmed_by: str | None
    confirmed_at_ms: int | None
    ended_by: str | None
    """Who stopped it."""
    ended_at_ms: int | None


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
        check_json(request.header(b"content-type"))
        asked = decode(_decoder, request.body)
        request.caller.require_namespace(parse_namespace(asked.filter.namespace))
        due_at_ms, delay_ms = times_of(asked)
        command = await self._engine.bulk_commands.ask(
            asked.action, _chosen(asked.filter), request.caller.name, due_at_ms=due_at_ms, delay_ms=delay_ms
        )
        return json_response(_shown(command), 201)

    async def list(self, request: Request) -> Response:
        """GET /v1/commands."""
        caller = request.caller
        query = read_query(request.query, CommandsQuery)
        if query.namespace is not None:
            caller.require_namespace(parse_namespace(query.namespace))
        elif caller.namespaces is not None:
            raise Invalid("namespace", "name the namespace to list; the token does not reach all of them")
        commands = await self._engine.bulk_commands.all(query.namespace)
        return json_response(CommandsAnswer(commands=[_shown(one) for one in commands]))

    async def get(self, request: Request) -> Response:
        """GET /v1/commands/{command}."""
        return json_response(_shown(await self._reach(request)))

    async def confirm(self, request: Request) -> Response:
        """POST /v1/commands/{command}/confirm."""
        number = (await self._reach(request)).number
        check_json(request.header(b"content-type"))
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
    return MessageFilter(
        state=asked.state, namespace=asked.namespace, owner=asked.owner, key=asked.key, key_prefix=asked.key_prefix,
        destination=destination, door=asked.door, due_from_ms=_instant("due_from", asked.due_from, asked.due_from_ms),
        due_to_ms=_instant("due_to", asked.due_to, asked.due_to_ms),
    )  # fmt: skip


def _instant(field: str, text: str | None, at_ms: int | None) -> int | None:
    if text is not None and at_ms is not None:
        raise Invalid(field, f"give {field} or {field}_ms, not both")
    return at_ms if text is None else parse_instant_ms(text, field)


def _shown(command: BulkCommand) -> CommandAnswer:
    return CommandAnswer(
        id=str(command.number), action=command.action, filter=command.chosen, phase=command.phase,
        counted=command.counted, done=command.done, passed=command.passed, due_at_ms=command.due_at_ms,
        delay_ms=command.delay_ms, asked_by=command.asked_by, asked_at_ms=command.asked_at_ms,
        asked_at=format_instant(command.asked_at_ms), confirmed_by=command.confirmed_by,
        confirmed_at_ms=command.confirmed_at_ms, ended_by=command.ended_by, ended_at_ms=command.ended_at_ms,
    )  # fmt: skip
