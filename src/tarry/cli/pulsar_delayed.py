"""`tarry pulsar topics list-delayed | peek-delayed | cancel-delayed | reschedule-delayed`: pending messages of topics.

A message is named as Pulsar's clients print it, `ledger:entry` or `ledger:entry:partition`, or by its entry alone. An id
of a topic that was deleted names no message of the one that has its name now. A name of a partitioned topic stands for
all its partitions.
"""

from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from tarry.cli import show
from tarry.cli.options import At, ConfigFile, In, JsonOption, Url, connect, times, topic_of
from tarry.client.blocking import Client
from tarry.client.call import ClientCall, ServerAnswer, check
from tarry.client.shapes import Delayed
from tarry.core.names import parse_topic

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, short or persistent://….")]
_Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[MESSAGE-ID]...", help="Message ids, like 7:42 or 7:42:0.")
]
_Key = Annotated[str | None, typer.Option("--key", "-k", help="All pending messages with this key.")]
EARLIER_LEDGER: Final = 1
"""The ledger of every message in ids of earlier versions; the ledger of a topic's messages is this and its incarnation."""
All = Annotated[bool, typer.Option("--all", help="All pending messages of the topic.")]


class TopicPart(NamedTuple):
    """A topic without partitions, or one partition, and the ledger id of its messages."""

    topic: str
    ledger: int

    @property
    def number(self) -> str:
        """The partition that it is; -1 if it is none."""
        _, found, number = self.topic.rpartition("-partition-")
        return number if found else "-1"


class FoundDelayed(NamedTuple):
    """A pending message, and the topic or partition that it is in."""

    part: TopicPart
    entry: Delayed


def add_to(group: typer.Typer) -> None:
    """Add these commands."""
    group.command("list-delayed")(list_)
    group.command("peek-delayed")(peek)
    group.command("cancel-delayed")(cancel)
    group.command("reschedule-delayed")(reschedule)


def list_(
    topic: _Topic,
    key: _Key = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Maximum number of messages.")
    ] = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List the pending messages of a topic, in the order of their publication."""
    with connect(config, url, retry_for_s=5.0) as client:
        for number, found in enumerate(_pending(client, topic, key)):
            if number == count:
                return
            _print(found, json)


def peek(
    topic: _Topic, ids: _Ids = None, json: JsonOption = False, url: Url = None, config: ConfigFile = None
) -> None:
    """Show pending messages with their content."""
    with connect(config, url) as client:
        for part, entry_id in _named(client, topic, ids):
            found = FoundDelayed(part, client.get_delayed(part.topic, entry_id))
            _print(found, json, content=True)


def cancel(
    topic: _Topic,
    ids: _Ids = None,
    key: _Key = None,
    all_: All = False,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Cancel pending messages: no consumer gets them, and no subscription waits for them."""
    with connect(config, url) as client:
        for part, entry_id in _chosen(client, topic, ids, key, all_):
            _print(FoundDelayed(part, client.cancel_delayed(part.topic, entry_id)), json)


def reschedule(
    topic: _Topic,
    ids: _Ids = None,
    in_: In = None,
    at: At = None,
    key: _Key = None,
    all_: All = False,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Give pending messages another delivery time."""
    when = times(in_, at)
    if not when:
        raise typer.BadParameter("give --in or --at")
    with connect(config, url) as client:
        for part, entry_id in _chosen(client, topic, ids, key, all_):
            _print(FoundDelayed(part, client.restart_delayed(part.topic, entry_id, **when)), json)


# Which messages are meant


def _chosen(
    client: Client, topic: str, ids: list[str] | None, key: str | None, all_: bool
) -> Iterator[tuple[TopicPart, int]]:
    if bool(ids) + (key is not None) + all_ != 1:
        raise typer.BadParameter("name messages by their ids, by --key, or with --all: one of these")
    if ids:
        return _named(client, topic, ids)
    # All of them first: what is changed while it is listed would move the list.
    return iter([(found.part, found.entry.entry_id) for found in _pending(client, topic, key)])


def _named(client: Client, topic: str, ids: list[str] | None) -> Iterator[tuple[TopicPart, int]]:
    if not ids:
        raise typer.BadParameter("name at least one message")
    wrong = [text for text in ids if not all(part.lstrip("-").isdigit() for part in text.split(":"))]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]} is not a message id like 7:42 or 7:42:0")
    parts = _parts(client, topic)
    for text in ids:
        numbers = text.split(":")
        entry_id = int(numbers[1] if len(numbers) > 1 else numbers[0])
        partition = int(numbers[2]) if len(numbers) > 2 else -1
        if len(parts) > 1 and not 0 <= partition < len(parts):
            raise typer.BadParameter(f"{text} does not say in which of {len(parts)} partitions it is")
        part = parts[max(0, partition) if len(parts) > 1 else 0]
        if len(numbers) > 1 and int(numbers[0]) not in (EARLIER_LEDGER, part.ledger):
            raise typer.BadParameter(
                f"{text} is no message of {part.topic}: its messages are in ledger {part.ledger}"
            )
        yield part, entry_id


def _pending(client: Client, topic: str, key: str | None) -> Iterator[FoundDelayed]:
    for part in _parts(client, topic):
        start: int | None = 0
        while start is not None:
            page = client.delayed_page(part.topic, key=key, start=start)
            yield from (FoundDelayed(part, entry) for entry in page.entries)
            start = page.next


def _parts(client: Client, topic: str) -> list[TopicPart]:
    """The topics in which a topic's messages are: its partitions, or itself."""
    name = parse_topic(topic_of(topic))
    path = f"/admin/v2/persistent/{name.namespace_name}/{name.topic}/partitions?checkAllowAutoCreation=true"

    def read(answered: ServerAnswer) -> int:
        # Without the Pulsar door there are no partitions.
        if answered.status == 404:
            return 0
        check(answered)
        return int(msgspec.json.decode(answered.body, type=dict[str, int | bool])["partitions"])

    count = client.run(ClientCall("GET", path, read, repeatable=True))
    names = [f"{name.full}-partition-{number}" for number in range(count)] or [name.full]
    return [TopicPart(one, client.topic_stats(one)["incarnation"] + EARLIER_LEDGER) for one in names]


def _print(found: FoundDelayed, json: bool, *, content: bool = False) -> None:
    entry = found.entry
    if json:
        shown = {name: getattr(entry, name) for name in entry.__struct_fields__}
        payload = shown.pop("payload_text"), shown.pop("payload_base64")
        if content:
            shown |= {"payload": payload[0], "payload_base64": payload[1]}
        show.as_json({"topic": found.part.topic} | {k: v for k, v in shown.items() if v is not None})
        return
    facts = [
        f"{found.part.ledger}:{entry.entry_id}:{found.part.number}",
        f"due {show.instant(entry.due_at_ms)}",
    ]
    if entry.key is not None:
        facts.append(f"key={show.printable(entry.key)}")
    if content:
        facts.append(show.payload(entry.payload))
    print("  ".join(facts))
