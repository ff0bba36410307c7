"""`repeat set | list | show | pause | resume | remove`: messages that are sent again and again."""

import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from tarry.cli import show
from tarry.cli.options import (
    ConfigFile,
    HeadersOption,
    JsonOption,
    Url,
    connect,
    destination_of,
    duration_ms,
    headers_of,
    instant_ms,
)
from tarry.client.blocking import Client
from tarry.client.shapes import Repeat

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the repeat in its namespace.")]
Namespace = Annotated[str, typer.Option(metavar="TENANT/NAMESPACE", help="The namespace of the repeat.")]
DEFAULT = "public/default"
_group = typer.Typer(
    name="repeat", help="Repeats: messages that are sent again and again.", no_args_is_help=True
)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    _group.command("set")(set_)
    _group.command("list")(list_)
    _group.command("show")(show_)
    _group.command("pause")(pause)
    _group.command("resume")(resume)
    _group.command("remove")(remove)
    app.add_typer(_group)


def set_(
    name: _Name,
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="A topic, or an address like https://example.org/hook.")
    ],
    payload: Annotated[str, typer.Argument(help="The text to send; - reads standard input.")] = "",
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The interval, like 90s or 1d.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="FIELDS", help='Cron, like "30 8 * * mon-fri" or @daily.')
    ] = None,
    zone: Annotated[str | None, typer.Option(help="The IANA time zone of cron, like Europe/Berlin.")] = None,
    start: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="No occurrence is before this.")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="INSTANT", help="No occurrence is after this.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="The number of occurrences in all.")] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Each occurrence is due up to so much later.")
    ] = None,
    missed: Annotated[
        Literal["all", "latest", "none"], typer.Option(help="Missed occurrences that are sent late.")
    ] = "latest",
    key: Annotated[str | None, typer.Option(help="Order key.")] = None,
    owner: Annotated[str | None, typer.Option(help="The owner; limits count by owner.")] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time after each due instant at which to give up.")
    ] = None,
    header: HeadersOption = None,
    namespace: Namespace = DEFAULT,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Begin a repeat, or change the one of that name.

    [bold]tarry repeat set standup hello "good morning" --cron "30 8 * * mon-fri" --zone Europe/Berlin[/bold]
    """
    if (every is None) == (cron is None):
        raise typer.BadParameter('say when: --every 1h, or --cron "30 8 * * mon-fri"')
    content: bytes | str = sys.stdin.buffer.read() if payload == "-" else payload
    with connect(config, url, retry_for_s=2.0) as client:
        repeat = client.set_repeat(
            name, destination_of(destination), content, every=every, cron=cron, zone=zone,
            start_at_ms=None if start is None else instant_ms(start, "--start"),
            end_at_ms=None if end is None else instant_ms(end, "--end"), count=count, jitter=jitter, missed=missed,
            headers=headers_of(header), key=key, owner=owner, namespace=namespace,
            ttl_ms=None if ttl is None else duration_ms(ttl, "--ttl"),
        )  # fmt: skip
    _print(repeat, json)


def list_(
    namespace: Annotated[
        str | None, typer.Option(metavar="TENANT/NAMESPACE", help="The namespace; without, all of them.")
    ] = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List repeats by name, with the next instant of each."""
    with connect(config, url) as client:
        repeats = list(_all(client, namespace))
    if json:
        for repeat in repeats:
            show.as_json(repeat)
        return
    if not repeats:
        show.err.print("no repeats")
        return
    show.rows(("name", "when", "state", "next", "sent", "destination"), map(_row, repeats))


def _all(client: Client, namespace: str | None) -> Iterator[Repeat]:
    page = None
    while True:
        found = client.repeats_page(namespace=namespace, page=page)
        yield from found.repeats
        page = found.next_page
        if page is None:
            return


def show_(
    name: _Name,
    namespace: Namespace = DEFAULT,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Show a repeat and its next five instants."""
    with connect(config, url) as client:
        _print(client.get_repeat(name, namespace=namespace), json)


def pause(
    name: _Name,
    namespace: Namespace = DEFAULT,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Send nothing more until the repeat is resumed."""
    with connect(config, url) as client:
        _print(client.pause_repeat(name, namespace=namespace), json)


def resume(
    name: _Name,
    namespace: Namespace = DEFAULT,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Go on; missed occurrences are sent as the repeat says."""
    with connect(config, url) as client:
        _print(client.resume_repeat(name, namespace=namespace), json)


def remove(
    name: _Name,
    namespace: Namespace = DEFAULT,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """End a repeat: no occurrence that is not due yet goes out."""
    with connect(config, url) as client:
        client.remove_repeat(name, namespace=namespace)


def _print(repeat: Repeat, json: bool) -> None:
    if json:
        show.as_json(repeat)
        return
    print(f"{show.printable(repeat.name)}  {show.printable(_when(repeat))}  {_state(repeat)}")
    print(f"to     {show.printable(repeat.destination)}")
    print(f"sent   {repeat.made}" + (f" of {repeat.count}" if repeat.count is not None else ""))
    for at, due_at_ms in enumerate(repeat.next_due_at_ms):
        due = show.instant_in(due_at_ms, repeat.zone) if repeat.zone else show.instant(due_at_ms)
        print(f"{'next' if at == 0 else '':6} {due}  {show.from_now(due_at_ms, show.now_ms())}")


def _when(repeat: Repeat) -> str:
    if repeat.cron is not None:
        return f"{repeat.cron} {repeat.zone}"
    months = f"{repeat.every_months} months " if repeat.every_months else ""
    return f"every {months}{show.span(repeat.every_ms) if repeat.every_ms else ''}".strip()


def _row(repeat: Repeat) -> tuple[str, ...]:
    name = repeat.name if repeat.namespace == DEFAULT else f"{repeat.namespace}/{repeat.name}"
    following = show.brief_instant(repeat.next_due_at_ms[0]) if repeat.next_due_at_ms else "–"
    destination = show.brief_destination(repeat.destination)
    return name, _when(repeat), _state(repeat), following, str(repeat.made), destination


def _state(repeat: Repeat) -> str:
    return f"waits: {show.printable(repeat.trouble)}" if repeat.trouble else repeat.state
