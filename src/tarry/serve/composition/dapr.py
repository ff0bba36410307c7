"""The Dapr door in the server: for each application its resources, its listeners and its side of the door."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from tarry.config.dapr import Dapr, DaprApp
from tarry.core.messages.delivery import Outlet
from tarry.core.telemetry.figure import Figure
from tarry.core.tenants.access import Access
from tarry.doors.dapr.sidecar import Resources, Sidecar
from tarry.engine.engine import Engine
from tarry.http.application import Application
from tarry.outlets.dapr.delivery import SCHEME
from tarry.outlets.dapr.outlet import DaprOutlet
from tarry.outlets.dapr.publishing import Publisher
from tarry.serve.transport.callers import traced_app, traced_rpc
from tarry.serve.transport.connection_budget import ConnectionBudget
from tarry.serve.transport.grpc_server import GrpcServer
from tarry.serve.transport.listener import Listener

OUTGOING: Final = 64
"""Connections that are made for one application: to itself, to its brokers, to a sidecar behind the door."""


class DaprDoor:
    """Implements `Door`."""

    figures: Sequence[Figure] = ()

    def __init__(self, settings: Dapr, access: Access, budget: ConnectionBudget) -> None:
        self._access = access
        self._outlet = DaprOutlet()
        apps: tuple[DaprApp, ...] = (settings, *settings.apps)
        environment = dict(os.environ)
        # A file that is wrong is told before anything is opened.
        self._resources = [(app, Resources(app, environment)) for app in apps]
        names = ["doors.dapr", *(f"doors.dapr.apps[{at}]" for at in range(len(settings.apps)))]
        named = list(zip(apps, names, strict=True))
        budget.reserve(OUTGOING * len(apps))
        self._listeners = [Listener(app, budget.share_of(name, app.max_connections)) for app, name in named]
        self.sidecars: dict[str, Sidecar] = {}
        self._servers = [
            GrpcServer(app, name, budget.share_of(f"{name}:grpc", app.max_connections)) for app, name in named
        ]
        self.grpc_ports: list[int] = []
        self.urls: list[str] = []
        """The addresses of the HTTP APIs, application by application."""

    @property
    def outlets(self) -> Mapping[str, Outlet]:
        """The outlet of scheduled publishes."""
        return {SCHEME: self._outlet}

    @property
    def mounts(self) -> Mapping[str, Application]:
        """Nothing on the native API's port."""
        return {}

    def bind(self) -> list[str]:
        """Take the addresses."""
        self.urls = [listener.bind() for listener in self._listeners]
        self.grpc_ports = [server.bind() for server in self._servers]
        hosts = [app.host for app, _ in self._resources]
        return [*self.urls, *(f"grpc://{at[0]}:{at[1]}" for at in zip(hosts, self.grpc_ports, strict=True))]

    async def start(self, engine: Engine) -> None:
        """Begin to accept, and to receive."""
        listening = zip(self._resources, self._listeners, self._servers, strict=True)
        for (app, resources), listener, server in listening:
            sidecar = Sidecar(app, resources, engine, self._access)
            self.sidecars[app.app_id] = sidecar
            await listener.start(traced_app(sidecar.http_api, engine), self._access)
            await server.start(traced_rpc(sidecar.grpc_api, engine))
        self._outlet.open(self._find, engine.schedule, engine.clock.now_ms)
        for sidecar in self.sidecars.values():
            await sidecar.start()

    def _find(self, app_id: str, pubsub: str) -> Publisher | None:
        sidecar = self.sidecars.get(app_id)
        return None if sidecar is None else sidecar.mounts.get(pubsub)

    def renew(self) -> None:
        """See `Door`."""
        for listener in self._listeners:
            listener.renew()
        for server in self._servers:
            server.renew()

    def revoke(self) -> None:
        """See `Door`. Over HTTP nothing is held open."""
        for server in self._servers:
            server.revoke()

    async def stop(self) -> None:
        """Accept no more, receive no more."""
        for listener in self._listeners:
            await listener.stop()
        # Streams end by themselves only if their application does: they are ended before the server waits.
        for sidecar in self.sidecars.values():
            await sidecar.stop()
        for server in self._servers:
            await server.stop()

    async def close(self) -> None:
        """Close what holds connections."""
        await self._outlet.close()
        for sidecar in self.sidecars.values():
            await sidecar.close()
