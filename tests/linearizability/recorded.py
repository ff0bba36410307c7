"""A message whose history is recorded while it is commanded. A command without an answer may have happened, or not."""

import asyncio
import random
import time
from collections.abc import Sequence
from math import inf
from typing import Any

from tests.linearizability.checker import Operation
from tests.linearizability.doors import Doors, NoAnswer, shown
from tests.linearizability.entry import EntryModel
from tests.linearizability.history import History
from tests.linearizability.life import FINALISED, Dialect, Happened, Model
from tests.linearizability.receivers import Subject, wall_ms
from tests.linearizability.server import Lives
from tests.waiting import WITHIN_S

BY_NAME = 0.5
"""The share of commands on messages of the native door that are given by name."""
FAR_MS = 1_000
"""Messages that are due later than this are helped to their end."""


class Recorded:
    """The common part of all kinds of recorded messages."""

    commands: Sequence[str]
    weights: Sequence[int]

    def __init__(self, number: int, delay_ms: int, doors: Doors, lives: Lives) -> None:
        self.number = number
        self._delay_ms = delay_ms
        self._doors = doors
        self._lives = lives
        self._operations: list[Operation[Happened]] = []

    def _note(
        self, kind: str, result: str, called: float, from_ms: int, since_ms: int | None = None, **more: Any
    ) -> None:
        what = Happened(kind, result, from_ms, wall_ms(), since_ms)
        self._operations.append(Operation(what=what, called=called, **{"returned": time.monotonic(), **more}))

    async def _unanswered(self, kind: str | None, called: float, from_ms: int) -> None:
        """Nobody knows whether it happened: if so, before the server was gone. Wait until it is back."""
        if kind is not None:
            self._note(kind, "ok", called, from_ms, optional=True)
        await self._lives.back()

    def _whole(self) -> list[Operation[Happened]]:
        """Its operations, and the ends of the server in its time."""
        began = min(one.called for one in self._operations)
        return self._operations + [one for one in self._lives.crashes if one.returned > began]

    @property
    def _outlived(self) -> bool:
        """Whether the server was ended in its time."""
        return len(self._whole()) > len(self._operations)

    async def begin(self) -> None:
        """Accept it."""
        raise NotImplementedError

    async def command(self, command: str) -> str:
        """Give a command, or look; gives the answer, or "" if there was none."""
        raise NotImplementedError

    async def bring_to_its_end(self) -> None:
        """Wait for its end, and help once where that is far."""
        raise NotImplementedError

    def history(self, *, doubtful: bool) -> History:
        """All that is known of it."""
        raise NotImplementedError


