"""The report: one text, printed and written to `bench/RESULTS.md`. Losing rows stay in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench import dapr, machine, matrix
from bench.figures import Figures, said, short
from bench.peers.peer import Entrant
from bench.plan import CONNECTIONS, PAYLOAD_BYTES, PEER_BATCH, SMALL_BYTES, Plan

TARRY: Final = "Tarry"


@dataclass(frozen=True)
class Aim:
    """What the project set out to reach."""

    text: str
    what: str
    bound: float
    unit: str
    at_least: bool

    def row(self, figures: Figures) -> list[str] | None:
        """Its row, if it was measured."""
        figure = figures.get(TARRY, self.what)
        if figure is None:
            return None
        met = figure.median >= self.bound if self.at_least else figure.median <= self.bound
        sign = "≥" if self.at_least else "≤"
        return [
            self.text,
            f"{sign} {short(self.bound)}{self.unit}",
            said(figure) + self.unit,
            "yes" if met else "no",
        ]


AIMS: Final = [
    Aim(f"HTTP schedules/s, {CONNECTIONS} connections", "single", 10_000, "", True),
    Aim("NDJSON messages/s", "ndjson", 200_000, "", True),
    Aim("Arrow messages/s", "arrow", 1_000_000, "", True),
    Aim("10,000 due at one instant, p99", "burst 10000 p99", 20, " ms", False),
    Aim("100,000 due at one instant, p99", "burst 100000 p99", 200, " ms", False),
    Aim("steady load, p99", "steady p99", 5, " ms", False),
    Aim("messages that came early", "early", 0, "", False),
    Aim("memory of a pending message in the wheel", "wheel 1000000", 24, " B", False),
    Aim("memory of a pending message in the tail", "tail 1000000", 24, " B", False),
    Aim("10 M pending, whole server", "resident 10000000", 1 << 30, "B", False),
    Aim("index stream, messages/s", "indexed", 200_000, "", True),
    Aim("bulk schedule from a DataFrame, messages/s", "bulk", 200_000, "", True),
    Aim("cascade of a day of 3 M messages", "cascade 3000000", 10, " s", False),
    Aim("lateness beside a cascade, p99", "cascading p99", 25, " ms", False),
    Aim("100 M waiting in the index, whole server", "waiting 100000000 resident", 500 << 20, "B", False),
    Aim("start with 10 M in the index: ready", "waiting 10000000 ready", 3_000, " ms", False),
    Aim("Pulsar: delayed sends of the real client, messages/s", "pulsar client", 20_000, "", True),
    Aim("Pulsar: delayed sends replayed, messages/s", "pulsar replay", 40_000, "", True),
    Aim("Pulsar: receive and acknowledge, messages/s", "pulsar consume", 50_000, "", True),
    Aim("Pulsar: 10,000 due at one instant, real client, p99", "pulsar burst 10000 p99", 150, " ms", False),
    Aim("Pulsar: 50,000 due at one instant, the last", "pulsar burst 50000 worst", 1_000, " ms", False),
    Aim("Pulsar: memory of ten subscriptions over one", "pulsar ten subscriptions", 10, " %", False),
    Aim("Dapr: scheduled publishes over HTTP/s", "dapr http", 5_000, "", True),
    Aim("Dapr: scheduled publishes over gRPC/s", "dapr grpc", 5_000, "", True),
    Aim("Dapr: bulks of 100 over HTTP, messages/s", "dapr http bulk", 50_000, "", True),
    Aim("Dapr: 10,000 due at one instant, all in Redis after", "dapr redis 10000", 500, " ms", False),
    Aim("Matrix schedules, times Synapse's rate, 16 clients", "matrix schedule 16 times", 10, "", True),
    Aim("Matrix restarts, times Synapse's rate, 16 clients", "matrix restart 16 times", 10, "", True),
    Aim("200 Matrix events due at one instant, all handed over", "matrix handed worst", 50, " ms", False),
    Aim("on time again after SIGKILL with 1 M pending", "restart on time 1000000", 2_000, " ms", False),
]


_HEAD: Final = """\
Made by `make bench`; [docs/benchmarks.md](../docs/benchmarks.md) says what is measured and how to read it. Payloads have
{size} bytes unless a row says otherwise. Every figure of Tarry is durable: `fdatasync` before the answer, and before a
consumer sees a message. Values are medians of {repeats}, with the lowest and the highest where there are several."""


def write(
    figures: Figures, plan: Plan, described: Sequence[tuple[str, str]], entrants: Sequence[Entrant]
) -> str:
    """The whole report."""
    parts = [
        "# Benchmark results",
        _HEAD.format(size=PAYLOAD_BYTES, repeats=f"{plan.repeats} run{'s' if plan.repeats > 1 else ''}"),
        "## The machine",
        table(["", ""], described),
        table(["raw limit", "measured"], _limits(figures)),
        "## Aims",
        table(["what", "aim", "measured", "met"], [row for aim in AIMS if (row := aim.row(figures))]),
        "## Scheduling",
        table(
            [
                "how",
                "messages/s",
                "server's processor time, µs a message",
                "latency of a request p50 / p99, ms",
            ],
            _schedules(figures),
        ),
        "## Lateness, in milliseconds",
        table(
            ["what", "p50", "p99", "worst", "p99 of the server's own part", "early"], _lateness(figures, plan)
        ),
        "## Memory and restart",
        table(["what", "measured"], _memory(figures, plan)),
    ]
    if figures.get(TARRY, "pulsar replay"):
        parts += ["## The Pulsar door", table(["what", "measured"], _pulsar(figures, plan))]
    if figures.get(TARRY, "dapr http"):
        parts += ["## The Dapr door", table(["what", "measured"], dapr.rows(figures))]
    if figures.get(TARRY, "bulk"):
        parts += ["## Bulk scheduling", table(["what", "measured"], _bulk(figures, plan))]
    if figures.get(TARRY, "indexed"):
        parts += ["## The pipeline", table(["what", "measured"], _pipeline(figures, plan))]
    if figures.get(TARRY, f"waiting {plan.waiting[0]} ready"):
        head = [
            "waiting in the index",
            "bulk schedule, s",
            "pipeline --once, s",
            "resident, bytes",
            "ready after SIGKILL, ms",
        ]
        head += ["lateness p99, ms", "with none waiting, ms"]
        parts += ["## Many that wait", table(head, _waiting(figures, plan))]
    if figures.get(TARRY, "matrix schedule 1"):
        parts += [
            "## The Matrix door beside Synapse's own delayed events",
            table(matrix.RATES_HEAD, matrix.rate_rows(figures)),
            table(matrix.BURST_HEAD, matrix.burst_rows(figures)),
        ]
    if entrants:
        parts += ["## Peers", _peers_text(plan), table(_PEERS_HEAD, _peers(figures, plan, entrants))]
        parts += [f"- {name} was skipped: {why}." for name, why in figures.skipped.items()]
    return "\n\n".join(parts) + "\n"


def _limits(figures: Figures) -> list[list[str]]:
    def limit(what: str) -> str:
        return said(figures.get(machine.WHO, what))

    return [
        ["4 KiB writes to a zero-filled file, each with `fdatasync`, /s", limit("syncs")],
        ["4 MiB writes, each with `fdatasync`, bytes/s", limit("bytes")],
        [f"the load against an echo, {CONNECTIONS} connections, requests/s", limit("echo")],
        [f"the load against bare uvicorn, {CONNECTIONS} connections, requests/s", limit("uvicorn")],
    ]


def _schedules(figures: Figures) -> list[list[str]]:
    rows = [
        (f"HTTP, one a request, {CONNECTIONS} connections", "single"),
        (f"the same, {SMALL_BYTES}-byte payloads", "single small"),
        ("NDJSON, every line with destination and due instant", "ndjson"),
        (f"the same, {SMALL_BYTES}-byte payloads", "ndjson small"),
        ("Arrow, a due instant in every row", "arrow"),
        (f"the same, {SMALL_BYTES}-byte payloads", "arrow small"),
    ]
    return [
        [
            text,
            said(figures.get(TARRY, what)),
            said(figures.get(TARRY, f"{what} cpu")),
            _pair(figures, f"{what} latency"),
        ]
        for text, what in rows
    ]


def _pair(figures: Figures, what: str) -> str:
    p50, p99 = figures.get(TARRY, f"{what} p50"), figures.get(TARRY, f"{what} p99")
    return "" if p50 is None or p99 is None else f"{short(p50.median)} / {short(p99.median)}"


def _lateness(figures: Figures, plan: Plan) -> list[list[str]]:
    rows = [(f"{count:,} due at one instant, long poll", f"burst {count}") for count in plan.bursts]
    rows.append((f"{plan.bursts[0]:,} due at one instant, event stream", f"events {plan.bursts[0]}"))
    rows.append((f"steady, {plan.steady_per_s:,}/s scheduled and delivered, event stream", "steady"))
    return [
        [
            text,
            *(
                said(figures.get(TARRY, f"{what} {part}"))
                for part in ("p50", "p99", "worst", "own p99", "early")
            ),
        ]
        for text, what in rows
    ]


def _memory(figures: Figures, plan: Plan) -> list[list[str]]:
    rows: list[list[str]] = []
    for count in plan.pending:
        rows += [
            [f"{count:,} pending in the {place}, bytes each", said(figures.get(TARRY, f"{place} {count}"))]
            for place in ("wheel", "tail")
        ]
        rows.append(
            [f"{count:,} pending, resident set, bytes", said(figures.get(TARRY, f"resident {count}"))]
        )
    after = f"after SIGKILL with {plan.restart_pending:,} pending"
    rows += [
        [f"{after}: from the start to ready, ms", said(figures.get(TARRY, "restart ready"))],
        [
            "… to the due instant of the first message on time, ms",
            said(figures.get(TARRY, f"restart on time {plan.restart_pending}")),
        ],
        ["… messages that were late all the same afterwards", said(figures.get(TARRY, "restart late after"))],
    ]
    return rows


def _pulsar(figures: Figures, plan: Plan) -> list[list[str]]:
    rows = [
        ("delayed sends replayed as frames, messages/s", "pulsar replay"),
        ("… server's processor time, µs a message", "pulsar replay cpu"),
        ("delayed sends of the real client, messages/s", "pulsar client"),
        ("receive and acknowledge, messages/s", "pulsar consume"),
        ("… server's processor time, µs a message", "pulsar consume cpu"),
    ]
    for count in plan.pulsar_bursts:
        for name, value in (("p99", "p99"), ("the last", "worst")):
            rows.append(
                (f"{count:,} due at one instant, real client, {name}, ms", f"pulsar burst {count} {value}")
            )
            rows.append((f"… the server's own part, {name}, ms", f"pulsar burst {count} own {value}"))
    text = f"memory of ten subscriptions over one, {plan.pulsar_delayed:,} delayed, %"
    rows.append((text, "pulsar ten subscriptions"))
    return [[text, said(figures.get(TARRY, what))] for text, what in rows]


def _bulk(figures: Figures, plan: Plan) -> list[list[str]]:
    rows = [
        (f"{plan.bulk:,} rows of a Parquet file by Spark, due over thirty days, messages/s", "bulk"),
        ("… processor time of all processes, µs a message", "bulk cpu"),
        ("the same without Spark, messages/s", "bulk file"),
        ("… processor time of all processes, µs a message", "bulk file cpu"),
    ]
    return [[text, said(figures.get(TARRY, what))] for text, what in rows]


def _pipeline(figures: Figures, plan: Plan) -> list[list[str]]:
    count = f"{plan.indexed:,}"
    return [
        [
            f"{count} messages from the ledger into slots of an hour, messages/s",
            said(figures.get(TARRY, "indexed")),
        ],
        ["… processor time of all processes, µs a message", said(figures.get(TARRY, "indexed cpu"))],
        [
            f"cascade of a day of {count} into hours, s",
            said(figures.get(TARRY, f"cascade {plan.indexed}")),
        ],
        ["… processor time of all processes, s", said(figures.get(TARRY, "cascade cpu"))],
        ["… lateness of a steady load beside it, p99, ms", said(figures.get(TARRY, "cascading p99"))],
    ]


def _waiting(figures: Figures, plan: Plan) -> list[list[str]]:
    parts = ("scheduled", "indexed", "resident", "ready", "p99", "alone p99")
    return [
        [f"{count:,}", *(said(figures.get(TARRY, f"waiting {count} {part}")) for part in parts)]
        for count in plan.waiting
    ]


_PEERS_HEAD: Final = [
    "",
    "when it answers",
    "single/s",
    "batched/s",
    "due at once: p50, ms",
    "p99, ms",
    "Tarry / peer",
]


def _peers_text(plan: Plan) -> str:
    return (
        f"In turns with Tarry, with the same load: {CONNECTIONS} connections with one message a request; batches of {PEER_BATCH} "
        f"(Tarry: NDJSON); {plan.bursts[0]:,} due at one instant, taken by one consumer. The last column compares single, batched "
        "and p99: above 1 Tarry schedules faster; of the p99, below 1 Tarry is less late. Against a peer that does not sync before it "
        "answers, the promises differ."
    )


def _peers(figures: Figures, plan: Plan, entrants: Sequence[Entrant]) -> list[list[str]]:
    burst = f"burst {plan.bursts[0]}"
    parts = ["single", "batched", f"{burst} p50", f"{burst} p99"]
    ours = ["single", "ndjson", f"{burst} p50", f"{burst} p99"]
    rows = [
        [f"**{TARRY}**", "synced before the answer", *(said(figures.get(TARRY, part)) for part in ours), ""]
    ]
    for entrant in entrants:
        if entrant.name in figures.skipped:
            continue
        values = [said(figures.get(entrant.name, part)) for part in parts]
        ratios = [_ratio(figures, entrant.name, parts[at], ours[at]) for at in (0, 1, 3)]
        rows.append([entrant.name, entrant.promise, *values, " · ".join(ratios)])
    return rows


def _ratio(figures: Figures, who: str, theirs: str, ours: str) -> str:
    own, other = figures.get(TARRY, ours), figures.get(who, theirs)
    if own is None or other is None or not other.median:
        return "–"
    return f"{own.median / other.median:.2g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is also readable as it is."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [head, ["-" * max(3, width) for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
