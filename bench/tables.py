"""The tables of the report, one function for each part."""

from collections.abc import Iterable, Sequence
from statistics import quantiles
from typing import Final

from bench.clients.measure import CALLERS, PLACES, UNREPEATED
from bench.clients.peers import LIBRARIES
from bench.cluster import LOCAL
from bench.figures import Figure, Figures, said, short
from bench.http_layers import LOADS, WAYS
from bench.machine import WHO
from bench.names import FEW, OPERATIONS
from bench.peers.entrants import ENTRANTS
from bench.plan import CONNECTIONS, PEER_BATCH, SMALL_BYTES
from bench.results import Result
from bench.run import TARRY
from bench.tricks import NAMES, without

SYNAPSE: Final = "Synapse"
PULSAR: Final = "Pulsar"
_LATE: Final = ("p50", "p99", "worst")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is also readable as it is."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [head, ["-" * max(3, width) for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def listed(figures: Figures, rows: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each figure of Tarry's."""
    return [table(["what", "measured"], [[text, said(figures.get(TARRY, what))] for text, what in rows])]


def ratio(figures: Figures, who: str, ours: str, theirs: str) -> str:
    """Tarry's figure over a peer's, with its spread."""
    return said(figures.ratio((TARRY, ours), (who, theirs)))


def schedule(result: Result) -> list[str]:
    """Tarry's own ways in, then everybody's."""
    figures = result.figures
    ways = [
        (f"HTTP, one a request, {CONNECTIONS} connections", "single"),
        (f"the same, {SMALL_BYTES}-byte payloads", "single small"),
        ("NDJSON, every line with destination and due instant", "ndjson"),
        (f"the same, {SMALL_BYTES}-byte payloads", "ndjson small"),
        ("Arrow, a due instant in every row", "arrow"),
        (f"the same, {SMALL_BYTES}-byte payloads", "arrow small"),
    ]
    own = table(
        ["how", "messages/s", "server's processor time, µs a message", "latency of a request p50 / p99, ms"],
        [
            [
                text,
                said(figures.get(TARRY, what)),
                said(figures.get(TARRY, f"{what} cpu")),
                _pair(figures, f"{what} latency"),
            ]
            for text, what in ways
        ],
    )
    rows = [[f"**{TARRY}**", "synced before the answer", said(figures.get(TARRY, "single")), "",
             said(figures.get(TARRY, "ndjson")), "", ""]]  # fmt: skip
    for entrant in ENTRANTS:
        if figures.get(entrant.name, "single") is not None:
            rows.append(
                [
                    entrant.name,
                    entrant.promise,
                    said(figures.get(entrant.name, "single")),
                    ratio(figures, entrant.name, "single", "single"),
                    said(figures.get(entrant.name, "batched")),
                    ratio(figures, entrant.name, "ndjson", "batched"),
                    ratio(figures, entrant.name, "arrow", "batched"),
                ]
            )
    text = (
        f"Beside its peers, with the same load: {CONNECTIONS} connections with one message a request, and batches of {PEER_BATCH} "
        "(Tarry: NDJSON). Ratios above 1 are in Tarry's favour. Against a peer that does not sync before it answers, the promises differ."
    )
    head = [
        "",
        "when it answers",
        "single/s",
        "Tarry / peer",
        "batched/s",
        "Tarry's NDJSON / peer",
        "Tarry's Arrow / peer",
    ]
    return [own, text, table(head, rows)] if len(rows) > 1 else [own]


