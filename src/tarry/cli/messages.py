"""`schedule`, `list`, `show`, `cancel`, `send`, `restart`: the life of messages."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

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
Id = Annotated[str, typer.Argument(metavar="ID", help="The id that schedule gave.")]
_Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The ids that schedule gave.")]


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
        if payload is not None or key is not None or group is not None or header or idempotency_key:
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
            namespace=namespace, group=group, ttl_ms=ttl_ms, idempotency_key=idempotency_key, **when,
        )  # fmt: skip
    if json:
        show.as_json(scheduled)
        return
    print(scheduled.id)
    due = show.instant(scheduled.due_at_ms)
    note = " (it is past due, so it goes out now)" if scheduled.past_due else ""
    note = " (scheduled before with this key)" if scheduled.repeated else note
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


def show_(id_: Id, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Show one message: its schedule, its state and its outcome."""
    with connect(config, url) as client:
        message = client.get(id_)
    _show(message, json)


def cancel(ids: _Ids, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Cancel messages. A message whose cancel was answered never goes out."""
    _each(ids, lambda client, id_: client.cancel(id_), json, url, config)


def send(ids: _Ids, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Send messages now instead of when they are due."""
    _each(ids, lambda client, id_: client.send(id_), json, url, config)


def restart(
    ids: _Ids,
    in_: In = None,
    at: At = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Restart messages: their original delay again, or a new time with --in or --at."""
    when = times(in_, at)
    _each(ids, lambda client, id_: client.restart(id_, **when), json, url, config)


def _each(
    ids: list[str],
    operate: Callable[[Client, str], MessageView],
    json: bool,
    url: str | None,
    config: str | None,
) -> None:
    """Do it to each; one that fails does not keep the others from being done, and its error is told."""
    failed: TarryError | None = None
    with connect(config, url) as client:
        for id_ in ids:
            try:
                message = operate(client, id_)
            except TarryError as error:
                if len(ids) == 1:
                    raise
                show.err.print(f"{show.printable(id_)}: {error}", markup=False)
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
