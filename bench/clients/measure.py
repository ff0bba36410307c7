"""Latency and throughput of client libraries: one caller, many, and a worker."""

from typing import Final

from bench.clients.peers import LIBRARIES, Found, Library, load
from bench.peers.peer import FAILURES
from bench.run import TARRY, Run
from bench.tarry_server import TarryServer

CALLERS: Final = 256
PLACES: Final = 10
ENTRIES: Final = 5_000
UNREPEATED: Final = "Tarry, retry_for_s=0"


def measure(run: Run) -> None:
    """Ours, then each library; and again."""
    for _ in run.turns():
        with run.place() as place, TarryServer(place) as server:
            url = f"http://127.0.0.1:{server.port}"
            for who, client in ((TARRY, "tarry"), (UNREPEATED, "tarry-unrepeated")):
                for width in (1, CALLERS):
                    _add(run, who, width, load(client, url, "schedule", width, run.plan.load_s))
            run.figures.add(TARRY, "worker", load("tarry", url, "work", PLACES, ENTRIES)["per_s"])
        for library in LIBRARIES if run.peers else ():
            if library.name not in run.figures.skipped:
                _library(run, library)


def _library(run: Run, library: Library) -> None:
    run.say(library.name)
    with run.place() as place:
        try:
            server = library.server(place / "peer")
            try:
                for width in (1, CALLERS):
                    _add(
                        run, library.name, width, library.run(server.port, "schedule", width, run.plan.load_s)
                    )
                if library.works:
                    found = library.run(server.port, "work", PLACES, ENTRIES)
                    run.figures.add(library.name, "worker", found["per_s"])
            finally:
                server.stop()
        except FAILURES as error:
            run.skip(library.name, str(error))


def _add(run: Run, who: str, width: int, found: Found) -> None:
    for what, value in found.items():
        run.figures.add(who, f"clients {width} {what}", value)
