"""`make bench`: measures Tarry beside its peers and the machine's limits, prints the report and writes it.

python -m bench [--quick | --full] [--only WORD ...] [--no-peers] [--folder DIR]
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench import (
    bulk,
    dapr,
    lateness,
    load_http,
    machine,
    matrix,
    memory,
    pipeline,
    plan,
    pulsar,
    report,
    restart,
    waiting,
)
from bench.figures import Figures, Lateness
from bench.peers.entrants import ENTRANTS
from bench.peers.peer import Entrant, Skipped
from bench.plan import PAYLOAD_BYTES, SMALL_BYTES, Plan
from bench.processes import CACHE, CannotStart
from bench.report import TARRY
from bench.tarry_server import TarryServer
from bench.wire import Loaded, Refused

RESULTS = Path(__file__).with_name("RESULTS.md")
Load = Callable[[int, float, int], Loaded]
PARTS = (
    "machine",
    "schedule",
    "lateness",
    "peers",
    "memory",
    "restart",
    "pulsar",
    "dapr",
    "pipeline",
    "bulk",
    "waiting",
    "matrix",
)


class Bench:
    """One run."""

    def __init__(self, sizes: Plan, folder: Path, parts: set[str]) -> None:
        self.figures = Figures()
        self._plan = sizes
        self._folder = folder
        self._parts = parts
        self._began = time.monotonic()

    def run(self) -> None:
        """Everything: what is compared takes turns, the rest follows."""
        for repeat in range(1, self._plan.repeats + 1):
            turn = f"{repeat} of {self._plan.repeats}"
            self._do(
                "machine", turn, lambda place: machine.measure(self.figures, place, self._plan.load_s / 2)
            )
            self._do("schedule", turn, self._schedule)
            self._do("lateness", turn, self._lateness)
            if matrix.SYNAPSE not in self.figures.skipped:
                self._do("matrix", turn, self._matrix)
            for entrant in ENTRANTS:
                if entrant.name not in self.figures.skipped:
                    self._do("peers", f"{entrant.name}, {turn}", partial(self._peer, entrant))
        for count in self._plan.pending:
            self._do("memory", f"{count:,} pending", partial(self._memory, count))
        for repeat in range(1, self._plan.repeats + 1):
            self._do("restart", f"{repeat} of {self._plan.repeats}", self._restart)
        for repeat in range(1, self._plan.repeats + 1):
            self._do("pulsar", f"{repeat} of {self._plan.repeats}", self._pulsar)
            self._do("dapr", f"{repeat} of {self._plan.repeats}", self._dapr)
        self._do("pipeline", f"{self._plan.indexed:,} messages", self._pipeline)
        self._do("pipeline", "lateness beside a cascade", self._cascading)
        self._do("bulk", f"{self._plan.bulk:,} rows", self._bulk)
        for count in self._plan.waiting:
            self._do("waiting", f"{count:,} in the index", partial(self._waiting, count))

    def _do(self, part: str, detail: str, work: Callable[[Path], None]) -> None:
        """One part in a folder of its own, which goes afterwards."""
        if part not in self._parts:
            return
        print(f"{time.monotonic() - self._began:6.1f} s  {part}: {detail}", file=sys.stderr, flush=True)
        place = Path(tempfile.mkdtemp(dir=self._folder))
        # A peer may have to run as somebody else.
        place.chmod(0o755)
        try:
            work(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _schedule(self, place: Path) -> None:
        for name, size in (("", PAYLOAD_BYTES), (" small", SMALL_BYTES)):
            self._load(place / f"single{size}", f"single{name}", load_http.single, size)
            self._load(place / f"ndjson{size}", f"ndjson{name}", load_http.ndjson, size)
            self._load(place / f"arrow{size}", f"arrow{name}", load_http.arrow, size)

    def _load(self, place: Path, what: str, load: Load, size: int) -> None:
        """One load on a server of its own, after a shorter one to warm it up."""
        seconds, add = self._plan.load_s, self.figures.add
        with TarryServer(place) as server:
            load(server.port, seconds / 4, size)
            before, cpu_s = server.accepted(), server.cpu_s()
            loaded = load(server.port, seconds, size)
            accepted = server.accepted() - before
            add(TARRY, what, accepted / loaded.seconds)
            add(TARRY, f"{what} cpu", (server.cpu_s() - cpu_s) / accepted * 1e6)
        p50, p99 = np.percentile(np.frombuffer(loaded.latencies_ns, np.int64), [50, 99]) / 1e6
        add(TARRY, f"{what} latency p50", float(p50))
        add(TARRY, f"{what} latency p99", float(p99))

    def _lateness(self, place: Path) -> None:
        sizes = self._plan
        for count in sizes.bursts:
            self._late(f"burst {count}", lateness.burst(place / f"burst{count}", count, PAYLOAD_BYTES))
        first = sizes.bursts[0]
        self._late(f"events {first}", lateness.burst(place / "events", first, PAYLOAD_BYTES, events=True))
        self._late(
            "steady", lateness.steady(place / "steady", sizes.steady_per_s, sizes.steady_s, PAYLOAD_BYTES)
        )

    def _late(self, what: str, found: tuple[Lateness, Lateness]) -> None:
        seen, own = found
        self.figures.add_lateness(TARRY, what, seen)
        self.figures.add_lateness(TARRY, f"{what} own", own)
        self.figures.add(TARRY, "early", seen.early + own.early)

    def _matrix(self, place: Path) -> None:
        try:
            matrix.measure(self.figures, place, self._plan.load_s)
        except Skipped as error:
            self.figures.skipped[matrix.SYNAPSE] = str(error)
            print(f"          skipped: {error}", file=sys.stderr)

    def _peer(self, entrant: Entrant, place: Path) -> None:
        try:
            peer = entrant.start(place / "peer")
        except (Skipped, CannotStart, OSError) as error:
            self.figures.skipped[entrant.name] = str(error)
            print(f"          skipped: {error}", file=sys.stderr)
            return
        count = self._plan.bursts[0]
        try:
            peer.single(self._plan.load_s / 4)
            self.figures.add(entrant.name, "single", peer.single(self._plan.load_s))
            self.figures.add(entrant.name, "batched", peer.batched(self._plan.load_s))
            self.figures.add_lateness(entrant.name, f"burst {count}", peer.burst(count))
        finally:
            peer.stop()

    def _memory(self, count: int, place: Path) -> None:
        for name in ("wheel", "tail"):
            found = memory.measure(place / name, count, near=name == "wheel")
            self.figures.add(TARRY, f"{name} {count}", found.per_entry_bytes)
            self.figures.add(TARRY, f"resident {count}", found.resident_bytes)

    def _restart(self, place: Path) -> None:
        found = restart.measure(place / "restart", self._plan.restart_pending, PAYLOAD_BYTES)
        self.figures.add(TARRY, "restart ready", found.ready_ms)
        self.figures.add(TARRY, f"restart on time {self._plan.restart_pending}", found.on_time_ms)
        self.figures.add(TARRY, "restart late after", found.late_after)

    def _dapr(self, place: Path) -> None:
        try:
            dapr.measure(self.figures, place, self._plan.load_s)
        except Skipped as error:
            self.figures.skipped["Redis behind the Dapr door"] = str(error)

    def _pulsar(self, place: Path) -> None:
        pulsar.measure(self.figures, place, self._plan, TARRY)

    def _pipeline(self, place: Path) -> None:
        found = pipeline.measure(place / "pipeline", self._plan.indexed, PAYLOAD_BYTES)
        self.figures.add(TARRY, "indexed", found.indexed_per_s)
        self.figures.add(TARRY, "indexed cpu", found.index_cpu_s / self._plan.indexed * 1e6)
        self.figures.add(TARRY, f"cascade {self._plan.indexed}", found.cascade_s)
        self.figures.add(TARRY, "cascade cpu", found.cascade_cpu_s)

    def _cascading(self, place: Path) -> None:
        late = waiting.beside_a_cascade(place, self._plan.indexed, PAYLOAD_BYTES)
        self.figures.add_lateness(TARRY, "cascading", late)
        self.figures.add(TARRY, "early", late.early)

    def _bulk(self, place: Path) -> None:
        found = bulk.measure(place, self._plan.bulk, PAYLOAD_BYTES)
        for what, seconds, cpu in (
            ("bulk", found.spark_s, found.spark_cpu_s),
            ("bulk file", found.file_s, found.file_cpu_s),
        ):
            self.figures.add(TARRY, what, found.rows / seconds)
            self.figures.add(TARRY, f"{what} cpu", cpu / found.rows * 1e6)

    def _waiting(self, count: int, place: Path) -> None:
        found = waiting.measure(place, count, PAYLOAD_BYTES)
        add = self.figures.add
        add(TARRY, f"waiting {count} scheduled", found.scheduled_s)
        add(TARRY, f"waiting {count} indexed", found.indexed_s)
        add(TARRY, f"waiting {count} resident", found.resident_bytes)
        add(TARRY, f"waiting {count} ready", found.ready_ms)
        for beside, alone in zip(found.beside, found.alone, strict=True):
            add(TARRY, f"waiting {count} p99", beside.p99_ms)
            add(TARRY, f"waiting {count} alone p99", alone.p99_ms)
            add(TARRY, "early", beside.early + alone.early)


def main() -> int:
    """Read the arguments, measure, report."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description="Measure Tarry beside its peers.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const=plan.QUICK, dest="plan", help="about a minute")
    size.add_argument(
        "--full", action="store_const", const=plan.FULL, dest="plan", help="everything, many minutes"
    )
    size.add_argument(
        "--tiny", action="store_const", const=plan.TINY, dest="plan", help="only to see that it works"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out; nothing is downloaded")
    parser.add_argument(
        "--folder", type=Path, default=CACHE, help="where data folders are made; not a RAM disk"
    )
    given = parser.parse_args()
    sizes: Plan = given.plan or plan.NORMAL
    parts = set(given.only or PARTS) - ({"peers", "matrix"} if given.no_peers else set())
    given.folder.mkdir(parents=True, exist_ok=True)
    if machine.file_system(given.folder) in ("tmpfs", "ramfs"):
        print(
            f"{given.folder} is in memory: nothing there is durable. Name a --folder on a disk.",
            file=sys.stderr,
        )
        return 1
    described = machine.describe(given.folder)
    bench = Bench(sizes, given.folder, parts)
    try:
        bench.run()
    except (Refused, CannotStart, AssertionError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    text = report.write(bench.figures, sizes, described, ENTRANTS if "peers" in parts else [])
    print(text)
    if parts >= set(PARTS) - {"peers", "matrix"} and sizes is not plan.TINY:
        RESULTS.write_text(text)
        print(f"written to {RESULTS.relative_to(RESULTS.parent.parent)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
