"""Options that several commands share, and the client that they lead to."""

import os
from typing import Annotated, Any, TypedDict

import typer

from tarry.client.blocking import Client
from tarry.config import load
from tarry.config.server import client_tls, server_url
from tarry.core.errors import Invalid
from tarry.core.names import parse_destination, parse_topic
from tarry.core.time.times import parse_duration_ms, parse_instant_ms

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration file; else $TARRY_CONFIG, ./tarry.toml."),
]
Url = Annotated[str | None, typer.Option("--url", help="The server; else $TARRY_URL, else as configured.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Output for machines: one JSON object a line.")]
In = Annotated[str | None, typer.Option("--in", metavar="DELAY", help="Delay, like 250ms, 90s, 1h30m, 2w.")]
At = Annotated[
    str | None, typer.Option("--at", metavar="INSTANT", help="Due instant, like 2027-01-01T00:00:00Z.")
]
HeadersOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
]


class TimeOptions(TypedDict, total=False):
    """The time of a message, as the client wants it."""

    delay_ms: int
    due_at_ms: int


def times(in_: str | None, at: str | None) -> TimeOptions:
    """The times that `--in` or `--at` give."""
    if in_ is not None and at is not None:
        raise typer.BadParameter("give --in or --at, not both")
    if in_ is not None:
        return {"delay_ms": duration_ms(in_, "--in")}
    if at is not None:
        return {"due_at_ms": _said(parse_instant_ms, at, "--at")}
    return {}


def duration_ms(text: str, option: str) -> int:
    """A duration as people write it."""
    return _said(parse_duration_ms, text, option)


def instant_ms(text: str, option: str) -> int:
    """An instant as people write it."""
    return _said(parse_instant_ms, text, option)


def _said(parse: Any, text: str, option: str) -> int:
    try:
        value: int = parse(text, option)
    except Invalid as error:
        raise typer.BadParameter(error.reason, param_hint=option) from None
    return value


def headers_of(given: list[str] | None) -> dict[str, str] | None:
    """The headers that `--header` options give."""
    headers: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        headers[name] = value
    return headers or None


def destination_of(text: str) -> str:
    """A destination; a name without a scheme is one of Tarry's own topics."""
    return text if "://" in text else parse_destination(text).full


def topic_of(text: str) -> str:
    """A topic name, checked before anything is sent."""
    return parse_topic(text).full


def connect(config_file: str | None, url: str | None, *, retry_for_s: float = 0.0) -> Client:
    """The client for a command. It gives up soon, so that a person hears at once that no server answers."""
    config = load(config_file, os.environ).config
    return Client(url or server_url(config), config.token, tls=client_tls(config), retry_for_s=retry_for_s)
