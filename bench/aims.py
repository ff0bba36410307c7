"""The aims: every number that the project set out to reach, beside what was measured. Losing rows stay in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.clients.measure import CALLERS
from bench.clients.peers import REDIS
from bench.cluster import LOCAL
from bench.figures import Figure, Figures, said, short
from bench.matrix import SYNAPSE
from bench.plan import CONNECTIONS
from bench.run import TARRY

MET, MISSED, UNKNOWN = "yes", "**no**", "not measured"


@dataclass(frozen=True)
class Aim:
    """A number that the project set out to reach."""

    part: str
    text: str
    what: str
    bound: float
    unit: str = ""
    at_least: bool = False
    over: str | None = None
    """The figure is how many times this peer's it is."""
    near: str | None = None
    """The bound is ten per cent above this other figure, or `bound` above it, whichever is more."""
    always: bool = False
    """Every single value has to reach it, and not the median."""

    def figure(self, figures: Figures) -> Figure | None:
        """The measured figure."""
        if self.over is not None:
            return figures.ratio((TARRY, self.what), (self.over, self.what))
        return figures.get(TARRY, self.what)

    def value(self, figure: Figure) -> float:
        """The one that is judged."""
        if not self.always:
            return figure.median
        low, high = figure.spread
        return low if self.at_least else high

    def limit(self, figures: Figures) -> float | None:
        """The bound, where it does not depend on something that was not measured."""
        if self.near is None:
            return self.bound
        other = figures.get(TARRY, self.near)
        return None if other is None else max(1.1 * other.median, other.median + self.bound)

    def share(self, figures: Figures) -> float | None:
        """How many times better than the aim it is; below 1 it is missed."""
        figure, limit = self.figure(figures), self.limit(figures)
        if figure is None or limit is None:
            return None
        value = self.value(figure)
        over, under = (value, limit) if self.at_least else (limit, value)
        return over / under if under > 0 else None

    def row(self, figures: Figures) -> list[str]:
        """Its row of the table."""
        figure, limit = self.figure(figures), self.limit(figures)
        sign = "≥" if self.at_least else "≤"
        aim = "" if limit is None else f"{sign} {short(limit)}{self.unit}"
        if figure is None or limit is None:
            return [self.text, aim, "–", f"{UNKNOWN}: `--only {self.part}`"]
        value = self.value(figure)
        met = value >= limit if self.at_least else value <= limit
        return [self.text, aim, said(figure) + self.unit, MET if met else MISSED]


