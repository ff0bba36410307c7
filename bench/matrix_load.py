"""`make load-matrix`: a conference. Participants keep their memberships alive by a restart every few seconds.

python -m bench.matrix_load [--participants 10000] [--minutes 10] [--every-ms 5000] [--delay-ms 8000] [--dying 100]

Tarry runs with its default settings before a real Synapse. A restart's latency counts from the instant at which it was
to be sent, so that a server that stalls cannot hide it. Nobody may leave who has not died: a heartbeat that finds its
event gone, or an event in a room, is a false leave. Near the end some stop, and their leave events must arrive.
The exit code is 1 if there was a false leave, a leave that did not come, or a p99 above the aim.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import numpy as np
import uvloop

from bench.matrix import SYNAPSE, Door
from bench.peers.peer import Skipped
from bench.peers.synapse import SynapseServer, call
from bench.processes import CACHE, CannotStart, free_port
from bench.run import Run

PER_USER: Final = 100
"""As many as a user may have by default."""
CONNECTIONS: Final = 128
AIM_P99_MS: Final = 250
MEMBER: Final = "m.rtc.member"
SCHEDULE_EVERY_S: Final = 0.1
"""How often one user schedules: below the door's default rate."""
FAREWELL_S: Final = 20
"""For the leave events of those who died to arrive, while all others go on."""


