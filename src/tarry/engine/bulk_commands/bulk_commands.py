"""Operations on bulk commands, and the turns in which they go on.

How far a command has come is a record of the catalogue: when it is asked for, about once a second while it goes on, and at its end. What
it did after the last of these before a crash it finds done, and does not do again.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from tarry.core.errors import Conflict, NotFound, TarryError
from tarry.core.limits import DAY_MS, HOUR_MS, SECOND_MS
from tarry.core.messages.bulk_command import (
    FINISHED,
    MAX_KEPT,
    MAX_UNFINISHED,
    Action,
    BulkCommand,
    MessageFilter,
)
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed
from tarry.engine.bulk_commands.walk import CommandWalk
from tarry.engine.due.horizon import Horizon
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.command_book import entered, forgotten
from tarry.engine.namespaces.namespace_shares import NamespaceShares
from tarry.engine.state.engine_state import EngineState

BETWEEN_MS: Final = 5
"""The time for others between two steps."""
AGAIN_MS: Final = SECOND_MS
"""The wait before a step is tried again that could not be taken."""
CONFIRMED_WITHIN_MS: Final = HOUR_MS
"""A command that is not confirmed for so long after it was counted is stopped."""
KEPT_MS: Final = 7 * DAY_MS
"""How long a command is remembered that is over."""


class BulkCommands:
    """Takes bulk commands, and carries them out one step after another."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        horizon: Horizon,
        walk: CommandWalk,
        clock: Clock,
        shares: NamespaceShares,
    ) -> None:
        self._shares = shares
        self._journal = journal
        self._book = state.command_book
        self._horizon = horizon
        self._walk = walk
        self._clock = clock
        self._under_way: dict[int, BulkCommand] = {}
        """Commands of which a step is taken or was, as they are by now: their records follow about once a second."""
        self._written_at_ms: dict[int, int] = {}
        self._busy = False
        self._next_at_ms = 0
        self._last = 0
        """The command that took the last step: others go first."""

    # Operations

    def ask(
        self,
        action: Action,
        chosen: MessageFilter,
        who: str,
        *,
        due_at_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> Answer[BulkCommand]:
        """Begin a command: its messages are counted. Nothing is done to them before it is confirmed."""
        try:
            self._check_limit(chosen.namespace)
            command = BulkCommand(
                number=self._journal.next_seq, action=action, chosen=chosen, asked_by=who,
                asked_at_ms=self._clock.now_ms(), due_at_ms=due_at_ms, delay_ms=delay_ms,
            )  # fmt: skip
            command.check()
            return self._say(command)
        except TarryError as error:
            return failed(error)

    def _check_limit(self, namespace: str) -> None:
        taken = [one.chosen.namespace for one in self._book.unfinished()]
        if len(taken) >= MAX_UNFINISHED:
            raise Conflict(
                f"{MAX_UNFINISHED} commands are not over, as many as can be: confirm or stop some", "full"
            )
        self._shares.check(
            namespace, MAX_UNFINISHED, len(taken), taken.count(namespace), 1,
            f"the {MAX_UNFINISHED} commands that can be under way", "confirm or stop some there",
        )  # fmt: skip

    def confirm(self, number: int, counted: int, who: str) -> Answer[BulkCommand]:
        """Carry a command out whose count is the one that is given."""
        try:
            command = self._known(number)
            if command.phase in ("running", "done") and command.counted == counted:
                return self._told(command)
            if command.phase != "counted":
                raise Conflict(f"the command is {command.phase}, so it cannot be confirmed", command.phase)
            if command.counted != counted:
                raise Conflict(f"the command counted {command.counted} messages, not {counted}", "count")
            now_ms = self._clock.now_ms()
            return self._say(replace(command, phase="running", confirmed_by=who, confirmed_at_ms=now_ms))
        except TarryError as error:
            return failed(error)

    def stop(self, number: int, who: str) -> Answer[BulkCommand]:
        """End a command where it is. What it has done stays done."""
        try:
            command = self._known(number)
            if command.phase == "done":
                raise Conflict("the command is done; only a running one can be stopped", "done")
            if command.phase == "stopped":
                return self._told(command)
            return self._say(self._ended(command, who))
        except TarryError as error:
            return failed(error)

    def get(self, number: int) -> Answer[BulkCommand]:
        """A command, as far as it has come."""
        try:
            return self._told(self._known(number))
        except TarryError as error:
            return failed(error)

    def all(self, namespace: str | None) -> Answer[list[BulkCommand]]:
        """The commands of a namespace or of all, the newest first."""
        numbers = sorted(self._book.by_number, reverse=True)
        found = [self._known(number) for number in numbers]
        chosen = [one for one in found if namespace in (None, one.chosen.namespace)]
        return self._journal.once_durable(lambda: chosen)

    def _known(self, number: int) -> BulkCommand:
        command = self._under_way.get(number) or self._book.by_number.get(number)
        if command is None:
            raise NotFound("there is no such command")
        return command

    def _ended(self, command: BulkCommand, who: str | None = None) -> BulkCommand:
        phase = command.phase if command.phase == "done" else "stopped"
        return replace(command, phase=phase, ended_by=who, ended_at_ms=self._clock.now_ms(), page=None)

    def _say(self, command: BulkCommand) -> Answer[BulkCommand]:
        """Write down how far a command is."""
        answer = self._journal.write([entered(command)], lambda: command, essential=True)
        self._under_way.pop(command.number, None)
        self._written_at_ms[command.number] = self._clock.now_ms()
        self._next_at_ms = 0
        self._horizon.wake()
        return answer

    def _told(self, command: BulkCommand) -> Answer[BulkCommand]:
        return self._journal.once_durable(lambda: command)

    # Going on

    def turn(self, now_ms: int) -> int | None:
        """Take the next step of a command; gives the instant at which to come again, if there is one."""
        if not self._book.by_number or self._journal.failed:
            return None
        if self._busy:
            return None
        if now_ms < self._next_at_ms <= now_ms + AGAIN_MS:
            return self._next_at_ms
        waiting = [self._known(one.number) for one in self._book.unfinished()]
        going = [one for one in waiting if one.phase in ("counting", "running")]
        if not going:
            self._tidy(waiting, now_ms)
            self._next_at_ms = now_ms + AGAIN_MS
            return self._next_at_ms
        command = next((one for one in going if one.number > self._last), going[0])
        self._last = command.number
        self._busy = True
        self._walk.step(command).then(lambda step: self._stepped(command, step))
        return None if self._busy else now_ms + BETWEEN_MS

    def _stepped(self, before: BulkCommand, step: Answer[BulkCommand]) -> None:
        """A step was taken, or could not be."""
        now_ms = self._clock.now_ms()
        self._busy = False
        error = step.error()
        if error is not None and not isinstance(error, TarryError):
            raise error
        self._next_at_ms = now_ms + (BETWEEN_MS if error is None else AGAIN_MS)
        if error is None and self._known(before.number) == before:
            # Else it was stopped meanwhile.
            self._went_on(before, step.value(), now_ms)
        self._horizon.wake()

    def _went_on(self, before: BulkCommand, after: BulkCommand, now_ms: int) -> None:
        self._under_way[after.number] = after
        written_ms = self._written_at_ms.get(after.number, 0)
        if after.phase == "done":
            self._write(self._ended(after))
        elif after.phase != before.phase or not 0 <= now_ms - written_ms < SECOND_MS:
            self._write(after)

    def _write(self, command: BulkCommand) -> None:
        try:
            self._say(command).then(lambda _: None)
        except TarryError:
            # No space just now: the step stays in memory, and is written with a later one.
            self._under_way[command.number] = command

    def _tidy(self, waiting: list[BulkCommand], now_ms: int) -> None:
        """Stop commands that nobody confirms, and forget those that were over long ago."""
        for command in waiting:
            if now_ms - command.asked_at_ms > CONFIRMED_WITHIN_MS:
                self._write(self._ended(command))
        over = [one for one in self._book.by_number.values() if one.phase in FINISHED]
        old = {one.number for one in over if now_ms - (one.ended_at_ms or 0) > KEPT_MS}
        # One that ended by a clock which was ahead is kept for longer: there are never more than `MAX_KEPT`.
        old.update(_too_many(over, MAX_KEPT))
        if old:
            self._journal.append(
                [forgotten(number) for number in sorted(old)[:100]], lambda _: None, essential=True
            )


def _too_many(over: Iterable[BulkCommand], most: int) -> Iterator[int]:
    """The commands to be forgotten so that there are no more than that: the first of the namespace that has the most."""
    by_namespace: dict[str, deque[int]] = {}
    for one in sorted(over, key=lambda one: one.number):
        by_namespace.setdefault(one.chosen.namespace, deque()).append(one.number)
    for _ in range(sum(map(len, by_namespace.values())) - most):
        kept = [numbers for numbers in by_namespace.values() if numbers]
        yield max(kept, key=lambda numbers: (len(numbers), -numbers[0])).popleft()
