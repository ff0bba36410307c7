"""Settings of the Dapr door: one application, and further ones beside it."""

from typing import Annotated, Literal

from msgspec import Meta

from tarry.config.listening import Listening
from tarry.config.table import Path, Secret
from tarry.core import limits


class DaprApp(Listening, frozen=True, kw_only=True):
    """An application, and the addresses where its sidecar is."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 3500
    """Port of Dapr's HTTP API; 0 takes a free one and prints it."""
    grpc_port: Annotated[int, Meta(ge=0, le=65535)] = 50001
    """Port of Dapr's gRPC API; 0 takes a free one and prints it."""
    app_id: Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^/\\x00-\\x20]+$")] = "app"
    """The application's id: its messages' owner, its consumer group, the name of its delayed topic."""
    app_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The port on which the application receives messages. Without it there are no subscriptions but streaming ones."""
    app_protocol: Literal["http", "grpc"] = "http"
    """Protocol over which the application receives messages."""
    app_host: str = "127.0.0.1"
    """Host name or address of the application."""
    app_token: Secret | None = None
    """Token that the door shows to the application, as `dapr-api-token`."""
    app_concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Maximum messages that the application handles at one time, for each subscription."""
    app_health_check: bool = False
    """Whether the application is asked for its health; while it is unhealthy its subscriptions are closed, and messages wait at their brokers."""
    app_health_check_path: str = "/healthz"
    """Path at which an application over HTTP answers 2xx while it is healthy; one over gRPC has `AppCallbackHealthCheck`."""
    app_health_interval_ms: Annotated[int, Meta(ge=10, le=limits.DAY_MS)] = 5_000
    """The time from one health check to the next."""
    app_health_timeout_ms: Annotated[int, Meta(ge=1, le=limits.HOUR_MS)] = 500
    """Longest time for the application's answer to a health check."""
    app_health_threshold: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Bad answers in a row that make the application unhealthy; one good answer makes it healthy."""
    disable_init_endpoints: tuple[Literal["config", "subscribe"], ...] = ()
    """With `subscribe` the application is not asked what it subscribes to; files and streams remain. With `config` it is not asked for its actors, which are not served here: the log only warns of them."""
    namespace: Annotated[str, Meta(min_length=1)] = "default"
    """Dapr's namespace of the application, for components with namespaced consumer groups."""
    resources_path: tuple[Path, ...] = ()
    """Folders or files with Dapr's components and subscriptions. Without any component there is a built-in one, `pubsub`, on Tarry's own topics."""
    config: Path | None = None
    """A Dapr Configuration file; `features` there switches `DelayedMessaging`, which is on unless it says otherwise."""
    sidecar_http: str | None = None
    """Address of a real sidecar's HTTP API, to which everything but pub/sub is passed on."""
    sidecar_grpc: str | None = None
    """Address (`host:port`) of a real sidecar's gRPC API, to which everything but pub/sub is passed on."""
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 8 << 20
    """Maximum size of one request."""
    max_calls: Annotated[int, Meta(ge=1)] = 10_000
    """Maximum number of gRPC calls under way, streaming subscriptions among them. With several tokens, none gets more than half."""
    max_retries: Annotated[int, Meta(ge=0)] | None = None
    """Maximum retries of a message that the application did not take. By default without end; with a dead-letter topic, as in Dapr, none."""
    retry_min_ms: Annotated[int, Meta(ge=1, le=limits.HOUR_MS)] = 500
    """The wait before the first retry; it doubles with each further one."""
    retry_max_ms: Annotated[int, Meta(ge=1, le=limits.DAY_MS)] = 60_000
    """The longest wait between two retries."""


class Dapr(DaprApp, frozen=True, kw_only=True):
    """Dapr's pub/sub, with scheduled publish."""

    enabled: bool | None = None
    """Whether the door is open. If unset, `tarry up` opens it and `tarry serve` does not."""
    apps: tuple[DaprApp, ...] = ()
    """Further applications, each as a `[[doors.dapr.apps]]` table with the keys above and ports of its own."""