@dataclass
class Tally:
    """Counts of what the participants saw."""

    late_ms: "array[float]" = field(default_factory=lambda: array("d"))
    false_leaves: list[str] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One kept connection: a request, then its answer."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._data = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the waiting request that its connection is lost."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server closed a connection"))

    def data_received(self, data: bytes) -> None:
        """Take bytes; the answer is complete when its length has come."""
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = self._data[:end].lower()
        at = head.find(b"content-length: ")
        length = int(head[at + 16 :].split(b"\r\n", 1)[0])
        if len(self._data) >= end + 4 + length:
            body, self._data = self._data[end + 4 : end + 4 + length], b""
            self._answer.set_result((int(head[9:12]), body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """One request; gives the status and the body."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer


class Pool:
    """Connections that are lent for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.Queue[Connection] = asyncio.Queue()

    async def open(self) -> None:
        """Connect."""
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
            self._free.put_nowait(connection)

    async def ask(self, method: str, path: str, body: bytes, token: str | None = None) -> tuple[int, bytes]:
        """One request."""
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{authorization}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        connection = await self._free.get()
        try:
            return await connection.ask(head.encode() + body)
        finally:
            self._free.put_nowait(connection)


async def join(pool: Pool, token: str, room_id: str, number: int, delay_ms: int) -> str:
    """A participant's delayed leave event; gives its id."""
    path = f"/_matrix/client/v3/rooms/{quote(room_id)}/delayed_event/{MEMBER}/{number}"
    body = {"delay": delay_ms, "state_key": f"_{number}", "content": {"left": number}}
    status, answer = await pool.ask("PUT", path, json.dumps(body).encode(), token)
    assert status == 200, answer
    return str(json.loads(answer)["delay_id"])


async def stay(pool: Pool, delay_id: str, every_s: float, until_s: float, tally: Tally) -> None:
    """One participant: a heartbeat after another, each at its instant."""
    loop = asyncio.get_running_loop()
    at_s = loop.time() + every_s
    path = f"/_matrix/client/v1/delayed_events/{delay_id}/restart"
    while at_s < until_s:
        await asyncio.sleep(max(0.0, at_s - loop.time()))
        status, answer = await pool.ask("POST", path, b"{}")
        tally.late_ms.append((loop.time() - at_s) * 1000)
        if status != 200:
            tally.false_leaves.append(f"{status} {answer.decode()}")
            return
        at_s += every_s


@dataclass(frozen=True)
class Size:
    """How large a conference, and how long."""

    participants: int = 10_000
    minutes: float = 10.0
    every_ms: int = 5_000
    delay_ms: int = 8_000
    dying: int = 100
    """How many stop near the end."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a load."""

    restarts: int
    took_s: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    gone: list[str]
    """Answers to heartbeats that found nothing."""
    false_leaves: int
    """Leave events of participants who had not stopped, or a second one of those who had."""
    left: int
    """Leave events of those who had."""
    dying: int

    @property
    def good(self) -> bool:
        """Whether it went as it should."""
        return (
            not self.gone and not self.false_leaves and self.left == self.dying and self.p99_ms <= AIM_P99_MS
        )

    def lines(self) -> list[str]:
        """In words."""
        per_s = self.restarts / self.took_s
        return [
            f"{self.restarts:,} restarts in {self.took_s:.0f} s ({per_s:,.0f}/s)",
            f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, worst {self.worst_ms:.0f} ms; aim: p99 ≤ {AIM_P99_MS} ms",
            f"heartbeats that found nothing: {len(self.gone)} {self.gone[:3]}",
            f"{self.dying} died: {self.left} leave events have arrived; {self.false_leaves} of others",
        ]


async def conference(size: Size, homeserver: SynapseServer, port: int) -> Outcome:
    """Everything."""
    pool = Pool(port)
    await pool.open()
    users = -(-size.participants // PER_USER)
    tokens = [homeserver.user(f"user{number}") for number in range(users)]
    rooms = [homeserver.rooms(token, 1)[0] for token in tokens]
    say(f"{users} users with {PER_USER} participants each join")
    tally = Tally()
    began_s = asyncio.get_running_loop().time()
    end_s = began_s + PER_USER * SCHEDULE_EVERY_S + size.minutes * 60
    death_s = end_s - size.delay_ms / 1000 - FAREWELL_S

    async def participants(user: int) -> None:
        beats = []
        for number in range(user * PER_USER, min((user + 1) * PER_USER, size.participants)):
            delay_id = await join(pool, tokens[user], rooms[user], number, size.delay_ms)
            until_s = death_s if number < size.dying else end_s
            beats.append(asyncio.create_task(stay(pool, delay_id, size.every_ms / 1000, until_s, tally)))
            await asyncio.sleep(SCHEDULE_EVERY_S)
        await asyncio.gather(*beats)

    others = asyncio.gather(*map(participants, range(users)))
    await asyncio.sleep(end_s - FAREWELL_S / 2 - asyncio.get_running_loop().time())
    left = await asyncio.to_thread(leavers, homeserver, rooms, tokens)
    await others
    return outcome(tally, asyncio.get_running_loop().time() - began_s, left, size.dying)


def outcome(tally: Tally, took_s: float, left: list[int], dying: int) -> Outcome:
    """Sum up."""
    p50, p99, worst = np.percentile(np.array(tally.late_ms), [50, 99, 100])
    rightly = len(set(left) & set(range(dying)))
    return Outcome(
        restarts=len(tally.late_ms),
        took_s=took_s,
        p50_ms=float(p50),
        p99_ms=float(p99),
        worst_ms=float(worst),
        gone=tally.false_leaves,
        false_leaves=len(left) - rightly,
        left=rightly,
        dying=dying,
    )


def leavers(homeserver: SynapseServer, rooms: list[str], tokens: list[str]) -> list[int]:
    """The numbers of the participants whose leave events are in the rooms."""
    return [
        number
        for room, token in zip(rooms, tokens, strict=True)
        for number in members(homeserver, room, token)
    ]


def members(homeserver: SynapseServer, room_id: str, token: str) -> list[int]:
    """The numbers of the participants whose leave events are in a room."""
    query = quote(json.dumps({"types": [MEMBER]}))
    path = f"/_matrix/client/v3/rooms/{quote(room_id)}/messages?dir=b&limit=1000&filter={query}"
    return [event["content"]["left"] for event in call(homeserver.url, "GET", path, token)["chunk"]]


def say(line: str) -> None:
    """Tell the person who waits."""
    print(line, flush=True)


def held(size: Size, place: Path) -> Outcome:
    """Hold a conference. Raises `Skipped` where there is no Synapse."""
    port = free_port()
    with (
        SynapseServer(place / "synapse", port) as homeserver,
        Door(place / "tarry", homeserver.url, homeserver.registration, port, unlimited=False),
    ):
        return uvloop.run(conference(size, homeserver, port))


def measure(run: Run) -> None:
    """Conferences among the other figures, one after another."""
    count = run.plan.participants
    size = Size(participants=count, minutes=run.plan.conference_min, dying=count // 100)
    for _ in run.turns():
        with run.place() as place:
            try:
                found = held(size, place)
            except (Skipped, CannotStart) as error:
                run.skip(SYNAPSE, str(error))
                return
        run.say(" · ".join(found.lines()))
        run.add("conference restarts", found.restarts / found.took_s)
        run.add("conference p50", found.p50_ms)
        run.add("conference p99", found.p99_ms)
        run.add("conference worst", found.worst_ms)
        run.add("conference false leaves", len(found.gone) + found.false_leaves)
        run.add("conference missing leaves", found.dying - found.left)


def main() -> int:
    """Read the arguments, run, judge."""
    parser = argparse.ArgumentParser(
        prog="make load-matrix ARGS=…", description="A conference over the Matrix door."
    )
    usual = Size()
    parser.add_argument("--participants", type=int, default=usual.participants)
    parser.add_argument("--minutes", type=float, default=usual.minutes)
    parser.add_argument("--every-ms", type=int, default=usual.every_ms)
    parser.add_argument("--delay-ms", type=int, default=usual.delay_ms)
    parser.add_argument("--dying", type=int, default=usual.dying)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        try:
            found = held(Size(**vars(parser.parse_args())), Path(folder))
        except Skipped as reason:
            print(f"skipped: {reason}", file=sys.stderr)
            return 0
    say("\n".join(found.lines()))
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
