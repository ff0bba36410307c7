"""One application's side of the door: its components, what it publishes, and what it receives.

Started once the engine runs. It waits for the application in the background: publishing does not depend on it.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tarry.config.dapr import DaprApp
from tarry.core.tenants.access import Access
from tarry.doors.dapr.channel import Channel, HttpChannel
from tarry.doors.dapr.components import BUILT_IN, components_of
from tarry.doors.dapr.configuration import delayed_messaging
from tarry.doors.dapr.delayed import DelayedTopic
from tarry.doors.dapr.grpc_api import GrpcApi, GrpcPassing
from tarry.doors.dapr.grpc_channel import OPTIONS, GrpcChannel
from tarry.doors.dapr.http_api import HttpApi
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.mounting import Mounts, mount
from tarry.doors.dapr.own_topics import EngineTopics
from tarry.doors.dapr.passing import HttpPassing
from tarry.doors.dapr.publishing import Publishing
from tarry.doors.dapr.resources import Document, read_documents
from tarry.doors.dapr.streaming import Streams
from tarry.doors.dapr.subscribing import Subscribing
from tarry.doors.dapr.subscriptions import declarative
from tarry.engine.engine import Engine
from tarry.outlets.dapr.component import ComponentSurroundings


class Resources:
    """The resources in an application's YAML files; raises `BadResource`."""

    def __init__(self, app: DaprApp, environment: dict[str, str]) -> None:
        documents: Sequence[Document] = read_documents(map(Path, app.resources_path))
        self.definitions = components_of(documents, environment) or [BUILT_IN]
        self.subscriptions = [
            one for one in declarative(documents) if not one.scopes or app.app_id in one.scopes
        ]
        self.preview = delayed_messaging(None if app.config is None else Path(app.config))


class Sidecar:
    """One application."""

    def __init__(self, app: DaprApp, resources: Resources, engine: Engine, access: Access) -> None:
        self.app = app
        self._engine = engine
        self._resources = resources
        surroundings = ComponentSurroundings(name="", clock=engine.clock, topics=EngineTopics(engine))
        self.mounts: Mounts = mount(resources.definitions, app.app_id, app.namespace, surroundings)
        self._subscribing = Subscribing(app, self.mounts, engine.clock, resources.subscriptions)
        self.metadata = Metadata(app, self.mounts, engine, self._subscribing, preview=resources.preview)
        self.publishing = Publishing(app.app_id, self.mounts, engine, preview=resources.preview)
        for one in self.mounts.values():
            if one.definition.delayed and resources.preview:
                take = partial(self.publishing.take, one)
                topic = DelayedTopic(one, app.app_id, app.namespace, engine.clock, take)
                self.publishing.delayed[one.name] = topic
        self._passing = None if app.sidecar_http is None else HttpPassing(app.sidecar_http)
        self._grpc_passing = None if app.sidecar_grpc is None else GrpcPassing(app.sidecar_grpc, OPTIONS)
        self.http_api = HttpApi(self.publishing, access, self.metadata, self._passing, app.max_body_bytes)
        self._streams = Streams(self._subscribing)
        self.grpc_api = GrpcApi(
            self.publishing, self._streams, access, self.metadata, self._grpc_passing, app.max_calls
        )
        self._channel: Channel | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect the components and look for the application, in the background."""
        for one in self.mounts.values():
            self._begin(one.start())
        for topic in self.publishing.delayed.values():
            self._begin(topic.start())
        if self.app.app_port is not None:
            self._channel = (
                GrpcChannel(self.app) if self.app.app_protocol == "grpc" else HttpChannel(self.app)
            )
            self._begin(self._subscribing.run(self._channel))
        self.metadata.started = True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Receive no more."""
        await self._streams.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for topic in self.publishing.delayed.values():
            await topic.close()

    async def close(self) -> None:
        """Close every connection."""
        for one in self.mounts.values():
            await one.component.close()
        for connected in (self._channel, self._passing, self._grpc_passing):
            if connected is not None:
                await connected.close()
