"""`schedule`, `list`, `show`, `cancel`, `send`, `restart`: the life of messages."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, TypedDict

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

from tarry.cli import show
from tarry.cli.exits import exit_code
from tarry.cli.options import (
    At,
    ConfigFile,
    HeadersOption,
    In,
    JsonOption,
    Url,
    connect,
    destination_of,
    duration_ms,
    headers_of,
    times,
)
from tarry.client.blocking import Client
from tarry.client.shapes import MessageView, Scheduled
from tarry.core.errors import TarryError
from tarry.core.shapes import MessageFacts

SHOWN_ERRORS = 10
_Id = Annotated[str | None, typer.Argument(metavar="[ID]", help="The id that schedule gave.")]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The ids that schedule gave.")]
_Name = Annotated[str | None, typer.Option("--name", help="Name of the message, instead of its id.")]
_Names = Annotated[
    list[str] | None, typer.Option("--name", help="Name of a message, instead of its id; may be repeated.")
]
_Namespace = Annotated[
    str | None, typer.Option(help="tenant/namespace of the names; public/default if it is not given.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(schedule)
    app.command("list")(list_)
    app.command("show")(show_)
    app.command()(cancel)
    app.command()(send)
    app.command()(restart)


def schedule(
    destination: Annotated[
        str | None,
        typer.Argument(metavar="DEST", help="A topic, or an address like https://example.org/hook."),
    ] = None,
    payload: Annotated[str | None, typer.Argument(help="The text to send; - reads standard input.")] = None,
    in_: In = None,
    at: At = None,
    key: Annotated[str | None, typer.Option(help="Order key.")] = None,
    owner: Annotated[str | None, typer.Option(help="The message's owner; limits count by owner.")] = None,
    namespace: Annotated[str | None, typer.Option(help="tenant/namespace, if DEST is no topic.")] = None,
    group: Annotated[
        str | None, typer.Option(help="The message's group: at most one of a group is sent.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time after the due instant at which to give up.")
    ] = None,
    header: HeadersOption = None,
    name: Annotated[
        str | None, typer.Option(help="Name of your own, for one pending message of its namespace.")
    ] = None,
    on_conflict: Annotated[
        Literal["fail", "keep", "replace"] | None,
        typer.Option(help="If a pending message has the name: fail, keep that one, or replace it."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Key; a repeated one gets the first answer.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Many: one JSON object a line; - is stdin."),
    ] = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Schedule a message, or many with --file.

    [bold]tarry schedule hello "good morning" --in 5s[/bold]
    """
    when = times(in_, at)
    ttl_ms = None if ttl is None else duration_ms(ttl, "--ttl")
    if file is not None:
        if (
            payload is not None
            or key is not None
            or group is not None
            or header
            or idempotency_key
            or name
            or on_conflict
        ):
            raise typer.BadParameter(
                "with --file only DEST, --in, --at, --owner, --namespace and --ttl are defaults"
            )
        defaults: dict[str, Any] = {"owner": owner, "namespace": namespace, "ttl_ms": ttl_ms, **when}
        if destination is not None:
            defaults["destination"] = destination_of(destination)
        with connect(config, url) as client:
            _schedule_file(client, file, defaults, json)
        return
    if destination is None:
        raise typer.BadParameter("DEST is missing")
    if not when and group is None:
        raise typer.BadParameter("say when: --in 5s, or --at 2027-01-01T00:00:00Z; --in 0s is now")
    content: bytes | str = sys.stdin.buffer.read() if payload == "-" else payload or ""
    with connect(config, url, retry_for_s=2.0) as client:
        scheduled = client.schedule(
            destination_of(destination), content, headers=headers_of(header), key=key, owner=owner,
            namespace=namespace, group=group, ttl_ms=ttl_ms, name=name, on_conflict=on_conflict,
            idempotency_key=idempotency_key, **when,
        )  # fmt: skip
    if json:
        show.as_json(scheduled)
        return
    print(scheduled.id)
    due = show.instant(scheduled.due_at_ms)
    note = " (it is past due, so it goes out now)" if scheduled.past_due else ""
    note = " (scheduled before with this key)" if scheduled.repeated else note
    note = " (a message of this name waits already, and is kept)" if scheduled.kept else note
    note = " (in the place of the one of this name that waited)" if scheduled.replaced else note
    show.err.print(f"due {due}  {show.from_now(scheduled.due_at_ms, show.now_ms())}{note}")