def clients(result: Result) -> list[str]:
    """Our client and others' libraries, each with its server."""
    figures = result.figures
    rows = []
    about = {TARRY: "asyncio; repeats safely", UNREPEATED: "the same without keys"}
    about |= {library.name: library.about for library in LIBRARIES}
    for who, words in about.items():
        if figures.get(who, "clients 1 per_s") is None:
            continue
        row = [f"**{who}**" if who == TARRY else who, words]
        for width in (1, CALLERS):
            what = f"clients {width} per_s"
            row.append(said(figures.get(who, what)))
            if width == 1:
                row.append(_pair(figures, "clients 1", who))
            row.append("" if who == TARRY else ratio(figures, who, what, what))
        row.append(said(figures.get(who, "worker")))
        rows.append(row)
    head = [
        "client", "", "one caller: calls/s", "p50 / p99, ms", "Tarry / this",
        f"{CALLERS} callers: calls/s", "Tarry / this", f"worker with {PLACES} places: entries/s",
    ]  # fmt: skip
    text = (
        "Programs as people write them: a closed loop of callers in one process, one message a call, an hour ahead. Ratios above "
        "1 are in Tarry's favour. A worker handles entries that are there already with a function that does nothing."
    )
    return [text, table(head, rows)]


def _pair(figures: Figures, what: str, who: str = TARRY) -> str:
    p50, p99 = figures.get(who, f"{what} p50"), figures.get(who, f"{what} p99")
    return "" if p50 is None or p99 is None else f"{short(p50.median)} / {short(p99.median)}"


def lateness(result: Result) -> list[str]:
    """Tarry's own, then everybody's burst."""
    figures = result.figures
    plan = result.plan
    rows = [(f"{count:,} due at one instant, long poll", f"burst {count}") for count in plan.bursts]
    rows.append((f"{plan.bursts[0]:,} due at one instant, event stream", f"events {plan.bursts[0]}"))
    rows.append((f"steady, {plan.steady_per_s:,}/s scheduled and delivered, event stream", "steady"))
    own = table(
        ["in milliseconds", "p50", "p99", "worst", "p99 of the server's own part", "early"],
        [
            *([text, *_said(figures, TARRY, what, (*_LATE, "own p99", "early"))] for text, what in rows),
            ["the disk alone: a small write with `fdatasync`", *_said(figures, WHO, "sync", _LATE), "", ""],
        ],
    )
    burst = f"burst {plan.bursts[0]}"
    beside = [[f"**{TARRY}**", *_said(figures, TARRY, burst, (*_LATE, "early")), ""]]
    beside += [
        [
            entrant.name,
            *_said(figures, entrant.name, burst, (*_LATE, "early")),
            ratio(figures, entrant.name, f"{burst} p99", f"{burst} p99"),
        ]
        for entrant in ENTRANTS
        if figures.get(entrant.name, f"{burst} p99") is not None
    ]
    head = [f"{plan.bursts[0]:,} due at one instant, one consumer, ms", *_LATE, "early", "p99, Tarry / peer"]
    text = "Beside its peers; of these ratios, below 1 Tarry is less late."
    return [own, text, table(head, beside)] if len(beside) > 1 else [own]


def _said(figures: Figures, who: str, what: str, parts: Iterable[str]) -> list[str]:
    return [said(figures.get(who, f"{what} {part}")) for part in parts]


def memory(result: Result) -> list[str]:
    """The table of memory for each pending message."""
    figures = result.figures
    count = result.plan.pending
    return listed(
        figures,
        [
            (f"{count // 2:,} pending in the un-indexed tail, bytes each", f"tail {count}"),
            (f"and {count // 2:,} in the wheel, bytes each", f"wheel {count}"),
            ("resident set of the server with all of them, bytes", f"resident {count}"),
        ],
    )


def topics(result: Result) -> list[str]:
    """The cost of a topic, and how long others wait."""
    plan = result.plan
    name = f"topics {plan.topics}"
    return listed(
        result.figures,
        [
            (f"{plan.topics:,} topics with one entry, bytes of memory each", f"{name} memory"),
            ("the registry with them, bytes for each topic", f"{name} registry"),
            (
                f"with {plan.subscriptions:,} subscriptions and {plan.owners:,} owners, the longest wait for an answer, ms",
                f"{name} stall",
            ),
        ],
    )


def restart(result: Result) -> list[str]:
    """After SIGKILL."""
    figures = result.figures
    count = result.plan.restart_pending
    return listed(
        figures,
        [
            (f"after SIGKILL with {count:,} pending: from the start to ready, ms", f"restart ready {count}"),
            ("… to the due instant of the first message on time, ms", f"restart on time {count}"),
            ("… messages that were late all the same afterwards", f"restart late after {count}"),
        ],
    )


