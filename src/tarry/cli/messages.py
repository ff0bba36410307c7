"""`schedule`, `list`, `show`, `cancel`, `send`, `restart`: the life of messages."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

from tarry.cli import show
from tarry.cli.named import Id, Ids, Name, Names, Namespace, each, fields, named
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
    instant_ms,
    times,
)
from tarry.client.blocking import Client
from tarry.client.shapes import MessageView, Scheduled
from tarry.core.errors import TarryError
from tarry.core.messages.shapes import MessageFacts

SHOWN_ERRORS = 10


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(schedule)
    app.command("list")(list_)
    app.command("show")(show_)
    app.command()(cancel)
    app.command()(send)
    app.command()(restart)
    app.command()(retry)


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
    note = " (scheduled before with this key: nothing new)" if scheduled.repeated else note
    note = " (a message of this name is scheduled already: nothing new)" if scheduled.kept else note
    note = " (replaces the message of this name)" if scheduled.replaced else note
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
        with Progress(
            *columns, console=show.err, transient=True, disable=not show.err.is_terminal
        ) as progress:
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
        Literal["scheduled", "retrying", "finalised"],
        typer.Option(help="State of the messages; retrying: wait for another attempt."),
    ] = "scheduled",
    outcome: Annotated[
        Literal["sent", "cancelled", "failed"] | None,
        typer.Option(help="Only finalised messages that ended so."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only messages of this owner.")] = None,
    destination: Annotated[str | None, typer.Option(help="Only messages to this destination.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only messages of this tenant/namespace.")] = None,
    key: Annotated[str | None, typer.Option(help="Only messages with this order key.")] = None,
    key_prefix: Annotated[str | None, typer.Option(help="Only messages whose order key begins so.")] = None,
    group: Annotated[str | None, typer.Option(help="Only messages of this group.")] = None,
    door: Annotated[str | None, typer.Option(help="Only messages of this door, like http or pulsar.")] = None,
    due_from: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only messages due at or after this.")
    ] = None,
    due_to: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only messages due before this.")
    ] = None,
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
            state="finalised" if outcome else state, outcome=outcome, owner=owner, destination=where,
            namespace=namespace, key=key, key_prefix=key_prefix, group=group, door=door,
            due_from_ms=None if due_from is None else instant_ms(due_from, "--due-from"),
            due_to_ms=None if due_to is None else instant_ms(due_to, "--due-to"), limit=min(limit, 1000),
        )  # fmt: skip
        messages = islice(found, limit)
        if json:
            for message in messages:
                show.as_json(fields(message))
            return
        lines = [
            (
                message.id, message.state, show.brief_instant(message.due_at_ms),
                show.from_now(message.due_at_ms, now), show.brief_destination(message.destination),
                message.owner, message.key, message.group, message.paused, message.attempts or "",
                _next_attempt(message, now), message.reason or message.last_error,
            )
            for message in messages
        ]  # fmt: skip
    if not lines:
        show.err.print("no messages")
        return
    show.rows(
        (
            "id", "state", "due", "", "destination", "owner", "key", "group", "paused", "attempts", "next attempt", "reason",
        ),
        lines,
    )  # fmt: skip
    if len(lines) == limit:
        show.err.print(f"the first {limit}; --limit shows more")


def _next_attempt(message: MessageView, now: int) -> str:
    at_ms = message.next_attempt_at_ms
    return "" if at_ms is None else show.from_now(at_ms, now)


def show_(
    id_: Id = None,
    name: Name = None,
    namespace: Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Show one message: its schedule, its state and its outcome."""
    (one,) = named([id_] if id_ else [], [name] if name else [], namespace, most=1)
    with connect(config, url) as client:
        message = client.get(**one)
    _show(message, json)


def cancel(
    ids: Ids = None,
    name: Names = None,
    namespace: Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Cancel messages. A message whose cancel was answered never goes out."""
    each(named(ids, name, namespace), lambda client, one: client.cancel(**one), json, url, config)


def send(
    ids: Ids = None,
    name: Names = None,
    namespace: Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Send messages now instead of when they are due."""
    each(named(ids, name, namespace), lambda client, one: client.send(**one), json, url, config, _goes_out)


def _goes_out(message: MessageView) -> str:
    if message.paused:
        return f"goes out when its {message.paused} is resumed"
    return "goes out now"


def restart(
    ids: Ids = None,
    in_: In = None,
    at: At = None,
    name: Names = None,
    namespace: Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Restart messages: their original delay again, or a new time with --in or --at."""
    when = times(in_, at)
    each(named(ids, name, namespace), lambda client, one: client.restart(**one, **when), json, url, config)


def retry(
    ids: Ids = None,
    in_: In = None,
    at: At = None,
    name: Names = None,
    namespace: Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Send messages that have failed once more: now, or at a new time with --in or --at."""
    when = times(in_, at)
    each(named(ids, name, namespace), lambda client, one: client.retry(**one, **when), json, url, config)


def _show(message: MessageView, json: bool) -> None:
    if json:
        show.as_json(fields(message))
        return
    now = show.now_ms()
    show.facts(
        [
            *(
                (_label(name), _told(name, getattr(message, name), now))
                for name in MessageFacts.__struct_fields__
                if name != "attempts_made"
            ),
            *(
                (
                    f"attempt {one.number or ''}".rstrip(),
                    f"{show.instant(one.at_ms)}  {show.printable(one.error)}",
                )
                for one in message.attempts_made
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
