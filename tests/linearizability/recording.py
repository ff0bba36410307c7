"""Recording: messages of a real server are commanded from several sides at once, and each leaves a history.

Every message has a dialect, a delay, a plan for its receiver and a few clients that give commands at random instants, many of
them at the same one, or as soon as a server that was killed is back. At its end it is brought to its end, and looked at. Some
are delayed entries of a topic, with a consumer instead of a receiver.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp

from tests.linearizability.doors import Doors, NoAnswer
from tests.linearizability.history import History
from tests.linearizability.life import Dialect
from tests.linearizability.receivers import AS_TOKEN, Manner, Receivers, Subject
from tests.linearizability.recorded import Recorded, RecordedEntry, RecordedMessage
from tests.linearizability.server import Lives
from tests.processes import SMALL, ServerProcess, free_port
from tests.waiting import WITHIN_S

DIALECTS: Final[tuple[Dialect, ...]] = ("native", "seed", "merged", "query")
MANNERS: Final[tuple[Manner, ...]] = ("accept", "slowly", "refuse", "later", "hang up", "lose")
SPAN_S: Final = 0.25
"""In which the commands on a message are given."""
DELAYS_MS: Final = (20, 60, 120, 250, 60_000)
ENTRIES: Final = 0.2
"""The share of delayed entries among messages."""


class Recorder:
    """Records histories on one server."""

    def __init__(self, doors: Doors, receivers: Receivers, lives: Lives, seed: int) -> None:
        self._doors = doors
        self._receivers = receivers
        self._lives = lives
        self._random = random.Random(seed)
        self._number = 0
        self._entries: dict[int, RecordedEntry] = {}

    async def record(self, messages: int, *, absences: int = 0, kills: int = 0) -> list[History]:
        """The histories of so many messages that live at the same time.

        Meanwhile receivers go away, and the server is killed, so often.
        """
        before = self._receivers.absences
        lives = [self._message() for _ in range(messages)]
        async with asyncio.TaskGroup() as around:
            consuming = around.create_task(self._consume())
            async with asyncio.TaskGroup() as tasks:
                for life in lives:
                    tasks.create_task(self._live(life))
                tasks.create_task(self._go_away(absences))
                tasks.create_task(self._kill(kills))
            consuming.cancel()
        doubtful = self._receivers.absences > before
        return [life.history(doubtful=doubtful) for life in lives]

    def _message(self) -> Recorded:
        self._number += 1
        delay_ms = self._random.choice(DELAYS_MS)
        if self._random.random() < ENTRIES:
            entry = RecordedEntry(self._number, delay_ms, self._doors, self._lives)
            self._entries[self._number] = entry
            return entry
        # Of the native API there is most to ask.
        (dialect,) = self._random.choices(DIALECTS, (3, 1, 1, 1))
        # What has failed can be retried there.
        refuse = 4 if dialect == "native" else 1
        manners = self._random.choices(MANNERS, (4, 4, refuse, 3, 1, 1), k=self._random.randint(0, 3))
        subject = self._receivers.subjects[self._number] = Subject(manners)
        return RecordedMessage(
            self._number, delay_ms, self._doors, self._lives, dialect, subject, self._random.random()
        )

    async def _live(self, message: Recorded) -> None:
        await message.begin()
        moments = [self._random.uniform(0, SPAN_S) for _ in range(self._random.randint(1, 3))]
        async with asyncio.TaskGroup() as clients:
            for _ in range(self._random.randint(2, 6)):
                moment = self._random.choice(moments) + self._random.choice((0.0, 0.0005, 0.002))
                command = self._random.choices(message.commands, message.weights)[0]
                clients.create_task(self._later(moment, message, command))
        await message.bring_to_its_end()

    async def _later(self, moment_s: float, message: Recorded, command: str) -> None:
        await asyncio.sleep(moment_s)
        if not self._lives.is_up:
            # All of them come at once when it is back.
            await self._lives.back()
        await message.command(command)

    async def _consume(self) -> None:
        while True:
            try:
                got = await self._doors.receive()
                for number, entry_id in got:
                    self._entries[number].deliver(entry_id)
                if got:
                    await self._doors.acknowledge([entry_id for _, entry_id in got])
            except NoAnswer:
                await self._lives.back()

    async def _go_away(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(self._random.uniform(0.05, SPAN_S))
            await self._receivers.stop()
            await asyncio.sleep(self._random.uniform(0.02, 0.2))
            await self._receivers.start()

    async def _kill(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(self._random.uniform(0.01, 1.5 * SPAN_S))
            await self._lives.end(gently=self._random.random() < 0.2)


ENGINE: Final = """
backoff_min_ms = 20
backoff_max_ms = 100
attempts = 1000
"""
DOOR: Final = """
[doors.matrix]
enabled = true
port = {port}
homeserver = "{homeserver}"
registration = "{registration}"
send_timeout_ms = 150
max_pending_per_user = 100000
schedule_per_second = 0
manage_per_second = 0
manage_per_second_per_event = 0
list_per_second = 0
send_per_second = 0
"""


@contextlib.asynccontextmanager
async def recorder(folder: Path, seed: int) -> AsyncIterator[Recorder]:
    """A real server with its receivers, and clients that record."""
    receivers = Receivers()
    await receivers.start()
    native, matrix = free_port(), free_port()
    registration = folder / "registration.yaml"
    registration.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": "hs-secret-token"}))
    door = DOOR.format(port=matrix, homeserver=receivers.url, registration=registration)
    config = f"{SMALL}[engine]{ENGINE}[webhook]\nallow = ['127.0.0.1']{door}"
    try:
        with ServerProcess(folder / "data", config, port=native) as server:
            await asyncio.to_thread(server.start)
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=WITHIN_S)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                lives = Lives(server)
                doors = Doors(session, server.url, f"http://127.0.0.1:{matrix}", receivers, lives)
                await doors.subscribe()
                yield Recorder(doors, receivers, lives, seed)
    finally:
        await receivers.stop()