def cluster(result: Result) -> list[str]:
    """The log beside the disk, and takeovers."""
    figures = result.figures
    count = result.plan.bursts[0]
    whats = [
        ("a lone schedule, p50, ms", "cluster lone p50"),
        ("a lone schedule, p99, ms", "cluster lone p99"),
        (f"HTTP schedules/s, {CONNECTIONS} connections", "cluster single"),
        ("NDJSON, messages/s", "cluster ndjson"),
        (f"{count:,} due at one instant, p99, ms", f"cluster burst {count} p99"),
        ("steady load, p99, ms", "cluster steady p99"),
    ]
    rows = [
        [
            text,
            said(figures.get(LOCAL, what)),
            said(figures.get(TARRY, what)),
            said(figures.ratio((TARRY, what), (LOCAL, what))),
        ]
        for text, what in whats
    ]
    takeovers = [
        ("from SIGKILL of the owner to the due instant of the first message on time, s", "cluster takeover"),
        ("… with many pending, s", "cluster takeover pending"),
        ("… that is so many", "cluster takeover pending count"),
        ("from SIGTERM, s", "cluster hand-over"),
    ]
    text = "All brokers share this machine's processors and disk with the servers and the load."
    head = ["what", "on the disk", "on three brokers", "brokers / disk"]
    return [text, table(head, rows), *listed(figures, takeovers)]


def pulsar(result: Result) -> list[str]:
    """The door, and a real Pulsar."""
    figures = result.figures
    rates = [
        ("delayed sends replayed as frames, messages/s", "pulsar replay"),
        ("… server's processor time, µs a message", "pulsar replay cpu"),
        ("delayed sends of the real client, messages/s", "pulsar client"),
        ("receive and acknowledge, messages/s", "pulsar consume"),
        ("… server's processor time, µs a message", "pulsar consume cpu"),
    ]
    rows = [
        [
            text,
            said(figures.get(TARRY, what)),
            said(figures.get(PULSAR, what)),
            ratio(figures, PULSAR, what, what),
        ]
        for text, what in rates
    ]
    text = f"memory of ten subscriptions over one, {result.plan.pulsar_delayed:,} delayed, %"
    rows.append([text, said(figures.get(TARRY, "pulsar ten subscriptions")), "", ""])
    late = []
    for count in result.plan.pulsar_bursts:
        own = f"pulsar burst {count} own"
        for way, named in (("", "receive"), (" listener", "a listener")):
            burst = f"pulsar burst {count}{way}"
            late.append([f"{count:,}, {named}: Tarry", *_said(figures, TARRY, burst, (*_LATE, "early")), ""])
            for tick_ms in (1, 1000):
                theirs = f"{burst} tick {tick_ms}"
                if figures.get(PULSAR, f"{theirs} p99") is not None:
                    late.append(
                        [
                            f"{count:,}, {named}: Pulsar, tick {tick_ms:,} ms",
                            *_said(figures, PULSAR, theirs, (*_LATE, "early")),
                            ratio(figures, PULSAR, f"{burst} p99", f"{theirs} p99"),
                        ]
                    )
        late.append(
            [f"{count:,}: Tarry's own part, as frames", *_said(figures, TARRY, own, (*_LATE, "early")), ""]
        )
    head = ["so many due at one instant, real client, ms late", *_LATE, "early", "p99, Tarry / Pulsar"]
    return [table(["", "Tarry", PULSAR, "Tarry / Pulsar"], rows), table(head, late)]


