"""`commands cancel | move | send | retry | list | show | stop`: commands for all messages that a filter chooses."""

import contextlib
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tarry.cli import show
from tarry.cli.options import (
    At,
    ConfigFile,
    In,
    JsonOption,
    Url,
    connect,
    destination_of,
    instant_ms,
    times,
)
from tarry.client.blocking import Client
from tarry.client.shapes import BulkCommand

LOOK_EVERY_S: Final = 0.2

_group = typer.Typer(
    name="commands",
    help="Commands for all messages that a filter chooses: counted, confirmed, carried out.",
    no_args_is_help=True,
)
_State = Annotated[
    Literal["scheduled", "retrying"],
    typer.Option(help="State of the messages; retrying: wait for another attempt."),
]
_Namespace = Annotated[
    str | None, typer.Option(help="tenant/namespace of the messages; else public/default.")
]
_Owner = Annotated[str | None, typer.Option(help="Only messages of this owner.")]
_Key = Annotated[str | None, typer.Option(help="Only messages with this order key.")]
_KeyPrefix = Annotated[str | None, typer.Option(help="Only messages whose order key begins so.")]
_Destination = Annotated[str | None, typer.Option(help="Only messages to this destination.")]
_Door = Annotated[str | None, typer.Option(help="Only messages of this door, like http or pulsar.")]
_DueFrom = Annotated[str | None, typer.Option(metavar="INSTANT", help="Only messages due at or after this.")]
_DueTo = Annotated[str | None, typer.Option(metavar="INSTANT", help="Only messages due before this.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Carry it out without asking.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the command.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    for name in ("cancel", "send", "move", "retry"):
        _group.command(name)(_COMMANDS[name])
    _group.command("list")(list_)
    _group.command("show")(show_)
    _group.command("stop")(stop)
    app.add_typer(_group)


def cancel(
    state: _State = "scheduled", namespace: _Namespace = None, owner: _Owner = None, key: _Key = None,
    key_prefix: _KeyPrefix = None, destination: _Destination = None, door: _Door = None, due_from: _DueFrom = None,
    due_to: _DueTo = None, yes: _Yes = False, json: JsonOption = False, url: Url = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Cancel all messages that the options choose."""
    chosen = _chosen(state, namespace, owner, key, key_prefix, destination, door, due_from, due_to)
    _carry_out("cancel", chosen, yes, json, url, config)


def send(
    state: _State = "scheduled", namespace: _Namespace = None, owner: _Owner = None, key: _Key = None,
    key_prefix: _KeyPrefix = None, destination: _Destination = None, door: _Door = None, due_from: _DueFrom = None,
    due_to: _DueTo = None, yes: _Yes = False, json: JsonOption = False, url: Url = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Send all messages that the options choose now."""
    chosen = _chosen(state, namespace, owner, key, key_prefix, destination, door, due_from, due_to)
    _carry_out("send", chosen, yes, json, url, config)


def move(
    in_: In = None, at: At = None,
    state: _State = "scheduled", namespace: _Namespace = None, owner: _Owner = None, key: _Key = None,
    key_prefix: _KeyPrefix = None, destination: _Destination = None, door: _Door = None, due_from: _DueFrom = None,
    due_to: _DueTo = None, yes: _Yes = False, json: JsonOption = False, url: Url = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Give all messages that the options choose another due instant: --in or --at."""
    when = times(in_, at)
    if not when:
        raise typer.BadParameter("say when: --in 5s, or --at 2027-01-01T00:00:00Z")
    chosen = _chosen(state, namespace, owner, key, key_prefix, destination, door, due_from, due_to)
    _carry_out("move", chosen | when, yes, json, url, config)


def retry(
    in_: In = None, at: At = None,
    namespace: _Namespace = None, owner: _Owner = None, key: _Key = None, key_prefix: _KeyPrefix = None,
    destination: _Destination = None, door: _Door = None, due_from: _DueFrom = None, due_to: _DueTo = None,
    yes: _Yes = False, json: JsonOption = False, url: Url = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Send all failed messages that the options choose once more: now, or at a new time."""
    chosen = _chosen("failed", namespace, owner, key, key_prefix, destination, door, due_from, due_to)
    _carry_out("retry", chosen | times(in_, at), yes, json, url, config)


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "cancel": cancel,
    "send": send,
    "move": move,
    "retry": retry,
}


def list_(
    namespace: Annotated[str | None, typer.Option(help="Only commands on this tenant/namespace.")] = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List commands: who asked for them, when, and how far they are."""
    with connect(config, url) as client:
        found = client.commands(namespace=namespace)
    if json:
        for one in found:
            show.as_json(one)
        return
    if not found:
        show.err.print("no commands")
        return
    show.rows(
        ("id", "action", "state", "counted", "done", "passed", "asked", "by", "filter"),
        [
            (
                one.id, one.action, one.phase, one.counted, one.done, one.passed, show.brief_instant(one.asked_at_ms),
                one.asked_by, " ".join(_told(name, value) for name, value in one.filter.items()),
            )
            for one in found
        ],
    )  # fmt: skip


def show_(id_: _Id, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Show a command: its count, and how much of it is done."""
    with connect(config, url) as client:
        _print(client.get_command(id_), json)


def stop(id_: _Id, json: JsonOption = False, url: Url = None, config: ConfigFile = None) -> None:
    """Stop a command where it is. What it has done stays done."""
    with connect(config, url) as client:
        _print(client.stop_command(id_), json)


def _chosen(
    state: str, namespace: str | None, owner: str | None, key: str | None, key_prefix: str | None, destination: str | None,
    door: str | None, due_from: str | None, due_to: str | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "state": state, "namespace": namespace, "owner": owner, "key": key, "key_prefix": key_prefix, "door": door,
        "destination": None if destination is None else destination_of(destination),
        "due_from_ms": None if due_from is None else instant_ms(due_from, "--due-from"),
        "due_to_ms": None if due_to is None else instant_ms(due_to, "--due-to"),
    }  # fmt: skip


def _carry_out(
    action: Any, asked: dict[str, Any], yes: bool, json: bool, url: str | None, config: str | None
) -> None:
    """Have the messages counted, ask, and watch the command; one that is left with Ctrl-C is stopped."""
    with connect(config, url) as client:
        command = client.ask_command(action, **asked)
        try:
            command = _watch(client, command, "counting")
            if command.phase == "counted" and not yes:
                question = f"{action} {command.counted} messages?"
                if not typer.confirm(question, err=True):
                    raise KeyboardInterrupt
            if command.phase == "counted":
                command = client.confirm_command(command.id, command.counted)
                command = _watch(client, command, "running")
        except (KeyboardInterrupt, typer.Abort):
            with contextlib.suppress(Exception):
                command = client.stop_command(command.id)
            _print(command, json)
            raise typer.Exit(130) from None
    _print(command, json)


def _told(name: str, value: Any) -> str:
    """A field of a filter for people."""
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms')}={show.instant(value)}"
    return f"{name}={value}"


def _watch(client: Client, command: BulkCommand, phase: str) -> BulkCommand:
    """Wait until a command has left a phase, and show how far it is."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, console=show.err, transient=True, disable=not show.err.is_terminal) as progress:
        task = progress.add_task(phase, total=None)
        while command.phase == phase:
            total = None if phase == "counting" else command.counted
            at = command.counted if phase == "counting" else command.done + command.passed
            progress.update(task, total=total, completed=at)
            time.sleep(LOOK_EVERY_S)
            command = client.get_command(command.id)
    return command


def _print(command: BulkCommand, json: bool) -> None:
    if json:
        show.as_json(command)
        return
    passed = f", {command.passed} passed over" if command.passed else ""
    show.out.print(
        f"{command.id}  {command.action} {command.phase}: {command.done} of {command.counted} messages{passed}",
        markup=False,
    )
