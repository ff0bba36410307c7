"""The subscriptions of one application: made once it is there and healthy, closed while it is not, shown by the metadata.

Declared are those of the YAML files and those that the application asks for; of two for one topic the application's
counts, among its own the last, among the files' the first, as in Dapr.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from tarry.config.dapr import DaprApp
from tarry.core.telemetry.faults import told
from tarry.core.tenants.access import Caller
from tarry.core.time.clock import Clock
from tarry.doors.dapr import errors
from tarry.doors.dapr.channel import Channel, until_listening
from tarry.doors.dapr.errors import Refusal, refusal_of
from tarry.doors.dapr.health import changes
from tarry.doors.dapr.mounting import Mounted, Mounts, waits_s
from tarry.doors.dapr.receiving import Deliver, Gathering, Receiving
from tarry.doors.dapr.subscriptions import AppSubscription
from tarry.outlets.dapr.component import Subscribed
from tarry.outlets.dapr.errors import ComponentError

_RULE: Final = (
    "the last one that the application asks for counts, and if there is none the first of the files"
)
_log = logging.getLogger(__name__)


class Subscribing:
    """Makes and closes the subscriptions of one application."""

    def __init__(self, app: DaprApp, mounts: Mounts, clock: Clock, files: Sequence[AppSubscription]) -> None:
        self._app = app
        self._mounts = mounts
        self._clock = clock
        self._files = files
        self._asked: list[AppSubscription] | None = None
        """Subscriptions that the application asked for; None until it has answered."""
        self._streaming: list[AppSubscription] = []
        self.waits_for: str | None = None if app.app_port is None else "the application"
        """The part that messages cannot reach yet, so that a message published now may be lost; None once everything is there."""

    @property
    def declared(self) -> list[AppSubscription]:
        """Every subscription that is wanted, whether or not it can be made: the files', the application's, streams."""
        return [*merged(self._files, self._asked or ()), *self._streaming]

    async def run(self, channel: Channel) -> None:
        """Wait for the application and serve its subscriptions until cancelled."""
        await until_listening(self._app)
        if not self._app.app_health_check:
            await self._serve(channel)
            return
        # It may take long until it is healthy, and a sidecar is ready before that, as in Dapr.
        self.waits_for = None
        serving: asyncio.Task[None] | None = None
        try:
            async for healthy in changes(self._app, channel.is_healthy):
                await _cancelled(serving)
                serving = asyncio.create_task(self._serve(channel)) if healthy else None
        finally:
            await _cancelled(serving)

    async def _serve(self, channel: Channel) -> None:
        """Make the subscriptions and hold them until cancelled; their messages then stay with the brokers."""
        if self._asked is None:
            self._asked = await self._ask(channel)
        wanted = merged(self._files, self._asked)
        for one in (*self._files, *self._asked):
            if not any(one is kept for kept in wanted):
                _log.warning("topic %s of %s is subscribed to twice; %s", one.topic, one.pubsub, _RULE)
        if self.waits_for is not None:
            self.waits_for = "the application's subscriptions"
        async with asyncio.TaskGroup() as group:
            made = [asyncio.Event() for _ in wanted]
            for one, settled in zip(wanted, made, strict=True):
                group.create_task(self._hold(one, channel, settled))
            for settled in made:
                await settled.wait()
            self.waits_for = None

    async def _ask(self, channel: Channel) -> list[AppSubscription]:
        """Ask the application the questions that Dapr asks at a start, unless they are switched off."""
        disabled = self._app.disable_init_endpoints
        if "config" not in disabled and (types := await channel.actors()) and self._app.sidecar_http is None:
            _log.warning(
                "application %s hosts actors (%s): they are not served here, and there is no sidecar_http",
                self._app.app_id, ", ".join(types),
            )  # fmt: skip
        if "subscribe" not in disabled:
            return await channel.subscriptions()
        _log.warning("Skipping programmatic subscription loading: disable_init_endpoints has subscribe")
        return []

    async def _hold(self, one: AppSubscription, channel: Channel, settled: asyncio.Event) -> None:
        """Hold one subscription until cancelled; `settled` once it is there, or can never be."""
        deliver: Deliver = channel.deliver
        if one.bulk is not None:
            deliver = Gathering(one.bulk, channel.deliver_bulk).deliver
        try:
            subscribed = await self._until_open(one, deliver)
        except Refusal as refusal:
            _log.error("a subscription of %s cannot be: %s", self._app.app_id, refusal)
            return
        except Exception as error:  # noqa: BLE001 - one subscription must not take the others with it
            _log.error("a subscription of %s failed with %s", self._app.app_id, told(error))
            return
        finally:
            settled.set()
        try:
            await asyncio.Event().wait()
        finally:
            await subscribed.close()

    async def _until_open(self, one: AppSubscription, deliver: Deliver) -> Subscribed:
        """Subscribe for as long as it takes; raises `Refusal`."""
        waits = waits_s()
        while True:
            try:
                return await self._subscribe(one, deliver)
            except ComponentError as error:
                _log.warning("cannot subscribe to topic %s of %s: %s", one.topic, one.pubsub, error)
                await asyncio.sleep(next(waits))

    async def _subscribe(self, one: AppSubscription, deliver: Deliver) -> Subscribed:
        mounted = self.checked(one)
        receiving = Receiving(one, mounted, self._app, self._clock, deliver)
        return await mounted.component.subscribe(
            mounted.at_broker(one.topic), mounted.group, receiving.receive, one.metadata
        )

    def checked(self, one: AppSubscription) -> Mounted:
        """The component of a subscription that is allowed; raises `Refusal`."""
        mounted = self._mounts.get(one.pubsub)
        if mounted is None:
            raise errors.not_found(one.pubsub)
        if not one.topic:
            raise Refusal(errors.TOPIC_EMPTY, f"topic is empty in pubsub {one.pubsub}", pubsub=one.pubsub)
        for topic in filter(None, (one.topic, one.dead_letter_topic)):
            allowed = mounted.may_subscribe(topic) if topic is one.topic else mounted.may_publish(topic)
            if not allowed:
                message = f"topic {topic} is not allowed for app id {self._app.app_id}"
                raise Refusal(errors.FORBIDDEN, message, pubsub=one.pubsub, metadata={"topic": topic})
        return mounted

    async def open_stream(
        self, caller: Caller, subscription: AppSubscription, deliver: Deliver
    ) -> Subscribed:
        """Subscribe for a stream, as far as its caller's token reaches; raises `Refusal`."""
        mounted = self.checked(subscription)
        mounted.require_reach(caller, subscription.topic)
        if subscription.dead_letter_topic:
            # By answers of DROP the caller publishes there.
            mounted.require_produce(caller)
        try:
            subscribed = await self._subscribe(subscription, deliver)
        except ComponentError as error:
            raise refusal_of(error, subscription.pubsub, subscription.topic) from error
        self._streaming.append(subscription)
        return subscribed

    def end_stream(self, subscription: AppSubscription) -> None:
        """Forget a stream's subscription."""
        self._streaming.remove(subscription)


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, once, and wait for its end: subscriptions take a while to be closed, and must be."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def merged(files: Iterable[AppSubscription], asked: Iterable[AppSubscription]) -> list[AppSubscription]:
    """One subscription for each topic: the first of the files', or in its place the last of the application's."""
    found: dict[tuple[str, str], AppSubscription] = {}
    for one in files:
        found.setdefault((one.pubsub, one.topic), one)
    for one in asked:
        found[one.pubsub, one.topic] = one
    return list(found.values())