def _schedule_file(client: Client, file: str, defaults: dict[str, Any], json: bool) -> None:
    if file != "-" and not Path(file).is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="--file")
    total = None if file == "-" else Path(file).stat().st_size
    with sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
        columns = [
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TransferSpeedColumn(),
            TextColumn("{task.fields[count]} messages"),
        ]  # fmt: skip
        with Progress(*columns, console=show.err, transient=True) as progress:
            task = progress.add_task("scheduling", total=total, count=0)
            taken, refused = 0, []
            read = _lines(lines, lambda size: progress.update(task, advance=size))
            for number, outcome in enumerate(client.schedule_many(read, **defaults), 1):
                if isinstance(outcome, Scheduled):
                    taken += 1
                else:
                    refused.append((number, outcome))
                if json:
                    _print_outcome(number, outcome)
                if number % 1000 == 0:
                    progress.update(task, count=number)
    show.err.print(f"{taken} scheduled, {len(refused)} refused")
    for number, error in refused[:SHOWN_ERRORS]:
        show.err.print(f"  line {number}: {show.printable(str(error))}", markup=False)
    if len(refused) > SHOWN_ERRORS:
        show.err.print(f"  and {len(refused) - SHOWN_ERRORS} more; --json shows every answer")
    if refused:
        raise typer.Exit(1)


def _lines(file: BinaryIO, advanced: Callable[[int], None]) -> Iterator[bytes]:
    for line in file:
        advanced(len(line))
        yield line.rstrip(b"\r\n")


def _print_outcome(number: int, outcome: Scheduled | TarryError) -> None:
    if isinstance(outcome, Scheduled):
        show.as_json(outcome)
    else:
        show.as_json({"line": number, "error": str(outcome), "code": outcome.code})


