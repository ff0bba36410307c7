"""Settings of servers that share a ledger in a replicated log."""

from typing import Annotated

from msgspec import Meta

from tarry.config.table import Path, Section
from tarry.core import limits


class Cluster(Section, frozen=True, kw_only=True):
    """This server among those that share a ledger (`ledger.log = "kafka"`): one owns it, the others stand by."""

    node: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Name of this server among the others; by default the machine's name."""
    advertise: str | None = None
    """Address of this server's HTTP API, as the others tell clients; by default the one that it listens on."""
    id_key_file: Path | None = None
    """File with the key that ids are made with, 32 random bytes: the same on every server, and as secret as a token. `openssl rand 32` makes one."""
    session_timeout_ms: Annotated[int, Meta(ge=1_000, le=5 * limits.MINUTE_MS)] = 6_000
    """After so long without a sign of life from the owner another server takes the ledger over. Brokers allow 6000 at least, unless their `group.min.session.timeout.ms` is lowered."""
    shared: str | None = None
    """Folder that all servers see, or address in an object store (`s3://…`, `gs://…`, `abfss://…`), for snapshots of the registry, in a folder by the topic's name. Without it the log is never trimmed. An object store takes its settings from `pipeline.storage_options`."""