def dapr(result: Result) -> list[str]:
    """Publishes, and what reaches Redis."""
    figures, count = result.figures, result.plan.dapr_burst
    rows = [
        (f"scheduled publishes over HTTP, {CONNECTIONS} connections, /s", TARRY, "dapr http"),
        ("bulks of 100 over HTTP, messages/s", TARRY, "dapr http bulk"),
        (
            f"scheduled publishes over gRPC by its own client, {CONNECTIONS} calls at a time, /s",
            TARRY,
            "dapr grpc",
        ),
        ("the same calls to a bare gRPC server of grpcio, nothing stored, /s", "grpcio", "dapr grpc"),
        (
            f"scheduled publishes over gRPC as frames, {CONNECTIONS} connections, /s",
            TARRY,
            "dapr grpc frames",
        ),
        ("bulks of 100 over gRPC by its own client, messages/s", TARRY, "dapr grpc bulk"),
        (f"{count:,} due at one instant: the last is in Redis after, ms", TARRY, f"dapr redis {count}"),
    ]
    return [table(["what", "measured"], [[text, said(figures.get(who, what))] for text, who, what in rows])]


def matrix(result: Result) -> list[str]:
    """Rates, and a burst in two parts."""
    figures = result.figures
    rates = [
        [
            f"{action}, {clients} client{'s' if clients > 1 else ''}",
            said(figures.get(TARRY, what)),
            said(figures.get(SYNAPSE, what)),
            ratio(figures, SYNAPSE, what, what),
        ]
        for action in ("schedule", "restart", "cancel")
        for clients in (1, 16)
        for what in [f"matrix {action} {clients}"]
    ]
    rows = (
        ("Tarry: handed to the homeserver", TARRY, "matrix handed"),
        ("Tarry: seen by a client that syncs (the homeserver's own time included)", TARRY, "matrix seen"),
        ("Synapse's own: seen by a client that syncs", SYNAPSE, "matrix seen"),
    )
    count = result.plan.rooms
    return [
        table(["requests/s", "Tarry", "Synapse", "Tarry / Synapse"], rates),
        table(
            [f"{count} events in {count} rooms due at one instant, ms late", *_LATE],
            [[text, *_said(figures, who, what, _LATE)] for text, who, what in rows],
        ),
    ]


def conference(result: Result) -> list[str]:
    """Ten minutes of heartbeats."""
    figures = result.figures
    plan = result.plan
    return listed(
        figures,
        [
            (
                f"{plan.participants:,} participants, {plan.conference_min:g} minutes: restarts/s",
                "conference restarts",
            ),
            ("latency of a restart from the instant at which it was to be sent, p50, ms", "conference p50"),
            ("… p99, ms", "conference p99"),
            ("… worst, ms", "conference worst"),
            ("false leaves", "conference false leaves"),
            ("leaves of those who died that did not arrive", "conference missing leaves"),
        ],
    )


def pipeline(result: Result) -> list[str]:
    """Index stream, cascade, and who is late because of it."""
    figures = result.figures
    count = f"{result.plan.indexed:,}"
    return listed(
        figures,
        [
            (f"{count} messages from the ledger into slots of an hour, messages/s", "indexed"),
            ("… processor time of all processes, µs a message", "indexed cpu"),
            (f"cascade of a day of {count} into hours, s", f"cascade {result.plan.indexed}"),
            ("… processor time of all processes, s", "cascade cpu"),
            ("lateness of a steady load beside cascades, p50, ms", "cascading p50"),
            ("… p99, ms", "cascading p99"),
            ("… worst, ms", "cascading worst"),
        ],
    )


def bulk(result: Result) -> list[str]:
    """From a DataFrame, and from a file."""
    figures = result.figures
    rows = f"{result.plan.bulk:,} rows of a Parquet file"
    return listed(
        figures,
        [
            (f"{rows} by Spark, due over thirty days, messages/s", "bulk"),
            ("… processor time of all processes, µs a message", "bulk cpu"),
            ("the same without Spark, messages/s", "bulk file"),
            ("… processor time of all processes, µs a message", "bulk file cpu"),
            ("the server's memory with both pending, bytes", "bulk memory"),
        ],
    )