def list_(
    state: Annotated[
        Literal["scheduled", "finalised"], typer.Option(help="State of the messages.")
    ] = "scheduled",
    owner: Annotated[str | None, typer.Option(help="Only messages of this owner.")] = None,
    destination: Annotated[str | None, typer.Option(help="Only messages to this destination.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only messages of this tenant/namespace.")] = None,
    key: Annotated[str | None, typer.Option(help="Only messages with this order key.")] = None,
    group: Annotated[str | None, typer.Option(help="Only messages of this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List messages, the next due first."""
    where = None if destination is None else destination_of(destination)
    now = show.now_ms()
    with connect(config, url) as client:
        found = client.list(
            state=state, owner=owner, destination=where, namespace=namespace, key=key, group=group,
            limit=min(limit, 1000),
        )  # fmt: skip
        messages = islice(found, limit)
        if json:
            for message in messages:
                show.as_json(_fields(message))
            return
        lines = [
            (
                message.id, message.state, show.brief_instant(message.due_at_ms),
                show.from_now(message.due_at_ms, now), show.brief_destination(message.destination),
                message.owner, message.key, message.group, message.attempts or "", message.reason or message.last_error,
            )
            for message in messages
        ]  # fmt: skip
    if not lines:
        show.err.print("no messages")
        return
    show.rows(("id", "state", "due", "", "destination", "owner", "key", "group", "attempts", "reason"), lines)
    if len(lines) == limit:
        show.err.print(f"the first {limit}; --limit shows more")


def show_(
    id_: _Id = None,
    name: _Name = None,
    namespace: _Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Show one message: its schedule, its state and its outcome."""
    (one,) = _named([id_] if id_ else [], [name] if name else [], namespace, most=1)
    with connect(config, url) as client:
        message = client.get(**one)
    _show(message, json)


def cancel(
    ids: _Ids = None,
    name: _Names = None,
    namespace: _Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Cancel messages. A message whose cancel was answered never goes out."""
    _each(_named(ids, name, namespace), lambda client, one: client.cancel(**one), json, url, config)


def send(
    ids: _Ids = None,
    name: _Names = None,
    namespace: _Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Send messages now instead of when they are due."""
    _each(_named(ids, name, namespace), lambda client, one: client.send(**one), json, url, config)


def restart(
    ids: _Ids = None,
    in_: In = None,
    at: At = None,
    name: _Names = None,
    namespace: _Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Restart messages: their original delay again, or a new time with --in or --at."""
    when = times(in_, at)
    _each(_named(ids, name, namespace), lambda client, one: client.restart(**one, **when), json, url, config)


class _Named(TypedDict, total=False):
    """A message as the client is told which one: by its id, or by its name."""

    id: str
    name: str
    namespace: str | None


def _named(
    ids: list[str] | None, names: list[str] | None, namespace: str | None, most: int | None = None
) -> list[_Named]:
    """The messages that a command is about."""
    found: list[_Named] = [{"id": id_} for id_ in ids or ()]
    found += [{"name": name, "namespace": namespace} for name in names or ()]
    if not found:
        raise typer.BadParameter("say which message: its ID, or --name")
    if most is not None and len(found) > most:
        raise typer.BadParameter("give the ID of a message, or --name")
    if namespace is not None and not names:
        raise typer.BadParameter("--namespace is for --name; an ID is of one message everywhere")
    return found


def _each(
    messages: list[_Named],
    operate: Callable[[Client, _Named], MessageView],
    json: bool,
    url: str | None,
    config: str | None,
) -> None:
    """Do it to each; one that fails does not keep the others from being done, and its error is told."""
    failed: TarryError | None = None
    with connect(config, url) as client:
        for one in messages:
            try:
                message = operate(client, one)
            except TarryError as error:
                if len(messages) == 1:
                    raise
                called = one.get("id") or one["name"]
                show.err.print(f"{show.printable(called)}: {error}", markup=False)
                failed = error
                continue
            if json:
                show.as_json(_fields(message))
            else:
                due = "" if message.finalised_at_ms else f"  due {show.instant(message.due_at_ms)}"
                show.out.print(f"{message.id}  {message.state}{due}", markup=False)
    if failed is not None:
        # Each error was told beside its id.
        raise typer.Exit(exit_code(failed))


def _fields(message: MessageView) -> dict[str, Any]:
    shown = {name: getattr(message, name) for name in message.__struct_fields__}
    text = shown.pop("payload_text")
    if text is not None:
        shown["payload"] = text
    return {name: value for name, value in shown.items() if value is not None}


def _show(message: MessageView, json: bool) -> None:
    if json:
        show.as_json(_fields(message))
        return
    now = show.now_ms()
    show.facts(
        [
            *(
                (_label(name), _told(name, getattr(message, name), now))
                for name in MessageFacts.__struct_fields__
            ),
            *(("header", show.printable(f"{k}: {v}")) for k, v in (message.headers or {}).items()),
            ("payload", show.payload(message.payload) if message.has_payload else None),
        ]
    )


def _label(name: str) -> str:
    """The name of a field for people: without its unit."""
    return _LABELS.get(name) or name.removesuffix("_ms").removesuffix("_at").replace("_", " ")


def _told(name: str, value: Any, now: int) -> str | None:
    """The value of a field for people, by the unit in its name; None for one that says nothing."""
    if name == "due_at_ms" or (name.endswith("_at_ms") and value is not None):
        return f"{show.instant(value)}  {show.from_now(value, now)}"
    if name.endswith("_ms"):
        return None if value is None else show.span(value)
    return show.printable(str(value)) if value else None


_LABELS: Final = {"ttl_ms": "time to live"}
