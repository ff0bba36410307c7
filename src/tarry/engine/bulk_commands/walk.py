"""The walk of a bulk command: a page of the messages that it chooses at a time, and the command on each.

It walks the list that a client would get: in due order, for retries the last that failed first. A message counts that was accepted
before the command was asked for. What the command has done already it does not do again, however often it
comes to a message: a version that it made has its number, one that it ended is not on the list any more.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from tarry.core.errors import TarryError, Unavailable
from tarry.core.messages.bulk_command import BulkCommand
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessagePage, MessageQuery, MessageView
from tarry.engine.answer import Answer, all_of, settled
from tarry.engine.queries.commands import Commands, Ending
from tarry.engine.queries.finding import Finding, Found
from tarry.engine.queries.retries import Retries
from tarry.engine.state.engine_state import EngineState

STEP: Final = 100
"""Messages that are acted on in one step: some milliseconds."""

GetPage = Callable[[MessageQuery], Answer[MessagePage]]


class CommandWalk:
    """Takes steps of bulk commands."""

    def __init__(
        self,
        state: EngineState,
        ids: Ids,
        finding: Finding,
        commands: Commands,
        retries: Retries,
        lists: GetPage,
    ) -> None:
        self._state = state
        self._ids = ids
        self._finding = finding
        self._commands = commands
        self._retries = retries
        self._lists = lists

    def step(self, command: BulkCommand) -> Answer[BulkCommand]:
        """Count the next messages, or act on them; gives the command as it is then, once all of that is durable.

        An error leaves the command where it was.
        """

        def found(page: MessagePage) -> Answer[BulkCommand]:
            meant = [view for view in page.messages if self._is_meant(view, command)]
            if command.phase == "counting":
                return settled(_on(command, page, counted=command.counted + len(meant)))
            acts = all_of([self._act(view.id, command) for view in meant])
            return acts.map(lambda all_: self._acted(command, page, all_))

        return self._lists(command.chosen.query(STEP, command.page)).and_then(found)

    def _is_meant(self, view: MessageView, command: BulkCommand) -> bool:
        """Whether a message was accepted before the command was asked for."""
        origin = self._ids.read(view.id)
        return origin is not None and self._state.batches.accepted_by(origin[0]) < command.number

    def _acted(self, command: BulkCommand, page: MessagePage, acts: Sequence[Answer[bool]]) -> BulkCommand:
        done = passed = 0
        for act in acts:
            error = act.error()
            if error is None:
                done += act.value()
            elif isinstance(error, Unavailable) or not isinstance(error, TarryError):
                raise error
            else:
                passed += 1
        return _on(command, page, done=command.done + done, passed=command.passed + passed)

    def _act(self, id_: str, command: BulkCommand) -> Answer[bool]:
        """Do to a message what the command says; gives whether that was not done before."""
        if command.action == "retry":
            again = self._retries.retry(
                id_, delay_ms=command.delay_ms, due_at_ms=command.due_at_ms, by=command.number, charged=False
            )
            return again.map(lambda _: True)

        def act(found: Found) -> Answer[bool]:
            if found.put.by == command.number:
                return settled(False)
            return self._on_found(id_, found, command).map(lambda _: True)

        return self._finding.find(id_, act)

    def _on_found(self, id_: str, found: Found, command: BulkCommand) -> Answer[object]:
        answer: Answer[object]
        match command.action:
            case "cancel":
                reason = f"cancelled by command {command.number}"
                answer = self._commands.cancel_found(id_, found, Ending(reason=reason))  # type: ignore[assignment]
            case "send":
                answer = self._commands.send_found(id_, found, "send", by=command.number)  # type: ignore[assignment]
            case _:
                answer = self._commands.restart_found(  # type: ignore[assignment]
                    id_, found, command.delay_ms, command.due_at_ms, by=command.number
                )
        return answer


def _on(command: BulkCommand, page: MessagePage, **changes: int) -> BulkCommand:
    """The command after a page: at the next one, or through."""
    if page.next_page is not None:
        return replace(command, page=page.next_page, **changes)
    return replace(command, page=None, phase="counted" if command.phase == "counting" else "done", **changes)
