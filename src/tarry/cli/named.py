"""Messages that a command is about: by their ids, or by their names."""

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import typer

from tarry.cli import show
from tarry.cli.exits import exit_code
from tarry.cli.options import connect
from tarry.client.blocking import Client
from tarry.client.shapes import MessageView
from tarry.core.errors import TarryError

Id = Annotated[str | None, typer.Argument(metavar="[ID]", help="The id that schedule gave.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The ids that schedule gave.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the message, instead of its id.")]
Names = Annotated[
    list[str] | None, typer.Option("--name", help="Name of a message, instead of its id; may be repeated.")
]
Namespace = Annotated[
    str | None, typer.Option(help="tenant/namespace of the names; public/default if it is not given.")
]


class Named(TypedDict, total=False):
    """A message as the client is told which one: by its id, or by its name."""

    id: str
    name: str
    namespace: str | None


def named(
    ids: list[str] | None, names: list[str] | None, namespace: str | None, most: int | None = None
) -> list[Named]:
    """The messages that a command is about."""
    found: list[Named] = [{"id": id_} for id_ in ids or ()]
    found += [{"name": name, "namespace": namespace} for name in names or ()]
    if not found:
        raise typer.BadParameter("say which message: its ID, or --name")
    if most is not None and len(found) > most:
        raise typer.BadParameter("give the ID of a message, or --name")
    if namespace is not None and not names:
        raise typer.BadParameter("--namespace is for --name; an ID is of one message everywhere")
    return found


def each(
    messages: list[Named],
    operate: Callable[[Client, Named], MessageView],
    json: bool,
    url: str | None,
    config: str | None,
    told: Callable[[MessageView], str] | None = None,
) -> None:
    """Do it to each; one that fails does not keep the others from being done, and its error is told.

    `told` says of a message what has become of it; its state and due instant if nothing else is given.
    """
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
                show.as_json(fields(message))
            else:
                show.out.print(f"{message.id}  {(told or _due)(message)}", markup=False)
    if failed is not None:
        # Each error was told beside its id.
        raise typer.Exit(exit_code(failed))


def _due(message: MessageView) -> str:
    """The state of a message, and when it is due or what keeps it if it waits."""
    if message.finalised_at_ms:
        return message.state
    if message.paused == "message":
        return f"{message.state}  paused"
    held = f"  its {message.paused} is paused" if message.paused else ""
    return f"{message.state}  due {show.instant(message.due_at_ms)}{held}"


def fields(message: MessageView) -> dict[str, Any]:
    """A message for machines: the fields that say something."""
    shown = {name: getattr(message, name) for name in message.__struct_fields__}
    text = shown.pop("payload_text")
    if text is not None:
        shown["payload"] = text
    return {name: value for name, value in shown.items() if value is not None}