class RecordedMessage(Recorded):
    """A message to a receiver."""

    commands: Sequence[str] = ("send", "cancel", "restart", "look", "again")
    weights: Sequence[int] = (3, 2, 3, 2, 1)

    def __init__(
        self,
        number: int,
        delay_ms: int,
        doors: Doors,
        lives: Lives,
        dialect: Dialect,
        subject: Subject,
        chance: float,
    ) -> None:
        """`chance` decides what is left open in its commands."""
        super().__init__(number, delay_ms, doors, lives)
        self._dialect: Dialect = dialect
        self._subject = subject
        self._random = random.Random(chance)
        self._contested = False
        """Whether another message was to have its name."""
        if dialect == "native":
            # One that failed and is retried has its name still, unless another one took it meanwhile.
            more = {"contest": 3} if number % 2 else {"retry": 3}
            chosen = {"pause": 3, "resume": 3, **more}
            self.commands = (*self.commands, *chosen)
            self.weights = (*self.weights, *chosen.values())
        self._id = ""

    async def begin(self) -> None:
        """Schedule it, again and again until there is an answer: under its key it is one message."""
        called, from_ms = time.monotonic(), wall_ms()
        while not self._id:
            try:
                self._id = await self._doors.schedule(self.number, self._dialect, self._delay_ms)
            except NoAnswer:
                await self._unanswered(None, called, from_ms)
        self._note("schedule", "ok", called, from_ms)

    async def command(self, command: str) -> str:
        """See `Recorded`; `again` is the request that scheduled it, whose answer is kept."""
        called, from_ms = time.monotonic(), wall_ms()
        kinds = {one: one for one in ("cancel", "restart", "pause", "resume", "retry")} | {"send": "due"}
        if command == "contest":
            return await self._contest(called, from_ms)
        try:
            if self._dialect == "native" and command != "again" and self._random.random() < BY_NAME:
                return await self._command_by_name(command, called, from_ms)
            if command == "again":
                same = await self._doors.schedule(self.number, self._dialect, self._delay_ms)
                assert same == self._id, (
                    f"message {self.number} was scheduled as {self._id}, and again as {same}"
                )
                return "ok"
            if command == "look":
                state, since_ms = await self._doors.look(self._id, self._dialect, self.number, self._delay_ms)
                self._note("look", state, called, from_ms, since_ms)
                return state
            result = await self._doors.command(self._id, self._dialect, command)
        except NoAnswer:
            await self._unanswered(kinds.get(command), called, from_ms)
            return ""
        assert result, f"an answer to {command} that says nothing"
        if command != "send":
            self._note(command, result, called, from_ms)
        elif result == "due":
            self._note("due", "ok", called, from_ms)
        else:
            # Where nothing was heard, the message is due as soon as the attempt under way has failed.
            until = inf if result == "late" else time.monotonic()
            self._note("due", "ok", called, from_ms, returned=until, optional=True)
            first = None if result == "late" else len(self._operations) - 1
            self._note("outcome", result, called, from_ms, after=first)
        return result

    async def _command_by_name(self, command: str, called: float, from_ms: int) -> str:
        """Command the message that has its name."""
        result, answer = await self._doors.by_name(self.number, self._id, command)
        if not result or (result == "conflict" and self._contested):
            # It may be about the other one.
            return ""
        if command == "look":
            state, since_ms = shown(answer, self._delay_ms)
            self._note("look", state, called, from_ms, since_ms)
            return state
        if command == "send" and result == "conflict":
            self._note("outcome", result, called, from_ms)
        else:
            self._note("due" if command == "send" else command, result, called, from_ms)
        return result

    async def _contest(self, called: float, from_ms: int) -> str:
        """Schedule another message under its name, once."""
        if self._contested:
            return ""
        self._contested = True
        on_conflict = self._random.choice(("fail", "keep", "replace"))
        try:
            result = await self._doors.contest(self.number, self._id, on_conflict)
        except NoAnswer:
            await self._unanswered("replace" if on_conflict == "replace" else None, called, from_ms)
            return ""
        kind, said = {"replaced": ("replace", "ok"), "conflict": ("replace", "conflict")}.get(
            result, (result, "ok")
        )
        self._note(kind, said, called, from_ms)
        return result

    async def bring_to_its_end(self) -> None:
        """See `Recorded`."""
        ends_at = time.monotonic() + WITHIN_S
        far, retries = self._delay_ms > FAR_MS, "retry" in self.commands
        while (state := await self.command("look")) not in FINALISED or (state == "failed" and retries):
            assert time.monotonic() < ends_at, f"message {self.number} does not end"
            if state == "paused":
                await self.command("resume")
            if state == "failed":
                retries = False
                await self.command("retry")
            if far:
                far = False
                if await self.command("cancel") == "conflict":
                    await self.command("send")
            await asyncio.sleep(0.2)

    def history(self, *, doubtful: bool) -> History:
        """See `Recorded`. An attempt that was broken off may have got lost unseen, like one while receivers are away."""
        model = Model(self._dialect, self._delay_ms, doubtful or self._outlived)
        return History(self.number, model, self._whole() + self._subject.attempts)


class RecordedEntry(Recorded):
    """A delayed entry of a topic, of which all are in one and have one consumer."""

    commands = ("cancel", "restart", "look")
    weights = (1, 3, 3)

    def __init__(self, number: int, delay_ms: int, doors: Doors, lives: Lives) -> None:
        super().__init__(number, delay_ms, doors, lives)
        self._id = -1
        self._deliveries: list[Operation[Happened]] = []
        self._delivered = asyncio.Event()

    async def begin(self) -> None:
        """Publish it once; one whose receipt got lost is given its id when it comes."""
        called, from_ms = time.monotonic(), wall_ms()
        try:
            self._id = await self._doors.publish(self.number, self._delay_ms)
        except NoAnswer:
            await self._unanswered("publish", called, from_ms)
        else:
            self._note("publish", "ok", called, from_ms)

    async def command(self, command: str) -> str:
        """See `Recorded`."""
        if self._id < 0:
            return ""
        called, from_ms = time.monotonic(), wall_ms()
        try:
            result, due_at_ms = await self._doors.command_entry(self._id, command, self._delay_ms)
        except NoAnswer:
            await self._unanswered(None if command == "look" else command, called, from_ms)
            return ""
        self._note(
            command, result, called, from_ms, None if due_at_ms is None else due_at_ms - self._delay_ms
        )
        return result

    def deliver(self, entry_id: int) -> None:
        """The consumer has got it."""
        what = Happened("delivery", to_ms=wall_ms())
        self._deliveries.append(Operation(what=what, returned=time.monotonic()))
        self._id = entry_id
        self._delivered.set()

    async def bring_to_its_end(self) -> None:
        """See `Recorded`: it has to be delivered unless a cancel was asked for, or its publish was not answered."""
        if self._delay_ms > FAR_MS:
            await self.command("cancel")
        cancelled = any(one.what.kind == "cancel" and one.what.result == "ok" for one in self._operations)
        if cancelled or self._operations[0].optional:
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._delivered.wait()
        except TimeoutError:
            raise AssertionError(f"it is not delivered: {self.history(doubtful=False).told()}") from None

    def history(self, *, doubtful: bool) -> History:
        """See `Recorded`."""
        del doubtful
        return History(self.number, EntryModel(self._delay_ms), self._whole() + self._deliveries)
