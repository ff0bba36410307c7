"""Recording: messages of a real server are commanded from several sides at once, and each leaves a history.

Every message has a dialect, a delay, a plan for its receiver and a few clients that give commands at random instants, many of
them at the same one. At its end it is brought to its end, and looked at.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

import aiohttp
from msgspec import Struct

from tests.linearizability.checker import Operation, order_of
from tests.linearizability.life import FINALISED, Dialect, Happened, Life, Model
from tests.linearizability.receivers import AS_TOKEN, USERS, Manner, Receivers, Subject, wall_ms
from tests.processes import ServerProcess, free_port
from tests.waiting import WITHIN_S

DIALECTS: Final[tuple[Dialect, ...]] = ("native", "seed", "merged", "query")
MANNERS: Final[tuple[Manner, ...]] = ("accept", "slowly", "refuse", "later", "hang up", "lose")
COMMANDS: Final = ("send", "cancel", "restart", "look")
SPAN_S: Final = 0.25
"""In which the commands on a message are given."""
ROOMS: Final = 40

Answered = tuple[int, Any]


class History(Struct, frozen=True):
    """All that happened to one message, as clients and receivers saw it."""

    number: int
    model: Model
    operations: list[Operation[Happened]]

    def is_explained(self) -> bool:
        """Whether there is an order in which it can have happened."""
        return order_of(self.operations, Life(), self.model.step) is not None

    def told(self) -> str:
        """The history in the order of its beginnings, for whoever looks into it."""
        began = min(one.called for one in self.operations if one.what.kind == "schedule")
        lines = [f"message {self.number}: {self.model}"]
        for one in sorted(self.operations, key=lambda one: one.called if one.called > 0 else one.returned):
            what = one.what
            span = f"{1000 * (one.called - began):9.2f} to {1000 * (one.returned - began):9.2f} ms"
            lines.append(f"  {span}  {what.kind:8} {what.result:9} {'(maybe)' if one.optional else ''}")
        return "\n".join(lines)


class Doors:
    """The two doors of a server as a client sees them: what each answer says, in the words of the model."""

    def __init__(
        self, session: aiohttp.ClientSession, native: str, matrix: str, receivers: Receivers
    ) -> None:
        self._session = session
        self._native = native
        self._matrix = f"{matrix}/_matrix/client"
        self._receivers = receivers

    async def _ask(self, method: str, url: str, **more: Any) -> Answered:
        async with self._session.request(method, url, **more) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else {}

    async def schedule(self, number: int, dialect: Dialect, delay_ms: int) -> str:
        """Schedule a message; gives its id."""
        if dialect == "native":
            body = {"destination": f"{self._receivers.url}/hook/{number}", "delay_ms": delay_ms}
            status, answer = await self._ask("POST", f"{self._native}/v1/messages", json=body)
            assert status == 201, answer
            return str(answer["id"])
        token, room = f"user{number % USERS}", f"{self._matrix}/v3/rooms/!r{number % ROOMS}:example.org"
        headers = {"Authorization": f"Bearer {token}"}
        if dialect == "query":
            url = f"{room}/send/m.x/{number}?org.matrix.msc4140.delay={delay_ms}"
            status, answer = await self._ask("PUT", url, json={"n": number}, headers=headers)
        else:
            name = "delay" if dialect == "seed" else "delay_ms"
            asked = {name: delay_ms, "content": {"n": number}}
            url = f"{room}/delayed_event/m.x/{number}"
            status, answer = await self._ask("PUT", url, json=asked, headers=headers)
        assert status == 200, answer
        return str(answer["delay_id"])

    async def command(self, id_: str, dialect: Dialect, command: str) -> str:
        """Restart, cancel or send; gives what the answer says, or "" for one that says nothing of the message."""
        if dialect == "native":
            status, _ = await self._ask("POST", f"{self._native}/v1/messages/{id_}/{command}")
            return {200: "due" if command == "send" else "ok", 409: "conflict"}.get(status, "")
        status, _ = await self._ask("POST", f"{self._matrix}/v1/delayed_events/{id_}/{command}", json={})
        if status in (404, 409):
            return "conflict"
        if command == "send":
            # 429: the homeserver limits; 502: it is away; 503: the event was restarted meanwhile; 504: nothing was heard.
            told = {200: "sent", 403: "refused", 429: "due", 502: "due", 503: "due", 504: "late"}
            return told.get(status, "")
        return "ok" if status == 200 else ""

    async def look(self, id_: str, dialect: Dialect, number: int, delay_ms: int) -> tuple[str, int | None]:
        """The state of a message, and when its delay began."""
        if dialect == "native":
            status, answer = await self._ask("GET", f"{self._native}/v1/messages/{id_}")
            assert status == 200, answer
            return answer["state"], answer["due_at_ms"] - delay_ms
        headers = {"Authorization": f"Bearer user{number % USERS}"}
        url = f"{self._matrix}/v1/delayed_events/{id_}"
        status, answer = await self._ask("GET", url, headers=headers)
        assert status == 200, answer
        ended = answer.get("finalised")
        if ended is None:
            return "waiting", answer["delayed_since_ts"]
        return "sent" if "event_id" in ended else "failed" if "error" in ended else "cancelled", None


class Recorded:
    """One message and its history so far."""

    def __init__(self, number: int, dialect: Dialect, delay_ms: int, doors: Doors, subject: Subject) -> None:
        self.number = number
        self._dialect: Dialect = dialect
        self._delay_ms = delay_ms
        self._doors = doors
        self._subject = subject
        self._operations: list[Operation[Happened]] = []
        self._id = ""

    async def schedule(self) -> None:
        """Accept it."""
        called, from_ms = time.monotonic(), wall_ms()
        self._id = await self._doors.schedule(self.number, self._dialect, self._delay_ms)
        self._note("schedule", "ok", called, from_ms)

    async def command(self, command: str) -> str:
        """Give a command, or look; gives the answer."""
        called, from_ms = time.monotonic(), wall_ms()
        if command == "look":
            state, since_ms = await self._doors.look(self._id, self._dialect, self.number, self._delay_ms)
            self._note("look", state, called, from_ms, since_ms)
            return state
        result = await self._doors.command(self._id, self._dialect, command)
        if command != "send":
            assert result, f"an answer to {command} that says nothing"
            self._note(command, result, called, from_ms)
        elif result == "due":
            self._note("due", "ok", called, from_ms)
        else:
            assert result, "an answer to send that says nothing"
            # Where nothing was heard, the message is due as soon as the attempt under way has failed.
            until = inf if result == "late" else time.monotonic()
            self._note("due", "ok", called, from_ms, returned=until, optional=True)
            first = None if result == "late" else len(self._operations) - 1
            self._note("outcome", result, called, from_ms, after=first)
        return result

    def _note(
        self, kind: str, result: str, called: float, from_ms: int, since_ms: int | None = None, **more: Any
    ) -> None:
        what = Happened(kind, result, from_ms, wall_ms(), since_ms)
        self._operations.append(Operation(what=what, called=called, **{"returned": time.monotonic(), **more}))

    async def bring_to_its_end(self) -> None:
        """Wait for its end, and help once where that is far."""
        ends_at = time.monotonic() + WITHIN_S
        far = self._delay_ms > 1000
        while await self.command("look") not in FINALISED:
            assert time.monotonic() < ends_at, f"message {self.number} does not end"
            if far and await self.command("cancel") == "conflict":
                await self.command("send")
            far = False
            await asyncio.sleep(0.2)

    def history(self, *, doubtful: bool) -> History:
        """All that is known of it."""
        model = Model(self._dialect, self._delay_ms, doubtful)
        return History(self.number, model, self._operations + self._subject.attempts)


class Recorder:
    """Records histories on one server."""

    def __init__(self, doors: Doors, receivers: Receivers, seed: int) -> None:
        self._doors = doors
        self._receivers = receivers
        self._random = random.Random(seed)
        self._number = 0

    async def record(self, messages: int, *, absences: int) -> list[History]:
        """The histories of so many messages that live at the same time; receivers go away so often meanwhile."""
        before = self._receivers.absences
        lives = [self._message() for _ in range(messages)]
        async with asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(self._live(life)) for life in lives]
            tasks.create_task(self._go_away(absences))
        del living
        doubtful = self._receivers.absences > before
        return [life.history(doubtful=doubtful) for life in lives]

    def _message(self) -> Recorded:
        self._number += 1
        manners = self._random.choices(MANNERS, (4, 4, 1, 3, 1, 1), k=self._random.randint(0, 3))
        subject = self._receivers.subjects[self._number] = Subject(manners)
        delay_ms = self._random.choice((20, 60, 120, 250, 60_000))
        return Recorded(self._number, self._random.choice(DIALECTS), delay_ms, self._doors, subject)

    async def _live(self, message: Recorded) -> None:
        await message.schedule()
        moments = [self._random.uniform(0, SPAN_S) for _ in range(self._random.randint(1, 3))]
        async with asyncio.TaskGroup() as clients:
            for _ in range(self._random.randint(2, 6)):
                moment = self._random.choice(moments) + self._random.choice((0.0, 0.0005, 0.002))
                command = self._random.choices(COMMANDS, (3, 2, 3, 2))[0]
                clients.create_task(_later(moment, message, command))
        await message.bring_to_its_end()

    async def _go_away(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(self._random.uniform(0.05, SPAN_S))
            await self._receivers.stop()
            await asyncio.sleep(self._random.uniform(0.02, 0.2))
            await self._receivers.start()


async def _later(moment_s: float, message: Recorded, command: str) -> None:
    await asyncio.sleep(moment_s)
    await message.command(command)


CONFIG: Final = """
[ledger]
segment_bytes = 1048576
[engine]
backoff_min_ms = 20
backoff_max_ms = 100
attempts = 1000
dead_letter_topic = ""
[webhook]
allow = ["127.0.0.1"]
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
    port = free_port()
    registration = folder / "registration.yaml"
    registration.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": "hs-secret-token"}))
    config = CONFIG.format(port=port, homeserver=receivers.url, registration=registration)
    try:
        with ServerProcess(folder / "data", config) as server:
            await asyncio.to_thread(server.start)
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=WITHIN_S)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                yield Recorder(
                    Doors(session, server.url, f"http://127.0.0.1:{port}", receivers), receivers, seed
                )
    finally:
        await receivers.stop()


def unexplained(histories: Sequence[History]) -> list[str]:
    """Histories that no order of their operations explains, told."""
    return [history.told() for history in histories if not history.is_explained()]
