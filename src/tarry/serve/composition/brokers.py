"""Brokers as destinations in the server: components from Dapr's files, and the outlet that publishes to them."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from tarry.config.settings import Config
from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Outlet
from tarry.core.names import parse_namespace
from tarry.core.telemetry.figure import Figure
from tarry.core.time.clock import Clock
from tarry.doors.dapr.components import ComponentDefinition, components_of
from tarry.doors.dapr.mounting import Mounts, mount
from tarry.doors.dapr.resources import read_documents
from tarry.engine.engine import Engine
from tarry.http.application import Application
from tarry.outlets.broker import ALL_NAMESPACES, SCHEME, BrokerOutlet
from tarry.outlets.dapr.component import ComponentSurroundings
from tarry.serve.transport.connection_budget import ConnectionBudget

OWN: Final = "pubsub.tarry"
"""The kind of components that are Tarry's own topics, which are destinations by their names."""
DAPR_NAMESPACE: Final = "default"
"""Dapr's name for the namespace of an application that is in none."""
OUTGOING: Final = 32
"""Connections that are made to the brokers of all components."""


class BrokerAccess(NamedTuple):
    """The components that are destinations, and who may send to each."""

    definitions: list[ComponentDefinition]
    namespaces: dict[str, frozenset[str]]
    """By component; `*` is all of them."""


def read_access(config: Config) -> BrokerAccess:
    """Read the component files that the configuration opens; raises `BadResource`, and `Invalid` for a component that is in none."""
    settings = config.brokers
    files = settings.resources_path or config.doors.dapr.resources_path
    definitions = [
        one for one in components_of(read_documents(map(Path, files)), dict(os.environ))
        if one.kind != OWN and one.open_to(settings.app_id)
    ]  # fmt: skip
    names = [one.name for one in definitions]
    namespaces: dict[str, frozenset[str]] = {}
    for one in settings.allow:
        if one.component not in names:
            near = get_close_matches(one.component, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            missing = f"no component file has a component {one.component!r} for {settings.app_id}"
            raise Invalid("brokers.allow", missing + hint)
        namespaces[one.component] = namespaces.get(one.component, frozenset()).union(
            map(_namespace, one.namespaces)
        )
    return BrokerAccess([one for one in definitions if one.name in namespaces], namespaces)


class BrokerDestinations:
    """Implements `Door`, without a way in."""

    figures: Sequence[Figure] = ()

    def __init__(self, config: Config, budget: ConnectionBudget, clock: Clock) -> None:
        """Raises `BadResource` and `Invalid` for what the component files and the configuration say wrong."""
        definitions, namespaces = read_access(config)
        surroundings = ComponentSurroundings(name="", clock=clock)
        self._mounts: Mounts = mount(definitions, config.brokers.app_id, DAPR_NAMESPACE, surroundings)
        self._outlet = BrokerOutlet(namespaces)
        self._connecting: list[asyncio.Task[None]] = []
        if self._mounts:
            budget.reserve(OUTGOING)

    @property
    def outlets(self) -> Mapping[str, Outlet]:
        """The outlet for brokers."""
        return {SCHEME: self._outlet}

    @property
    def mounts(self) -> Mapping[str, Application]:
        """Nothing on the native API's port."""
        return {}

    def bind(self) -> list[str]:
        """Nothing listens."""
        return []

    async def start(self, engine: Engine) -> None:
        """Connect the components, in the background: each for as long as it takes."""
        self._outlet.open(self._mounts.get)
        self._connecting = [asyncio.create_task(one.start()) for one in self._mounts.values()]

    def renew(self) -> None:
        """See `Door`."""

    def revoke(self) -> None:
        """See `Door`."""

    async def stop(self) -> None:
        """Connect no more."""
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._outlet.close()
        for one in self._mounts.values():
            await one.component.close()


def _namespace(name: str) -> str:
    return name if name == ALL_NAMESPACES else parse_namespace(name, "brokers.allow")
