"""`bulk`: many messages from a file, scheduled as one batch; list, show and cancel batches."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from tarry.cli import show
from tarry.cli.options import ConfigFile, JsonOption, Url, connect
from tarry.client.blocking import Client
from tarry.client.bulk import Batch
from tarry.core.errors import Conflict, Rejected

if TYPE_CHECKING:
    from tarry.index.incoming import Mapping
    from tarry.index.manifest import BatchManifest, StagingPlace

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The batch's name.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    bulk = typer.Typer(help="Schedule many messages from a file as one batch.", no_args_is_help=True)
    bulk.command()(schedule)
    bulk.command("list")(list_)
    bulk.command("show")(show_)
    bulk.command()(cancel)
    app.add_typer(bulk, name="bulk")


def schedule(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet, CSV or NDJSON.")],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the batch (default: the file name). The same name twice schedules once."),
    ] = None,
    format: Annotated[
        Literal["parquet", "csv", "ndjson"] | None,
        typer.Option(help="Format of the file, if its name does not end in it."),
    ] = None,
    destination: Annotated[
        str | None, typer.Option(metavar="DEST", help="Destination of rows that name none.")
    ] = None,
    owner: Annotated[str, typer.Option(help="Owner of rows that name none.")] = "",
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of rows that name none and go to no topic.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Zone of due instants that have none.")] = "UTC",
    due_column: Annotated[str | None, typer.Option(help="The column of due instants, if not due.")] = None,
    delay_column: Annotated[
        str | None, typer.Option(help="The column of delays in milliseconds, if not delay_ms.")
    ] = None,
    payload_column: Annotated[
        str | None, typer.Option(help="The column of payloads, if not payload.")
    ] = None,
    destination_column: Annotated[str | None, typer.Option(help="The column of destinations.")] = None,
    namespace_column: Annotated[str | None, typer.Option(help="The column of namespaces.")] = None,
    owner_column: Annotated[str | None, typer.Option(help="The column of owners.")] = None,
    key_column: Annotated[str | None, typer.Option(help="The column of order keys.")] = None,
    headers_column: Annotated[
        str | None, typer.Option(help="The column of headers, as maps of strings.")
    ] = None,
    ttl_column: Annotated[
        str | None, typer.Option(help="The column of times to live, if not ttl_ms.")
    ] = None,
    ignore_unknown: Annotated[
        bool, typer.Option(help="Ignore columns that are not a message's field.")
    ] = False,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Schedule every row of a file, or none if one row is bad.

    [bold]tarry bulk schedule letters.parquet --due-column send_at --payload-column body --destination letters[/bold]
    """
    # Late: no other command waits for Arrow to be loaded.
    from tarry.index.incoming import Mapping
    from tarry.index.rowfiles import format_of

    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    given = {
        "due": due_column, "delay_ms": delay_column, "payload": payload_column, "destination": destination_column,
        "namespace": namespace_column, "owner": owner_column, "key": key_column, "headers": headers_column,
        "ttl_ms": ttl_column,
    }  # fmt: skip
    mapping = Mapping(
        columns={field: column for field, column in given.items() if column is not None},
        destination=destination, namespace=namespace, owner=owner, timezone=timezone,
    )  # fmt: skip
    with connect(config, url, retry_for_s=5.0) as client:
        batch = _schedule(
            client, file, name or file.name, format_of(str(file), format), mapping, ignore_unknown
        )
    if json:
        show.as_json(batch)
    elif batch.repeated:
        show.out.print(f"{batch.name}: was scheduled before, with {batch.count} messages", markup=False)
    else:
        show.out.print(f"{batch.name}: {batch.count} messages scheduled", markup=False)


def _schedule(
    client: Client, file: Path, name: str, format_: str, mapping: "Mapping", ignore_unknown: bool
) -> Batch:
    from tarry.index.manifest import StagingPlace, new_token
    from tarry.index.staging import remove_staged

    place = msgspec.convert(client.place_of_batch(name), StagingPlace)
    token = new_token(name)
    try:
        manifest = _stage(place, file, name, token, format_, mapping, ignore_unknown)
        batch = client.adopt_batch(name, manifest)
    except (Rejected, Conflict, KeyboardInterrupt):
        # Nothing was adopted, or nothing was asked for yet; in doubt retention removes it when it is old.
        remove_staged(place, token)
        raise
    if batch.repeated:
        remove_staged(place, token)
    return batch


def _stage(
    place: "StagingPlace",
    file: Path,
    name: str,
    token: str,
    format_: str,
    mapping: "Mapping",
    ignore_unknown: bool,
) -> "BatchManifest":
    from tarry.index.rowfiles import read_rows
    from tarry.index.staging import Stager, manifest_of

    columns = [
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rows]} rows"), TimeRemainingColumn(),
    ]  # fmt: skip
    stager = Stager(place, mapping, name, token)
    with Progress(*columns, console=show.err, transient=True, disable=not show.err.is_terminal) as progress:
        task = progress.add_task("staging", total=1.0, rows=0)
        rows = read_rows(
            os.fspath(file), format_, mapping, lambda share: progress.update(task, completed=share),
            ignore_unknown=ignore_unknown,
        )  # fmt: skip
        for batch in rows:
            if not stager.add(batch):
                break
            progress.update(task, rows=stager.rows)
        staged = stager.finish()
        manifest = manifest_of(place, [staged])
        if not staged.rows:
            raise Rejected(f"{file.name}: has no rows")
        progress.update(task, description="adopting")
    return manifest


def list_(
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of batches.")] = 50,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List batches, the newest first."""
    with connect(config, url) as client:
        found = list(_batches(client, limit))
    if json:
        for batch in found:
            show.as_json(batch)
    elif not found:
        show.err.print("no batches")
    else:
        lines = [
            (batch.name, batch.count, batch.remaining, show.brief_instant(batch.adopted_at_ms),
             show.brief_instant(batch.last_due_at_ms), _state(batch))
            for batch in found
        ]  # fmt: skip
        show.rows(("name", "messages", "remaining", "adopted", "last due", "state"), lines)


def _batches(client: Client, limit: int) -> Iterator[Batch]:
    page: int | None = None
    while limit:
        found = client.batches(limit=min(limit, 1000), page=page)
        yield from found.batches
        limit -= len(found.batches)
        page = found.next_page
        if page is None:
            return


def show_(name: _Name, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Show a batch, and how many of its messages are left."""
    with connect(config, url) as client:
        _show(client.batch(name), json)


def cancel(name: _Name, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Cancel every message of a batch that has not ended."""
    with connect(config, url) as client:
        _show(client.cancel_batch(name), json)


def _show(batch: Batch, json: bool) -> None:
    if json:
        show.as_json(batch)
        return
    show.facts(
        [
            ("name", show.printable(batch.name)),
            ("state", _state(batch)),
            ("messages", batch.count),
            ("remaining", str(batch.remaining)),
            ("cancelled", batch.cancelled or None),
            ("adopted", show.instant(batch.adopted_at_ms)),
            ("last due", show.instant(batch.last_due_at_ms)),
            ("namespaces", ", ".join(batch.namespaces)),
        ]
    )


def _state(batch: Batch) -> str:
    if batch.cancelled_at_ms is not None:
        return "cancelled"
    return "scheduled" if batch.remaining else "ended"
