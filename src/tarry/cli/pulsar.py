"""`tarry pulsar`: the commands that Pulsar's operators know, over the Pulsar door's administration.

Names, flags and messages are those of `pulsar-admin`, with PIP-26's own `enable-delayed-message` and
`disable-delayed-message`. Commands for pending messages, which Pulsar does not have, are in `tarry.cli.pulsar_delayed`.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from tarry.cli import pulsar_delayed
from tarry.cli.options import ConfigFile, Url, connect, duration_ms
from tarry.client.call import ClientCall, ServerAnswer, as_json, check
from tarry.core.limits import SECOND_MS
from tarry.core.names import parse_namespace, parse_topic

_Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="tenant/namespace; of a topic persistent://tenant/namespace/topic."),
]
Enable = Annotated[bool, typer.Option("-e", "--enable", help="Enable delayed delivery messages.")]
Disable = Annotated[bool, typer.Option("-d", "--disable", help="Disable delayed delivery messages.")]
Time = Annotated[
    str,
    typer.Option(
        "-t", "--time",
        help="The tick time: how exactly a message comes at its time, never before it. (eg: 500ms, 1s, 10s, 1m, 5h, 3d)",
    ),
]  # fmt: skip
MaxDelay = Annotated[
    str,
    typer.Option(
        "-md", "--maxDeliveryDelay",
        help="The max allowed delay for delayed delivery; 0 has no limit. (eg: 1s, 10s, 1m, 5h, 3d)",
    ),
]  # fmt: skip
Applied = Annotated[bool, typer.Option("-a", "--applied", help="Get the applied policy.")]
Granularity = Annotated[
    str,
    typer.Option(
        "-p", "--time-partition-granularity",
        help="Granularity of the time partitions in which delayed messages are stored. (eg: 30s, 5m, 1h, 3d, 2w)",
    ),
]  # fmt: skip
Tick = Annotated[
    str, typer.Option("-t", "--tick-duration", help="The duration between ticks. (eg: 500ms, 1s, 5m)")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    pulsar = typer.Typer(help="Administer the Pulsar door, as pulsar-admin does.", no_args_is_help=True)
    for name, path, text in (
        ("namespaces", _of_namespace, "Delayed delivery of namespaces."),
        ("topics", _of_topic, "Delayed delivery of topics, and their pending messages."),
        ("topicPolicies", _of_topic, "Delayed delivery of topics."),
    ):
        group = typer.Typer(help=text, no_args_is_help=True)
        DelayedDeliveryCommands(path).add_to(group)
        if name == "topics":
            pulsar_delayed.add_to(group)
        pulsar.add_typer(group, name=name)
    app.add_typer(pulsar, name="pulsar")


def _of_namespace(name: str) -> str:
    return f"/admin/v2/namespaces/{parse_namespace(name)}/delayedDelivery"


def _of_topic(name: str) -> str:
    topic = parse_topic(name)
    return f"/admin/v2/persistent/{topic.namespace_name}/{topic.topic}/delayedDelivery"


class DelayedDeliveryCommands:
    """The commands for namespaces, or for topics."""

    def __init__(self, path: Callable[[str], str]) -> None:
        self._path = path
        """The path of a namespace's or topic's policy, from its name."""

    def add_to(self, group: typer.Typer) -> None:
        """Add these commands."""
        group.command("set-delayed-delivery")(self.set)
        group.command("get-delayed-delivery")(self.get)
        group.command("remove-delayed-delivery")(self.remove)
        group.command("enable-delayed-message")(self.enable)
        group.command("disable-delayed-message")(self.disable)

    def set(
        self,
        name: _Name,
        enable: Enable = False,
        disable: Disable = False,
        time: Time = "1s",
        max_delay: MaxDelay = "0",
        url: Url = None,
        config: ConfigFile = None,
    ) -> None:
        """Set the delayed delivery policy."""
        if enable == disable:
            raise typer.BadParameter("Need to specify either --enable or --disable")
        policy = {
            "active": enable,
            "tickTime": _duration_ms(time, "--time"),
            "maxDeliveryDelayInMillis": _duration_ms(max_delay, "--maxDeliveryDelay"),
        }
        with connect(config, url) as client:
            client.run(ClientCall("POST", self._path(name), _read, as_json(policy)))

    def get(self, name: _Name, applied: Applied = False, url: Url = None, config: ConfigFile = None) -> None:
        """Get the delayed delivery policy."""
        path = self._path(name) + ("?applied=true" if applied else "")
        with connect(config, url) as client:
            found = client.run(ClientCall("GET", path, _read, repeatable=True))
        print(json.dumps(found, indent=2))

    def remove(self, name: _Name, url: Url = None, config: ConfigFile = None) -> None:
        """Remove the delayed delivery policy."""
        with connect(config, url) as client:
            client.run(ClientCall("DELETE", self._path(name), _read))

    def enable(
        self,
        name: _Name,
        granularity: Granularity = "5m",
        tick: Tick = "1s",
        url: Url = None,
        config: ConfigFile = None,
    ) -> None:
        """Enable delayed message."""
        said = {
            "active": True,
            "tickTime": _duration_ms(tick, "--tick-duration"),
            "timePartitionGranularityInMillis": _duration_ms(granularity, "--time-partition-granularity"),
        }
        self._change(name, said, url, config)

    def disable(self, name: _Name, url: Url = None, config: ConfigFile = None) -> None:
        """Disable delayed message."""
        self._change(name, {"active": False}, url, config)

    def _change(self, name: str, said: dict[str, Any], url: str | None, config: str | None) -> None:
        """Say something and leave the rest as it is: PIP-26's commands do not know of a longest delay."""
        path = self._path(name)
        with connect(config, url) as client:
            present = client.run(ClientCall("GET", path, _read, repeatable=True)) or {}
            client.run(ClientCall("POST", path, _read, as_json(present | said)))


def _duration_ms(text: str, option: str) -> int:
    """A duration as Pulsar's tool reads it: a number without a unit is seconds."""
    return int(text) * SECOND_MS if text.isdigit() else duration_ms(text, option)


def _read(answered: ServerAnswer) -> Any:
    check(answered)
    return msgspec.json.decode(answered.body) if answered.body else None