_ENGINE: Final = [
    Aim("schedule", f"HTTP schedules/s, {CONNECTIONS} connections", "single", 10_000, at_least=True),
    Aim("schedule", "NDJSON, messages/s", "ndjson", 200_000, at_least=True),
    Aim("schedule", "Arrow, messages/s", "arrow", 1_000_000, at_least=True),
    Aim("lateness", "10,000 due at one instant, p99", "burst 10000 p99", 20, " ms"),
    Aim("lateness", "100,000 due at one instant, p99", "burst 100000 p99", 200, " ms"),
    Aim("lateness", "steady load, p99", "steady p99", 5, " ms"),
    Aim("lateness", "messages that came early, in all parts", "early", 0, always=True),
    Aim("memory", "a pending message in the wheel", "wheel 10000000", 24, " B"),
    Aim("memory", "a pending message in the un-indexed tail", "tail 10000000", 24, " B"),
    Aim("memory", "10 M pending, whole server", "resident 10000000", 1 << 30, "B"),
    Aim("topics", "a topic with one entry, memory", "topics 100000 memory", 2_048, " B"),
    Aim(
        "topics", "100,000 topics, 1 M owners: longest wait for an answer", "topics 100000 stall", 100, " ms"
    ),
    Aim("restart", "on time again after SIGKILL with 1 M pending", "restart on time 1000000", 2_000, " ms"),
]
_CLIENTS: Final = [
    Aim(
        "clients", "schedules of one caller, times redis-py's rate", "clients 1 per_s", 0.8,
        at_least=True, over=REDIS,
    ),
    Aim(
        "clients", f"schedules of {CALLERS} callers, times redis-py's rate", f"clients {CALLERS} per_s", 3,
        at_least=True, over=REDIS,
    ),
    *(
        Aim(
            "names", f"{text} beside 10 M pending, p50: within 10 % or 0.1 ms of that beside 1,000",
            f"names many {what} p50", 100, " µs", near=f"names few {what} p50",
        )
        for what, text in (
            ("get", "get by name"), ("cancel", "cancel by name"), ("restart", "restart by name"), ("send", "send by name"),
            ("keep", "schedule, `keep`,"), ("replace", "schedule, `replace`,"),
        )
    ),
]  # fmt: skip
_CLUSTER: Final = [
    Aim("cluster", "on Kafka: a lone schedule, p50: within 2 ms of that on the disk", "cluster lone p50", 2, " ms",
        near="cluster lone p50 on the disk"),
    Aim("cluster", "on Kafka: HTTP schedules, times the rate on the disk", "cluster single", 0.6, at_least=True, over=LOCAL),
    Aim("cluster", "on Kafka: NDJSON, times the rate on the disk", "cluster ndjson", 0.6, at_least=True, over=LOCAL),
    Aim("cluster", "on Kafka: 10,000 due at one instant, p99", "cluster burst 10000 p99", 100, " ms"),
    Aim("cluster", "on Kafka: steady load, p99", "cluster steady p99", 25, " ms"),
    Aim("cluster", "on time again after SIGKILL of the owner", "cluster takeover", 8, " s"),
    Aim("cluster", "… with as many pending as could be filled (the table says): within 1 s of that with none", "cluster takeover pending",
        1, " s", near="cluster takeover"),
    Aim("cluster", "on time again after a hand-over", "cluster hand-over", 1, " s"),
]  # fmt: skip
_PIPELINE: Final = [
    Aim("pipeline", "index stream, messages/s", "indexed", 200_000, at_least=True),
    Aim("bulk", "bulk schedule of 10 M from a DataFrame, messages/s", "bulk", 200_000, at_least=True),
    Aim("pipeline", "cascade of a day of 3 M messages", "cascade 3000000", 10, " s"),
    Aim("many", "100 M pending over 30 days, whole server", "waiting 100000000 resident", 500 << 20, "B"),
    Aim("many", "100 M pending, next due messages, p99", "waiting 100000000 beside p99", 20, " ms"),
    Aim(
        "waiting", "lateness with 10 M pending, p99: within 10 % or 1 ms of that with none",
        "waiting 10000000 beside p99", 1, " ms", near="waiting 10000000 alone p99",
    ),
    Aim("waiting", "restart with 10 M indexed: ready", "waiting 10000000 ready", 3_000, " ms"),
    Aim("pipeline", "lateness while a cascade runs, p99", "cascading p99", 25, " ms"),
    Aim("idle", "an idle pipeline, of one core", "idle cpu", 2, " %"),
    Aim("idle", "an idle pipeline, memory", "idle memory", 1 << 30, "B"),
]  # fmt: skip
_MATRIX: Final = [
    *(
        Aim(
            "matrix", f"{action}s, times Synapse's rate, {clients} client{'s' if clients > 1 else ''}",
            f"matrix {action} {clients}", 10, at_least=True, over=SYNAPSE,
        )
        for action in ("schedule", "restart")
        for clients in (1, 16)
    ),
    Aim("matrix", "200 events due at one instant, all handed to the homeserver", "matrix handed worst", 50, " ms"),
    Aim("conference", "10,000 participants: restart p99", "conference p99", 250, " ms"),
    Aim("conference", "10,000 participants: false leaves", "conference false leaves", 0, always=True),
]  # fmt: skip
_PULSAR: Final = [
    Aim("pulsar", "delayed sends of the real client, messages/s", "pulsar client", 20_000, at_least=True),
    Aim("pulsar", "delayed sends replayed as frames, messages/s", "pulsar replay", 40_000, at_least=True),
    Aim("pulsar", "receive and acknowledge, messages/s", "pulsar consume", 50_000, at_least=True),
    Aim(
        "pulsar",
        "10,000 due at one instant, real client's receive, p99",
        "pulsar burst 10000 p99",
        150,
        " ms",
    ),
    Aim(
        "pulsar",
        "50,000 due at one instant, real client's receive, the last",
        "pulsar burst 50000 worst",
        1_000,
        " ms",
    ),
    Aim("pulsar", "memory of ten subscriptions over one", "pulsar ten subscriptions", 10, " %"),
]
_DAPR: Final = [
    Aim("dapr", "scheduled publishes over HTTP/s", "dapr http", 5_000, at_least=True),
    Aim("dapr", "scheduled publishes over gRPC/s", "dapr grpc", 5_000, at_least=True),
    Aim("dapr", "bulks of 100 over HTTP, messages/s", "dapr http bulk", 50_000, at_least=True),
    Aim("dapr", "bulks of 100 over gRPC, messages/s", "dapr grpc bulk", 50_000, at_least=True),
    Aim("dapr", "10,000 due at one instant, all in Redis after", "dapr redis 10000", 500, " ms"),
]
AIMS: Final[dict[str, Sequence[Aim]]] = {
    "The engine": _ENGINE,
    "Clients": _CLIENTS,
    "Two machines": _CLUSTER,
    "The pipeline": _PIPELINE,
    "The Matrix door": _MATRIX,
    "The Pulsar door": _PULSAR,
    "The Dapr door": _DAPR,
}
