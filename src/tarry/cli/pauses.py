"""`pause`, `resume`, `pauses`: messages, topics, owners and destinations that wait until they are resumed."""

from typing import Annotated

import typer

from tarry.cli import show
from tarry.cli.named import Ids, Names, each, named
from tarry.cli.options import ConfigFile, JsonOption, Url, connect, topic_of
from tarry.client.shapes import Pause

_Topic = Annotated[str | None, typer.Option(help="A topic, with all its partitions.")]
_Owner = Annotated[str | None, typer.Option(help="An owner in the namespace.")]
_Destination = Annotated[
    str | None, typer.Option(help="An address like https://example.org/hook, or all of a host.")
]
_Namespace = Annotated[
    str | None, typer.Option(help="tenant/namespace of the names, the owner or the destination.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(pause)
    app.command()(resume)
    app.command("pauses")(list_)


def pause(
    ids: Ids = None,
    name: Names = None,
    topic: _Topic = None,
    owner: _Owner = None,
    destination: _Destination = None,
    namespace: _Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Pause messages by ID or --name, or all of a --topic, an --owner or a --destination.

    What is left of a paused message's delay is frozen. Messages of a paused topic, owner or destination wait once they are due.
    """
    if not _is_place(ids, name, topic, owner, destination):
        each(named(ids, name, namespace), lambda client, one: client.pause(**one), json, url, config)
        return
    place = _place(topic, owner, destination, namespace)
    with connect(config, url) as client:
        _print(client.pause_place(**place), json)


def resume(
    ids: Ids = None,
    name: Names = None,
    topic: _Topic = None,
    owner: _Owner = None,
    destination: _Destination = None,
    namespace: _Namespace = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Resume messages by ID or --name, or all of a --topic, an --owner or a --destination."""
    if not _is_place(ids, name, topic, owner, destination):
        each(named(ids, name, namespace), lambda client, one: client.resume(**one), json, url, config)
        return
    place = _place(topic, owner, destination, namespace)
    with connect(config, url) as client:
        _print(client.resume_place(**place), json)


def list_(
    namespace: Annotated[str | None, typer.Option(help="Only places of this tenant/namespace.")] = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List paused topics, owners and destinations."""
    with connect(config, url) as client:
        places = client.pauses(namespace=namespace)
    if json:
        for place in places:
            show.as_json(place)
        return
    if not places:
        show.err.print("nothing is paused")
        return
    show.rows(
        ("kind", "place", "namespace", "since", "state"),
        [
            (one.kind, show.brief_destination(one.name), one.namespace, show.brief_instant(one.since_ms), _state(one))
            for one in places
        ],
    )  # fmt: skip


def _is_place(
    ids: list[str] | None,
    names: list[str] | None,
    topic: str | None,
    owner: str | None,
    destination: str | None,
) -> bool:
    places = [one for one in (topic, owner, destination) if one is not None]
    if len(places) > 1 or (places and (ids or names)):
        raise typer.BadParameter("give IDs and names, or one of --topic, --owner and --destination")
    return bool(places)


def _place(
    topic: str | None, owner: str | None, destination: str | None, namespace: str | None
) -> dict[str, str | None]:
    """The place as the client is told which one."""
    full = None if topic is None else topic_of(topic)
    return {"topic": full, "owner": owner, "destination": destination, "namespace": namespace}


def _state(place: Pause) -> str:
    return "resumed: its messages are coming back" if place.resumed else "paused"


def _print(place: Pause, json: bool) -> None:
    if json:
        show.as_json(place)
    else:
        show.out.print(
            f"{place.kind} {show.brief_destination(place.name)} in {place.namespace}: {_state(place)}",
            markup=False,
        )
