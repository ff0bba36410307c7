"""One application's side of the door: its components, what it publishes, and what it receives.

Started once the engine runs. It waits for the application in the background: publishing does not depend on it.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from tarry.config.dapr import DaprApp
from tarry.core.access import Access
from tarry.doors.dapr.channel import Channel, HttpChannel
from tarry.doors.dapr.components import BUILT_IN, components_of
from tarry.doors.dapr.configuration import delayed_messaging
from tarry.doors.dapr.http_api import HttpApi
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.mounting import Mounts, mount
from tarry.doors.dapr.own_topics import EngineTopics
from tarry.doors.dapr.passing import HttpPassing
from tarry.doors.dapr.publishing import Publishing
from tarry.doors.dapr.receiving import Deliver, Gathering, Receiving
from tarry.doors.dapr.resources import Document, read_documents
from tarry.doors.dapr.subscriptions import Subscription, declarative
from tarry.engine.engine import Engine
from tarry.outlets.dapr.component import Subscribed, Surroundings
from tarry.outlets.dapr.errors import ComponentError

_log = logging.getLogger(__name__)


class Resources:
    """What the YAML files of an application say; raises `BadResource`."""

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
        surroundings = Surroundings(name="", clock=engine.clock, topics=EngineTopics(engine))
        self.mounts: Mounts = mount(resources.definitions, app.app_id, app.namespace, surroundings)
        self.metadata = Metadata(app, self.mounts, engine, preview=resources.preview)
        self.publishing = Publishing(app.app_id, self.mounts, engine, preview=resources.preview)
        self._passing = None if app.sidecar_http is None else HttpPassing(app.sidecar_http)
        self.http_api = HttpApi(self.publishing, access, self.metadata, self._passing, app.max_body_bytes)
        self._channel: Channel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribed: list[Subscribed] = []

    async def start(self) -> None:
        """Connect the components and look for the application, in the background."""
        for one in self.mounts.values():
            self._begin(one.start())
        if self.app.app_port is not None:
            self._channel = HttpChannel(self.app)
            self._begin(self._subscribe_all(self._channel))
        self.metadata.ready = True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _subscribe_all(self, channel: Channel) -> None:
        wanted = [*await channel.subscriptions(), *self._resources.subscriptions]
        seen: set[tuple[str, str]] = set()
        for one in wanted:
            if (one.pubsub, one.topic) in seen:
                _log.warning("topic %s of %s is subscribed to twice; the first counts", one.topic, one.pubsub)
                continue
            seen.add((one.pubsub, one.topic))
            deliver: Deliver = channel.deliver
            if one.bulk is not None:
                deliver = Gathering(one.bulk, channel.deliver_bulk).deliver
            self._begin(self._subscribe(one, deliver))

    async def _subscribe(self, one: Subscription, deliver: Deliver) -> None:
        mounted = self.mounts.get(one.pubsub)
        if mounted is None:
            _log.error("a subscription names the component %s, which there is not", one.pubsub)
            return
        if not mounted.may_subscribe(one.topic):
            _log.error("topic %s of %s is not allowed for app id %s", one.topic, one.pubsub, self.app.app_id)
            return
        receiving = Receiving(one, mounted, self.app, self._engine.clock, deliver)
        wait_s = 0.2
        while True:
            try:
                subscribed = await mounted.component.subscribe(
                    mounted.at_broker(one.topic), mounted.group, receiving.receive, one.metadata
                )
            except ComponentError as error:
                _log.warning("cannot subscribe to topic %s of %s: %s", one.topic, one.pubsub, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, 30.0)
            else:
                self._subscribed.append(subscribed)
                self.metadata.subscriptions.append(one)
                return

    async def stop(self) -> None:
        """Receive no more."""
        self.metadata.ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscribed in self._subscribed:
            await subscribed.close()

    async def close(self) -> None:
        """Close every connection."""
        for one in self.mounts.values():
            await one.component.close()
        if self._channel is not None:
            await self._channel.close()
        if self._passing is not None:
            await self._passing.close()
