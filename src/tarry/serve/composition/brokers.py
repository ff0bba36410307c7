"""Brokers as destinations in the server: components from Dapr's files, and the outlet that publishes to them."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tarry.config.brokers import Brokers
from tarry.core.clock import Clock
from tarry.core.delivery import Outlet
from tarry.core.errors import Invalid
from tarry.core.figure import Figure
from tarry.core.names import parse_namespace
from tarry.doors.dapr.components import components_of
from tarry.doors.dapr.mounting import Mounts, mount
from tarry.doors.dapr.resources import read_documents
from tarry.engine.engine import Engine
from tarry.http.application import Application
from tarry.outlets.broker import ALL_NAMESPACES, SCHEME, BrokerOutlet
from tarry.outlets.dapr.component import ComponentSurroundings
from tarry.serve.transport.connection_budget import ConnectionBudget

OWN: Final = "pubsub.tarry"
"""The kind of components that are Tarry's own topics, which are destinations by their names."""
OUTGOING: Final = 32
"""Connections that are made to the brokers of all components."""


class BrokerDestinations:
    """Implements `Door`, without a way in."""

    figures: Sequence[Figure] = ()

    def __init__(
        self, settings: Brokers, resources_path: Sequence[str], room: ConnectionBudget, clock: Clock
    ) -> None:
        """`resources_path` has the component files; raises `BadResource` for one that is wrong."""
        documents = read_documents(map(Path, resources_path))
        definitions = [one for one in components_of(documents, dict(os.environ)) if one.kind != OWN]
        surroundings = ComponentSurroundings(name="", clock=clock)
        self._mounts: Mounts = mount(definitions, settings.app_id, "default", surroundings)
        allowed = {one.component: frozenset(map(_namespace, one.namespaces)) for one in settings.allow}
        for name in allowed.keys() - self._mounts.keys():
            near = get_close_matches(name, self._mounts, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Invalid(
                "brokers.allow", f"no component file has a component {name!r} for {settings.app_id}{hint}"
            )
        self._outlet = BrokerOutlet(allowed)
        self._connecting: list[asyncio.Task[None]] = []
        if self._mounts:
            room.reserve(OUTGOING)

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
