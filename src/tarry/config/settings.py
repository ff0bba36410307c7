"""The settings that an operator may change, each with its default and its effect.

Pure values: nothing here reads a file, a variable or a socket. The text under a field is what
`docs/configuration.md` says of it, so it is written for operators. A duration ends in `_ms`, a
size in `_bytes`. Limits that are facts of the formats are in `core/limits.py` instead.
"""

import os.path
from typing import Annotated, Literal

from msgspec import Meta

from tarry.config.brokers import Brokers
from tarry.config.cluster import Cluster
from tarry.config.doors import Doors
from tarry.config.listening import Listening
from tarry.config.table import DOTTED, SECRET, SPARK, Path, Secret, Section
from tarry.core import limits
from tarry.core.rules.policy import Policy
from tarry.core.tenants.access import Role
from tarry.engine.settings import EngineSettings
from tarry.outlets.webhook.settings import WebhookSettings


class LedgerSection(Section, frozen=True, kw_only=True):
    """The durable log of every accepted operation."""

    segment_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 32)] = 64 << 20
    """Size of one segment file. Each is filled with zeros ahead of use."""
    commit_max_records: Annotated[int, Meta(ge=1, le=1 << 20)] = 8192
    """Maximum number of records in one frame, and so in one sync."""
    commit_max_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 8 << 20
    """Maximum size of one frame."""
    queue_max_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Maximum bytes that wait for the disk; beyond it new work is refused (503) until the disk catches up."""
    spare_segments: Annotated[int, Meta(ge=2, le=64)] = 2
    """Segments kept filled with zeros ahead of use: the next one, and the reserve."""
    log: Literal["disk", "kafka"] = "disk"
    """Where frames become durable: on this machine's `disk`, or in a topic of `kafka`, so that another server can take the ledger over."""
    topic: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = "tarry"
    """The topic that holds the ledger, in its first partition. Nothing else may write to it."""
    kafka: Annotated[dict[str, str], SECRET, DOTTED] = {}
    """Settings of librdkafka by their own names: `bootstrap.servers`, `security.protocol`, `sasl.mechanism` and so on."""
    kafka_files: Annotated[dict[str, Path], DOTTED] = {}
    """Further ones whose values are in files, such as `"sasl.password" = "/run/secrets/kafka"`."""


class Http(Listening, frozen=True, kw_only=True):
    """The native HTTP API."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""
    body_timeout_ms: Annotated[int, Meta(ge=100, le=limits.HOUR_MS)] = 30_000
    """Longest time for a request's body to arrive whole, or for the next piece of a stream."""
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 8 << 20
    """Maximum size of a JSON body, or of one line of NDJSON."""
    max_batches: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Maximum number of batch requests under way; each may hold a few megabytes. With several tokens, none gets more than half."""
    batch_timeout_ms: Annotated[int, Meta(ge=1_000, le=limits.DAY_MS)] = limits.HOUR_MS
    """Longest time for a batch request as a whole, however steadily its client sends."""
    max_sessions: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Maximum number of open consumers, long poll and event streams together. With several tokens, none gets more than half."""
    session_idle_ms: Annotated[int, Meta(ge=1_000, le=limits.DAY_MS)] = 60_000
    """Time after which a consumer that makes no requests and holds no entries is forgotten."""
    ack_timeout_ms: Annotated[int, Meta(ge=100, le=12 * limits.HOUR_MS)] = 60_000
    """Time after which an unacknowledged entry is delivered again; a request may set another."""
    metrics_open: bool = False
    """Serve /metrics without a token."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names by which browsers may reach a server without tokens."""


