"""Settings that every listener has."""

from typing import Annotated

from msgspec import Meta

from tarry.config.table import Path, Section
from tarry.core import limits


class Listening(Section, frozen=True, kw_only=True):
    """An address that is listened on, and the bounds on who connects."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs tokens."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port to listen on; 0 takes a free one and prints it."""
    tls_cert: Path | None = None
    """Certificate chain (PEM). With it and its key the listener speaks TLS."""
    tls_key: Path | None = None
    """The certificate's private key (PEM)."""
    tls_client_ca: Path | None = None
    """Certificates (PEM) of the authorities that sign clients' certificates. If set, a client without such a certificate is refused."""
    max_connections: Annotated[int, Meta(ge=0)] = 0
    """Maximum number of connections. 0: a share of the open-files limit, after the files that the ledger and sending need."""
    idle_timeout_ms: Annotated[int, Meta(ge=1_000, le=limits.DAY_MS)] = 60_000
    """Time after which a connection without a request is closed."""
    drain_ms: Annotated[int, Meta(ge=0, le=limits.HOUR_MS)] = 10_000
    """Longest time for requests under way to finish at a shutdown."""
