"""The report: one text made of the results of all parts. Losing rows stay in."""

from collections.abc import Callable, Sequence
from typing import Final

from bench import machine, tables
from bench.aims import AIMS, MET, MISSED
from bench.figures import Figures, said
from bench.plan import CONNECTIONS, PAYLOAD_BYTES
from bench.results import Result
from bench.tables import table

_HEAD: Final = f"""\
Made by `make bench`; [docs/benchmarks.md](../docs/benchmarks.md) says what is measured and how to read it. Payloads have
{PAYLOAD_BYTES} bytes unless a row says otherwise. Every figure of Tarry is durable: `fdatasync` before the answer, and before a
consumer sees a message. Values are medians, with the lowest and the highest in parentheses; who is compared was measured in
turns, in one run, and a ratio is that of each turn. Losing rows stay in."""

Section = Callable[[Result], list[str]]
SECTIONS: Final[dict[str, tuple[str, Section]]] = {
    "schedule": ("Scheduling", tables.schedule),
    "clients": ("Client libraries", tables.clients),
    "lateness": ("Lateness", tables.lateness),
    "memory": ("Memory", tables.memory),
    "names": ("Names of messages", tables.names),
    "topics": ("Very many topics", tables.topics),
    "restart": ("Restart", tables.restart),
    "cluster": ("Two machines", tables.cluster),
    "pulsar": ("The Pulsar door", tables.pulsar),
    "dapr": ("The Dapr door", tables.dapr),
    "matrix": ("The Matrix door beside Synapse's own delayed events", tables.matrix),
    "conference": ("A conference on the Matrix door", tables.conference),
    "pipeline": ("The pipeline", tables.pipeline),
    "bulk": ("Bulk scheduling", tables.bulk),
    "waiting": ("Many that wait in the index", tables.waiting),
    "many": ("Very many that wait in the index", tables.waiting),
    "idle": ("An idle pipeline", tables.idle),
    "tricks": ("The tricks for speed", tables.tricks),
    "http": ("Ways to serve HTTP", tables.http_layers),
}


def write(results: Sequence[Result], plots: Sequence[str]) -> str:
    """The whole report."""
    figures = Figures()
    for result in results:
        figures.take(result.figures)
    parts = ["# Benchmark results", _HEAD, "## Where and when", *_where(results)]
    if figures.get(machine.WHO, "syncs"):
        parts += ["The machine's raw limits, measured in turns with the part `schedule`:", _limits(figures)]
    parts += ["## Aims", *_aims(figures)]
    parts += [f"![{name.removesuffix('.svg').replace('-', ' ')}](plots/{name})" for name in plots]
    by_part = {result.part: result for result in results}
    for name, (title, section) in SECTIONS.items():
        if name in by_part:
            parts += [f"## {title}", *section(by_part[name])]
            found = by_part[name].figures
            parts += [f"- {who}: {note}." for who, note in found.notes.items()]
            parts += [f"- {who} was skipped: {why}." for who, why in found.skipped.items()]
    return "\n\n".join(parts) + "\n"


def _where(results: Sequence[Result]) -> list[str]:
    machines: list[list[tuple[str, str]]] = []
    for result in results:
        described = [line for line in result.machine if not line[0].startswith(machine.LOAD)]
        if described not in machines:
            machines.append(described)
    rows = [
        [
            result.part,
            result.began_at,
            f"{result.took_s / 60:.1f} min",
            str(result.plan.repeats),
            next((value for name, value in result.machine if name.startswith(machine.LOAD)), ""),
            result.commit,
            f"`{result.command}`",
        ]
        for result in results
    ]
    head = ["part", "begun", "took", "turns", machine.LOAD, "commit", "command"]
    return [*(table(["", ""], described) for described in machines), table(head, rows)]


def _limits(figures: Figures) -> str:
    rows = [
        ("4 KiB writes to a zero-filled file, each with `fdatasync`, /s", "syncs"),
        ("4 MiB writes, each with `fdatasync`, bytes/s", "bytes"),
        (f"the load against an echo, {CONNECTIONS} connections, requests/s", "echo"),
        (f"the load against bare uvicorn, {CONNECTIONS} connections, requests/s", "uvicorn"),
        ("bare socket and group commit, 256 in flight, one record each, records/s", "commit"),
        ("bare socket and group commit, batches of 256, records/s", "commit batched"),
    ]
    return table(
        ["raw limit", "measured"], [[text, said(figures.get(machine.WHO, what))] for text, what in rows]
    )


def _aims(figures: Figures) -> list[str]:
    rows = {title: [aim.row(figures) for aim in aims] for title, aims in AIMS.items()}
    verdicts = [row[-1] for group in rows.values() for row in group]
    met, missed = verdicts.count(MET), verdicts.count(MISSED)
    summary = f"{met} of {met + missed} aims that were measured are met."
    if rest := len(verdicts) - met - missed:
        summary += f" {rest} were not measured."
    parts = [summary]
    for title, group in rows.items():
        parts += [f"### {title}", table(["what", "aim", "measured", "met"], group)]
    return parts
