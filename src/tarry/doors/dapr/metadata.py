"""The metadata endpoints of an application: its components, its subscriptions, and the messages that wait for it."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from tarry.config.dapr import DaprApp
from tarry.core.names import DEFAULT_NAMESPACE
from tarry.core.time.times import format_go_instant
from tarry.doors.dapr import errors
from tarry.doors.dapr.errors import Refusal
from tarry.doors.dapr.mounting import Mounts
from tarry.doors.dapr.subscriptions import AppSubscription
from tarry.engine.engine import Engine
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent

RUNTIME_VERSION: Final = "1.16.0"
"""The version of Dapr's runtime that the door behaves like."""
FEATURE: Final = "DelayedMessaging"
MAX_EXTENDED: Final = 100
MAX_EXTENDED_CHARACTERS: Final = 16_384
"""So many attributes may an application set, of this length with their names."""


class Subscriptions(Protocol):
    """Subscriptions of an application, as the metadata show them."""

    @property
    def declared(self) -> Sequence[AppSubscription]:
        """Every subscription that is wanted, whether or not it can be made."""

    @property
    def waits_for(self) -> str | None:
        """The part that messages cannot reach yet; None once everything is there."""


class Metadata:
    """The metadata and the health of one application's side of the door."""

    def __init__(
        self, app: DaprApp, mounts: Mounts, engine: Engine, subscriptions: Subscriptions, *, preview: bool
    ) -> None:
        self.started = False
        """Whether publishes are taken."""
        self.app = app
        self._subscriptions = subscriptions
        self._extended: dict[str, str] = {}
        """Attributes that the application has set itself."""
        self.mounts = mounts
        self.preview = preview
        self._engine = engine

    def check_ready(self, app_id: str | None) -> None:
        """Raise `Refusal` unless a message published now reaches the application; `app_id` is the one that the request names."""
        waits_for = self._subscriptions.waits_for if self.started else "the server"
        if waits_for is not None:
            raise Refusal(errors.NOT_READY, f"dapr is not ready: [{waits_for}]")
        if app_id is not None and app_id != self.app.app_id:
            raise Refusal(errors.OTHER_APP, "dapr app-id does not match")

    def check_outbound(self) -> None:
        """Raise `Refusal` unless publishes are taken."""
        if not self.started:
            raise Refusal(errors.OUTBOUND_NOT_READY, "dapr outbound is not ready")

    def show(self) -> dict[str, Any]:
        """The answer of `GET /v1.0/metadata`."""
        shown: dict[str, Any] = {
            "id": self.app.app_id,
            "runtimeVersion": RUNTIME_VERSION,
            "enabledFeatures": [FEATURE] if self.preview else [],
            "actors": [],
            "components": [
                {
                    "name": one.name,
                    "type": one.definition.kind,
                    "version": one.definition.version,
                    "capabilities": sorted(one.component.features),
                }
                for one in self.mounts.values()
            ],
            "extended": self.all_extended(),
            "subscriptions": [one.shown() for one in self._subscriptions.declared],
        }
        if self.app.app_port is not None:
            shown["appConnectionProperties"] = {
                "port": self.app.app_port,
                "protocol": self.app.app_protocol,
                "channelAddress": self.app.app_host,
                "maxConcurrency": self.app.app_concurrency,
            }
            if self.app.app_health_check:
                shown["appConnectionProperties"]["health"] = self._health_shown()
        return shown

    def _health_shown(self) -> dict[str, Any]:
        """The settings of health checks, with durations as Go writes them; gRPC has no path."""
        app = self.app
        path = {"healthCheckPath": app.app_health_check_path} if app.app_protocol == "http" else {}
        return path | {
            "healthProbeInterval": _duration(app.app_health_interval_ms),
            "healthProbeTimeout": _duration(app.app_health_timeout_ms),
            "healthThreshold": app.app_health_threshold,
        }

    def _namespaces(self) -> set[str]:
        """The namespaces that the application's messages fall under."""
        own = (one.component for one in self.mounts.values())
        return {DEFAULT_NAMESPACE, *(one.namespace for one in own if isinstance(one, OwnTopicsComponent))}

    def all_extended(self) -> dict[str, str]:
        """The extended attributes: what the application set, and times and counts of what waits here."""
        stats = self._engine.stats()
        waiting = self._engine.pending_of(self.app.app_id, *self._namespaces())
        extended = {
            "daprRuntimeVersion": RUNTIME_VERSION,
            "tarry.scheduled": str(waiting),
            "tarry.scheduledInAll": str(stats.pending),
            "tarry.time": format_go_instant(self._engine.clock.now_ms()),
        }
        if stats.next_due_at_ms is not None:
            extended["tarry.nextDueAt"] = format_go_instant(stats.next_due_at_ms)
        extended |= {f"tarry.{name}": str(count) for name, count in sorted(stats.counters.items())}
        extended |= {f"tarry.trouble.{name}": text for name, text in self.troubles()}
        return {**extended, **self._extended}

    def extend(self, name: str, value: str) -> None:
        """Set an extended attribute; raises `Refusal`."""
        if len(name) + len(value) > MAX_EXTENDED_CHARACTERS:
            raise Refusal(
                errors.TOO_LARGE, f"an attribute is longer than {MAX_EXTENDED_CHARACTERS} characters"
            )
        if name not in self._extended and len(self._extended) >= MAX_EXTENDED:
            raise Refusal(errors.TOO_LARGE, f"there are {MAX_EXTENDED} extended attributes already")
        self._extended[name] = value

    def troubles(self) -> Iterable[tuple[str, str]]:
        """The components that cannot be used now, and why."""
        return ((one.name, one.trouble) for one in self.mounts.values() if one.trouble is not None)


def _duration(ms: int) -> str:
    return f"{ms}ms" if ms % 1000 else f"{ms // 1000}s"
