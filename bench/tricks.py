"""Tricks for speed: what each earns, measured with it and without it in turns, in one server.

The server runs on a thread of this process, so that its switches (`tarry.core.tricks`) are at hand and the processor time of the
engine's thread can be read; the consumer is a process of its own. A turn is one burst with all tricks on and one without each. The
processor time says what a trick earns wherever the machine is busy with something else; the lateness needs a quiet one.

    python -m bench.tricks PORT     the consumer: reads "count due_at_ms" lines and answers each with figures
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

import numpy as np

from bench.consumer import poll
from bench.figures import Lateness
from bench.http_wire import Http
from bench.load_http import fill
from bench.plan import PAYLOAD_BYTES
from bench.processes import ROOT, environment, python
from bench.run import TARRY, Run
from bench.tape import lateness
from bench.tarry_server import SUBSCRIPTION
from tarry.config import load
from tarry.core.tricks import TRICKS, Tricks
from tarry.serve.composition.server import Server
from tarry.serve.datafolder import DataFolder

NAMES: Final = Tricks.__struct_fields__
READ_AHEAD_S: Final = 1.6
"""Before that nothing of a burst is read ahead."""
SETTLE_S: Final = 0.4
PER_S: Final = 60_000
"""How many messages are scheduled in a second, unless the machine is busy."""
STILL_S: Final = 0.03
"""Before the due instant reading ahead is over."""


def without(trick: str) -> str:
    """The entrant that has all tricks but one."""
    return f"without {trick}"


def measure(run: Run) -> None:
    """Bursts with all tricks, and without each of them."""
    with run.place() as place, _Serving(place) as server:
        for count in run.plan.bursts:
            for _ in range(2):
                server.burst(count)
            for turn in range(run.plan.trick_turns):
                run.say(f"{count:,} at one instant, turn {turn + 1} of {run.plan.trick_turns}")
                entrants = ["", *NAMES]
                # Nobody is always first, or always behind the same one.
                first = turn % len(entrants)
                for trick in (entrants[first:] + entrants[:first])[:: 1 if turn % 2 else -1]:
                    with _off(trick):
                        server.measure(run, without(trick) if trick else TARRY, count)


@contextmanager
def _off(trick: str) -> Iterator[None]:
    """Switch a trick off for a while."""
    if trick:
        setattr(TRICKS, trick, False)
    try:
        yield
    finally:
        if trick:
            setattr(TRICKS, trick, True)


class _Serving:
    """A server on a thread of this process, and its consumer; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="engine")
        self._port = 0
        self._slow = 1.0
        """How many times longer than that scheduling may take, as it turned out."""

    def __enter__(self) -> "_Serving":
        self._thread.start()
        self._ready.wait()
        Http(self._port).call("PUT", SUBSCRIPTION, {"type": "shared", "start": "earliest"})
        self._consumer = _Consumer(self._port)
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.end()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        given = {"http.port": 0, "data": str(self._folder / "data")}
        config = load(environment={}, overrides=given).config
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        with DataFolder.open(Path(config.data)) as owned:
            server = Server(config, owned)
            try:
                self._port = int((await server.start()).rsplit(":", 1)[1].strip("/"))
                self._ready.set()
                await self._over.wait()
            finally:
                self._ready.set()
                await server.stop()

    def burst(self, count: int) -> tuple[Lateness, float, float]:
        """So many messages due at one instant: how late they are, and the processor time ahead of the instant and from then on."""
        due_at_s = round(time.time() + READ_AHEAD_S + self._slow * (SETTLE_S + count / PER_S), 3)
        due_at_ms = round(due_at_s * 1000)
        fill(self._port, np.full(count, due_at_ms, np.int64), PAYLOAD_BYTES)
        self._consumer.ask(count, due_at_ms)
        if time.time() > due_at_s - READ_AHEAD_S:
            # There was too little time to read ahead: once more, with more of it.
            self._slow *= 1.5
            self._consumer.answer()
            self._consumer.acknowledged()
            return self.burst(count)
        before = self._cpu_ms_at(due_at_s - READ_AHEAD_S)
        due = self._cpu_ms_at(due_at_s - STILL_S)
        late = self._consumer.answer()
        after = self._cpu_ms_at(0)
        self._consumer.acknowledged()
        return late, due - before, after - due

    def _cpu_ms_at(self, at_s: float) -> float:
        time.sleep(max(0, at_s - time.time()))
        return time.clock_gettime(self._clock) * 1000

    def measure(self, run: Run, who: str, count: int) -> None:
        """Take the figures of one burst."""
        late, ahead_ms, due_ms = self.burst(count)
        name = f"tricks {count}"
        run.figures.add(who, f"{name} p99", late.p99_ms)
        run.figures.add(who, f"{name} due", due_ms)
        run.figures.add(who, f"{name} all", ahead_ms + due_ms)
        run.figures.add(TARRY, "early", late.early)


class _Consumer:
    """The process that takes the messages."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            python("bench.tricks", str(port)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        self._line("listening")

    def _line(self, text: str) -> str:
        output: IO[str] = self._process.stdout  # type: ignore[assignment]
        for line in output:
            if text in line:
                return line
        raise AssertionError("the consumer ended")

    def ask(self, count: int, due_at_ms: int) -> None:
        """Have it take so many, due at an instant."""
        asked: IO[str] = self._process.stdin  # type: ignore[assignment]
        print(count, due_at_ms, file=asked, flush=True)

    def answer(self) -> Lateness:
        """How late they came."""
        return Lateness(**json.loads(self._line("{")))

    def acknowledged(self) -> None:
        """Until it is done with them."""
        self._line("acknowledged")

    def end(self) -> None:
        """End it: it has nothing more to read."""
        self._process.communicate()


def consume(port: int) -> None:
    """Take bursts, and acknowledge each as a whole once its figures are told."""
    http, taken = Http(port), 0
    print("listening", flush=True)
    for line in sys.stdin:
        count, due_at_ms = map(int, line.split())
        tape = poll(port, count)
        late = lateness(tape, np.full(count, due_at_ms, np.float64))
        taken += count
        print(json.dumps(asdict(late)), flush=True)
        http.call("POST", f"{SUBSCRIPTION}/ack", {"up_to": taken - 1})
        print("acknowledged", flush=True)


if __name__ == "__main__":
    consume(int(sys.argv[1]))