class PipelineSection(Section, frozen=True, kw_only=True):
    """The Spark program that keeps the index of scheduled messages and the history of finalised ones."""

    enabled: bool = True
    """Whether `tarry up` runs the pipeline beside the server. Without Java the server goes on alone."""
    master: Annotated[str, Meta(min_length=1)] = "local[2]"
    """The Spark master: this machine, or a cluster's address."""
    connect_timeout_ms: Annotated[int, Meta(ge=1_000, le=limits.HOUR_MS)] = 60_000
    """Longest wait for a cluster's first executor."""
    spark: Annotated[dict[str, str], SPARK] = {}
    """Further settings of Spark by their own names, such as `spark.executor.memory = "4g"`. Others can see them: secrets go into `storage_options`."""
    ship: bool = True
    """Whether Tarry's package is sent to a cluster's executors; if not, install it there. Install the packages that it imports either way."""
    python: str | None = None
    """The Python of the executors; by default that of the driver."""
    tables: Path | None = None
    """Folder or address of the tables (`s3://…`, `gs://…`, `abfss://…`); by default `tables` in the data folder."""
    storage_options: Annotated[dict[str, str], SECRET] = {}
    """Options of the tables' object store: keys, region, endpoint, by the names of its environment variables."""
    source: Literal["folder", "server", "log"] | None = None
    """Where the ledger is read from: the data `folder`, the `server` at the address below, or the `log` (`ledger.log = "kafka"`), whoever owns it. By default the server if there is an address, else the log if there is one, else the folder."""
    server: str | None = None
    """Address of the server, for a driver or executors that cannot see the data folder: the ledger is then read from there."""
    token: Secret | None = None
    """The token for `server`: role admin, all namespaces."""
    token_file: Path | None = None
    """A file that holds the token for `server`, on the driver's machine."""
    flush_rows: Annotated[int, Meta(ge=1, le=10_000_000)] = 500_000
    """Number of records that are indexed at once; up to four times as many when more have piled up."""
    flush_every_ms: Annotated[int, Meta(ge=0, le=limits.DAY_MS)] = 60_000
    """Longest wait of a record to be indexed when fewer than `flush_rows` have come."""
    cascade_every_ms: Annotated[int, Meta(ge=1_000, le=limits.DAY_MS)] = 30_000
    """Interval at which slots that are due soon are split, and small files merged."""
    keep_bodies: bool = False
    """Whether the history keeps the payloads of messages that were sent."""
    keep_versions_ms: Annotated[int, Meta(ge=10 * limits.MINUTE_MS, le=30 * limits.DAY_MS)] = limits.HOUR_MS
    """How long replaced files stay for readers of an older version; set it longer than any job takes."""
    keep_history_ms: Annotated[int, Meta(ge=limits.DAY_MS, le=limits.MAX_DELAY_MS)] = 90 * limits.DAY_MS
    """How long the history keeps a message."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """The pipeline's niceness: a higher one leaves more of the processor to the server on the same machine."""


class Log(Section, frozen=True, kw_only=True):
    """The server's log, on standard error. Never an id, a payload or a token."""

    format: Literal["plain", "json"] = "plain"
    """Format of log lines: `plain` for people, `json` for machines."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""


class Traces(Section, frozen=True, kw_only=True):
    """OpenTelemetry traces from the accept of a message to its delivery; they need the extra `otel`."""

    endpoint: str | None = None
    """Address of a collector's OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces. Without it nothing is traced."""
    headers: Annotated[dict[str, str], SECRET] = {}
    """Headers that the collector requires, such as `authorization`."""
    ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of requests that are traced, among those whose caller has not decided it (`traceparent`)."""
    service: Annotated[str, Meta(min_length=1)] = "tarry"
    """The service name in traces."""
    timeout_ms: Annotated[int, Meta(ge=100, le=limits.MINUTE_MS)] = 10_000
    """Longest time for the collector to take one batch of spans."""


class TokenSection(Section, frozen=True, kw_only=True):
    """A bearer token: exactly one of `token`, `token_file` and `sha256`."""

    name: Annotated[str, Meta(min_length=1)]
    """The token's name in logs."""
    token: Secret | None = None
    """The token itself."""
    token_file: Path | None = None
    """A file that holds the token."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    """The SHA-256 of the token, in hexadecimal."""
    roles: Annotated[tuple[Role, ...], Meta(min_length=1)]
    """Any of `admin`, `produce`, `consume`."""
    namespaces: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    """The namespaces (`tenant/namespace`) that the token reaches; `["*"]` is all of them."""
    operations_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] = 0
    """Maximum operations a second with this token, over all doors and connections together, at least 1; 0 sets no limit."""


class PoliciesSection(Section, frozen=True, kw_only=True):
    """Policies that hold where the API has set none."""

    broker: Policy = Policy()


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    data: Annotated[Path, Meta(min_length=1)] = "tarry-data"
    """The data folder. One server at a time owns it."""
    port_offset: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Number that is added to every port below except 0, so that a second Tarry has ports of its own; `--ports +10000` on the command line."""
    url: str | None = None
    """Address of the server for the command line; by default that of `[http]`."""
    token: Secret | None = None
    """The token that the command line shows to the server."""
    tls_client_cert: Path | None = None
    """Certificate chain (PEM) that the command line shows to a server with `tls_client_ca`; Spark's machines take both from these variables."""
    tls_client_key: Path | None = None
    """The private key of that certificate (PEM)."""
    ledger: LedgerSection = LedgerSection()
    cluster: Cluster = Cluster()
    engine: EngineSettings = EngineSettings()
    http: Http = Http()
    doors: Doors = Doors()
    webhook: WebhookSettings = WebhookSettings()
    brokers: Brokers = Brokers()
    pipeline: PipelineSection = PipelineSection()
    log: Log = Log()
    traces: Traces = Traces()
    policies: PoliciesSection = PoliciesSection()
    tokens: tuple[TokenSection, ...] = ()
    """Bearer tokens with their rights; see below."""

    def tables(self) -> str:
        """The folder or address of the tables."""
        given = self.pipeline.tables or os.path.join(self.data, "tables")
        return given if "://" in given else os.path.abspath(given)
