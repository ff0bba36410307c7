"""`publish`, `consume`, `tail`: Tarry's own topics."""

import contextlib
import secrets
import sys
from collections.abc import Generator
from typing import Annotated, Final, Literal

import typer

from tarry.cli import show
from tarry.cli.options import (
    At,
    ConfigFile,
    HeadersOption,
    In,
    JsonOption,
    Url,
    connect,
    headers_of,
    times,
    topic_of,
)
from tarry.client.blocking import Client
from tarry.client.consuming import consumer_name
from tarry.client.shapes import Received
from tarry.core.errors import TarryError

BATCH: Final = 100
WAIT_MS: Final = 20_000
BRIEF_WAIT_MS: Final = 500
"""Without `--wait`: long enough for what is already there."""

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, short or tenant/namespace/topic.")]
Start = Annotated[
    Literal["earliest", "latest"], typer.Option("--from", help="The beginning of a new subscription.")
]
_Count = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="Stop after this number of entries.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(publish)
    app.command()(consume)
    app.command()(tail)


def publish(
    topic: _Topic,
    payload: Annotated[str, typer.Argument(help="The text to publish; - reads standard input.")],
    in_: In = None,
    at: At = None,
    key: Annotated[str | None, typer.Option(help="Order key.")] = None,
    header: HeadersOption = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Publish to a topic, at once or as a delayed entry."""
    content: bytes | str = sys.stdin.buffer.read() if payload == "-" else payload
    with connect(config, url) as client:
        published = client.publish(
            topic_of(topic), content, key=key, headers=headers_of(header), **times(in_, at)
        )
    if json:
        show.as_json(published)
    else:
        print(published.entry_ids[0])


def consume(
    topic: _Topic,
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription; made if it is not there.")
    ],
    type_: Annotated[
        Literal["exclusive", "shared", "failover", "key_shared"],
        typer.Option("--type", help="Type of a new subscription."),
    ] = "shared",
    start: Start = "earliest",
    count: _Count = None,
    ack: Annotated[bool, typer.Option(help="Acknowledge printed entries; without, they come again.")] = True,
    wait: Annotated[bool, typer.Option(help="Wait for more entries; without, stop at the end.")] = True,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Print the entries of a subscription as they come, and acknowledge them."""
    name = topic_of(topic)
    with connect(config, url, retry_for_s=10.0) as client:
        client.subscribe(name, subscription, type=type_, start=start)
        entries = _entries(client, name, subscription, count, ack, wait)
        with contextlib.closing(entries):
            for entry in entries:
                _print(entry, json)


def tail(
    topic: _Topic,
    start: Start = "latest",
    count: _Count = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Follow a topic: print its entries as they come and how late they are, without a durable subscription."""
    name = topic_of(topic)
    watcher = f"tail-{secrets.token_hex(6)}"
    with connect(config, url, retry_for_s=10.0) as client:
        client.subscribe(name, watcher, type="shared", start=start, durable=False)
        if not json:
            show.err.print(f"following {show.printable(name)}; Ctrl-C stops", markup=False)
        try:
            entries = _entries(client, name, watcher, count, True, True)
            with contextlib.closing(entries):
                for entry in entries:
                    _print(entry, json)
        finally:
            with contextlib.suppress(TarryError):
                client.unsubscribe(name, watcher)


def _entries(
    client: Client, topic: str, subscription: str, count: int | None, ack: bool, wait: bool
) -> Generator[Received, None, None]:
    """Entries in batches; printed entries are acknowledged, also when printing ends in the middle of a batch."""
    consumer = consumer_name()
    printed: list[int] = []
    unprinted: list[int] = []
    left = count

    def settle() -> None:
        if printed and ack:
            client.ack(topic, subscription, printed, consumer=consumer)
            printed.clear()

    try:
        while left is None or left > 0:
            batch = BATCH if left is None else min(left, BATCH)
            wait_ms = WAIT_MS if wait else BRIEF_WAIT_MS
            entries = client.receive(topic, subscription, max=batch, wait_ms=wait_ms, consumer=consumer)
            if not entries and not wait:
                return
            unprinted = [entry.entry_id for entry in entries]
            for entry in entries:
                # Before it is handed out: the loop that prints it may be left while it does.
                printed.append(unprinted.pop(0))
                yield entry
            settle()
            left = None if left is None else left - len(entries)
    finally:
        with contextlib.suppress(TarryError):
            settle()
            if back := unprinted if ack else printed + unprinted:
                client.nack(topic, subscription, back, consumer=consumer)


def _print(entry: Received, json: bool) -> None:
    now = show.now_ms()
    late_ms = lateness_ms(entry, now)
    if json:
        shown = {name: getattr(entry, name) for name in entry.__struct_fields__}
        shown["payload"] = shown.pop("payload_text")
        show.as_json(
            {k: v for k, v in shown.items() if v is not None} | {"received_at_ms": now, "late_ms": late_ms}
        )
        return
    facts = [str(entry.entry_id), show.instant(entry.published_at_ms if late_ms is None else entry.due_at_ms)]
    if late_ms is not None:
        facts.append(f"late {show.span(late_ms)}")
    if entry.key is not None:
        facts.append(f"key={show.printable(entry.key)}")
    if entry.redelivery_count:
        facts.append(f"again ({entry.redelivery_count})")
    print("  ".join([*facts, show.payload(entry.payload)]), flush=True)


def lateness_ms(entry: Received, now_ms: int) -> int | None:
    """How long after its due instant an entry could be had; None if it had none.

    A scheduled message is published when it is due: the server's own clock tells. A delayed entry was
    published before; only its arrival here tells.
    """
    if entry.due_at_ms is None:
        return None
    reached_ms = entry.published_at_ms if entry.published_at_ms >= entry.due_at_ms else now_ms
    return max(0, reached_ms - entry.due_at_ms)
