"""The components of one application: made from their definitions, started, and started again while a broker is away."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from tarry.core.errors import Forbidden
from tarry.core.tenants.access import Caller
from tarry.core.time.backoff import doubling
from tarry.doors.dapr import errors
from tarry.doors.dapr.components import ComponentDefinition
from tarry.doors.dapr.errors import Refusal
from tarry.doors.dapr.resources import BadResource
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent
from tarry.outlets.dapr.component import Component, ComponentSurroundings, make
from tarry.outlets.dapr.delivery import SCHEME
from tarry.outlets.dapr.errors import ComponentError, Misconfigured
from tarry.outlets.dapr.properties import Properties

_log = logging.getLogger(__name__)

SCOPES: Final = ("publishingScopes", "subscriptionScopes", "allowedTopics", "protectedTopics")
MAX_KNOWN_TOPICS: Final = 10_000
FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 30.0


class Mounted:
    """One component as one application uses it."""

    def __init__(
        self, definition: ComponentDefinition, component: Component, app_id: str, namespace: str
    ) -> None:
        self.definition = definition
        self.component = component
        self.name = definition.name
        self._app_id = app_id
        self._namespace = namespace
        self._publishable: dict[str, bool] = {}
        self.trouble: str | None = "is not connected yet"
        """Why the broker cannot be used, while that is so."""

    @cached_property
    def scoped(self) -> bool:
        """Whether anything says which topics may be used."""
        properties = Properties(self.definition.properties)
        return any(properties.text(name) for name in SCOPES)

    @cached_property
    def group(self) -> str:
        """The application's consumer group."""
        return self.definition.consumer_group(self._app_id, self._namespace)

    def may_publish(self, topic: str) -> bool:
        """Whether the application may publish to a topic."""
        known = self._publishable.get(topic)
        if known is None:
            if len(self._publishable) >= MAX_KNOWN_TOPICS:
                self._publishable.clear()
            known = self._publishable[topic] = self.definition.publishable_by(self._app_id, topic)
        return known

    def may_subscribe(self, topic: str) -> bool:
        """Whether the application may subscribe to a topic."""
        return self.definition.subscribable_by(self._app_id, topic)

    def at_broker(self, topic: str) -> str:
        """A topic's name at the broker: with namespaced consumer groups it begins with the namespace."""
        return self._namespace + topic if self.definition.namespaced else topic

    def require_produce(self, caller: Caller) -> None:
        """Raise `Refusal` unless a caller may publish."""
        try:
            caller.require("produce")
        except Forbidden as error:
            raise Refusal(errors.FORBIDDEN, str(error), pubsub=self.name) from None

    def require_reach(self, caller: Caller, topic: str) -> None:
        """Raise `Refusal` unless a caller's token reaches the namespace of a topic."""
        if caller.namespaces is None:
            return
        # A broker's topics fall under the default namespace, as every foreign destination does.
        place = f"{SCHEME}://"
        if isinstance(self.component, OwnTopicsComponent):
            place = self.component.destination(self.at_broker(topic))
        try:
            caller.require_destination(place, None)
        except Forbidden as error:
            raise Refusal(errors.FORBIDDEN, str(error), pubsub=self.name, metadata={"topic": topic}) from None

    async def start(self) -> None:
        """Connect, for as long as it takes."""
        waits = waits_s()
        while True:
            try:
                await self.component.start()
            except ComponentError as error:
                if self.trouble != str(error):
                    self.trouble = str(error)
                    _log.warning("component %s: %s; trying again", self.name, error)
                await asyncio.sleep(next(waits))
            else:
                self.trouble = None
                return


Mounts = dict[str, Mounted]


def waits_s() -> Iterator[float]:
    """The waits between attempts to reach a broker."""
    return doubling(FIRST_WAIT_S, LONGEST_WAIT_S)


def mount(
    definitions: Iterable[ComponentDefinition],
    app_id: str,
    namespace: str,
    surroundings: ComponentSurroundings,
) -> Mounts:
    """The components that are open to an application; raises `BadResource` for one that cannot be made.

    One whose file says `ignoreErrors` is left out instead.
    """
    mounts: Mounts = {}
    for definition in definitions:
        if not definition.open_to(app_id):
            continue
        own = ComponentSurroundings(
            name=definition.name, clock=surroundings.clock, topics=surroundings.topics
        )
        try:
            component = make(definition.kind, definition.properties_for(app_id, namespace), own)
        except ComponentError as error:
            refusal = _refusal(definition, error)
            if not definition.ignore_errors:
                raise refusal from error
            _log.error("left out: %s", refusal)
        else:
            mounts[definition.name] = Mounted(definition, component, app_id, namespace)
    return mounts


def _refusal(definition: ComponentDefinition, error: ComponentError) -> BadResource:
    field = f"spec.metadata.{error.field}" if isinstance(error, Misconfigured) else "spec.type"
    reason = error.reason if isinstance(error, Misconfigured) else str(error)
    return BadResource(definition.file, definition.number, field, reason)