def waiting(result: Result) -> list[str]:
    """The table of costs of messages that wait in the index."""
    figures = result.figures
    count = result.plan.many if result.part == "many" else result.plan.waiting
    name = f"waiting {count}"
    late = [
        [text, *_said(figures, TARRY, f"{name} {what}", (*_LATE, "own p99"))]
        for text, what in ((f"with {count:,} in the index", "beside"), ("with none", "alone"))
    ]
    size = f", {SMALL_BYTES} bytes each" if result.part == "many" else ""
    return [
        *listed(
            figures,
            [
                (
                    f"set-up: {count:,} over thirty days{size}, by `tarry bulk schedule`, s",
                    f"{name} scheduled",
                ),
                ("set-up: `tarry pipeline --once`, s", f"{name} indexed"),
                ("ready after SIGKILL, ms", f"{name} ready"),
                ("resident set of the server, bytes", f"{name} resident"),
            ],
        ),
        table(["a steady load, in turns, ms late", *_LATE, "p99 of the server's own part"], late),
    ]


def names(result: Result) -> list[str]:
    """The table of operations by name: with few messages, and with very many."""
    figures, plan = result.figures, result.plan
    head = [
        "one at a time, µs a request", f"{FEW:,} with names: p50", "p99",
        f"{plan.pending:,} pending, {plan.named:,} with names: p50", "p99", "many / few, p50",
    ]  # fmt: skip
    texts = {
        "unnamed": "schedule without a name",
        "new": "schedule under a new name",
        "get": "get by name",
        "keep": "schedule, `keep`",
        "replace": "schedule, `replace`",
        "restart": "restart by name",
        "cancel": "cancel by name",
        "again": "schedule under a name that is free again",
        "send": "send by name",
    }
    rows = []
    for what in OPERATIONS:
        few, many = f"names few {what}", f"names many {what}"
        cells = [said(figures.get(TARRY, f"{one} {p}")) for one in (few, many) for p in ("p50", "p99")]
        rows.append([texts[what], *cells, said(figures.ratio((TARRY, f"{many} p50"), (TARRY, f"{few} p50")))])
    return [
        table(head, rows),
        *listed(figures, [("scheduled under new names as NDJSON, messages/s", "names given")]),
    ]


def idle(result: Result) -> list[str]:
    """The table of costs of an idle pipeline."""
    figures = result.figures
    return listed(
        figures,
        [
            ("processor time, % of one core", "idle cpu"),
            ("memory of all its processes, Java included, bytes", "idle memory"),
        ],
    )


def tricks(result: Result) -> list[str]:
    """Tables of what each trick earns: figures without it over those with all."""
    figures = result.figures
    found = []
    for count in result.plan.bursts:
        rows = []
        for who in (TARRY, *map(without, NAMES)):
            cells = []
            for what in (f"tricks {count} {one}" for one in ("p99", "due", "all")):
                cells.append(_quartiles(figures.get(who, what)))
                cells.append(_quartiles(figures.ratio((who, what), (TARRY, what))) if who != TARRY else "")
            rows.append(["all on" if who == TARRY else who, *cells])
        head = [
            f"{count:,} due at one instant, median and quartiles", "p99, ms late", "without / with",
            "processor of the engine's thread from the instant on, ms", "without / with",
            "… and 1.6 s before, ms", "without / with",
        ]  # fmt: skip
        found.append(table(head, rows))
    return found


def http_layers(result: Result) -> list[str]:
    """Tables of the ways to serve HTTP: processor time a request, and how many a second."""
    figures = result.figures
    found = []
    for what, request in LOADS.items():
        cpu, rate = f"{what} cpu", f"{what} rate"
        rows = []
        for who in WAYS:
            ratio = _quartiles(figures.ratio((who, cpu), (TARRY, cpu))) if who != TARRY else ""
            shown = "the kit" if who == TARRY else who
            rows.append([shown, _quartiles(figures.get(who, cpu)), ratio, _quartiles(figures.get(who, rate))])
        head = [
            f"{request}, median and quartiles", "processor of the engine's thread a request, us", "over the kit's",
            "requests/s",
        ]  # fmt: skip
        found.append(table(head, rows))
    return found


def _quartiles(figure: Figure | None) -> str:
    """A figure of many values: of those that something else on the machine has spoilt a quarter is left out on each side."""
    if figure is None:
        return "–"
    if len(figure.values) < 4:
        return said(figure)
    low, _, high = quantiles(figure.values, n=4)
    return f"{short(figure.median)} ({short(low)} … {short(high)})"
