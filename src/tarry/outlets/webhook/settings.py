"""Settings of the webhook outlet, with defaults that are safe on the open internet."""

from typing import Literal

from msgspec import Struct

from tarry.core.limits import HOUR_MS
from tarry.outlets.webhook.addresses import AddressRules
from tarry.outlets.webhook.signing import decode_secret


class WebhookSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the webhook outlet. Wrong values raise `ValueError`, which never shows a secret."""

    mode: Literal["binary", "structured"] = "binary"
    """CloudEvents content mode: attributes in headers, or one JSON document."""

    event_source: str = "/tarry"
    """The `source` attribute (a URI reference) of messages that bring none."""

    event_type: str = "tarry.message.due"
    """The `type` attribute of messages that bring none."""

    user_agent: str = "Tarry"
    """The `User-Agent` of messages that bring none."""

    secrets: tuple[str, ...] = ()
    """Signing secrets, `whsec_…`; several while keys are rotated. None: requests are not signed."""

    secrets_by_host: dict[str, tuple[str, ...]] = {}
    """Secrets for `host` or `host:port` instead of `secrets`. An empty list: not signed."""

    allow: tuple[str, ...] = ()
    """Networks, addresses, host names and `.domains` that may be sent to although they are internal."""

    deny: tuple[str, ...] = ()
    """Further networks and addresses that must not be sent to, such as one's own public ones."""

    ca_file: str = ""
    """A PEM file with certificate authorities to trust besides the system's."""

    connect_timeout_ms: int = 5_000
    """The longest time for one connection attempt, TLS included."""

    total_timeout_ms: int = 10_000
    """The longest time from the start of a request to the head of its response, connecting included."""

    queue_timeout_ms: int = 30_000
    """The longest time to wait for a turn when too many deliveries are under way."""

    max_retry_after_ms: int = HOUR_MS
    """A longer `Retry-After` counts as this."""

    max_connections: int = 256
    """Deliveries under way at a time, in all."""

    max_connections_per_host: int = 32
    """Deliveries under way at a time to one host and port."""

    def __post_init__(self) -> None:
        """Check everything at the start: a mistake must not wait for the first message that is due."""
        for name in (
            "connect_timeout_ms",
            "total_timeout_ms",
            "queue_timeout_ms",
            "max_retry_after_ms",
            "max_connections",
            "max_connections_per_host",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("event_source", "event_type", "user_agent"):
            value = getattr(self, name)
            if not value or not value.isascii() or not value.isprintable():
                raise ValueError(f"{name} must be printable ASCII and not empty")
        AddressRules(self.allow, self.deny)
        for secret in self.secrets:
            decode_secret(secret)
        for host, secrets in self.secrets_by_host.items():
            if host != host.lower():
                raise ValueError(f"secrets_by_host: write the host {host!r} in lower case")
            for secret in secrets:
                decode_secret(secret)

    def __repr__(self) -> str:
        """Without the secrets: settings end up in logs."""
        shown = (
            f"{name}=<hidden>" if name.startswith("secrets") else f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
        )
        return f"WebhookSettings({', '.join(shown)})"
