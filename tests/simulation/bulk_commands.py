"""Operators who command all messages that a filter chooses: they ask, look at the count, confirm, or stop (ADR 0031)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.limits import HOUR_MS
from tarry.core.messages.bulk_command import Action, BulkCommand, MessageFilter
from tarry.core.names import DEFAULT_NAMESPACE
from tarry.engine.answer import Answer
from tests.simulation.checker import Violation
from tests.simulation.model import ELSEWHERE, HOSTS, Msg, Promise

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

WHO = "operator"
UNDER_WAY = 3
"""Commands of one run that are not over, at the most."""


@dataclass(eq=False)
class Asked:
    """A command as its operator knows it."""

    action: Action
    chosen: MessageFilter
    delay_ms: int | None
    born: int
    """The step that asked for it."""
    number: int | None = None
    phase: str = "counting"
    """As it was told last."""
    counted: int = 0
    confirmed: bool = False
    """Whether it may have been confirmed."""
    meant: list[Msg] = field(default_factory=list)
    """Messages that it may act on."""
    sure: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Messages on which it acts for certain if nothing else happens to them: how many commands each had had, and when it was due."""
    since: int = 0
    low_ms: int = 0
    busy: bool = False


class BulkCommands:
    """Commands by filter."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._model = sim.model
        self._checker = sim.checker
        self._random = sim.random
        self._asked: list[Asked] = []

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that operators take."""
        return {"ask_bulk": self.ask, "follow_bulk": self.follow, "stop_bulk": self.stop}

    def new_life(self) -> None:
        """The server is gone, and with it who waits for what."""
        for one in self._asked:
            one.busy = False

    def ask(self) -> None:
        """Ask for a command."""
        if sum(one.phase not in ("done", "stopped") for one in self._asked) >= UNDER_WAY:
            return
        random = self._random
        action: Action = random.choice(("cancel", "move", "send", "retry"))
        # Every filter says an owner or a host: delayed entries of topics have neither.
        fields: dict[str, Any] = random.choice(
            ({"owner": "ann"}, {"owner": "bob"}, {"destination": HOSTS[0]}, {"owner": "ann", "key": "k1"},
             {"destination": HOSTS[1], "namespace": ELSEWHERE})
        )  # fmt: skip
        chosen = MessageFilter(state="failed" if action == "retry" else "scheduled", **fields)
        delay_ms = self._sim.clients.delay() if action == "move" else None
        one = Asked(action, chosen, delay_ms, self._sim.step)
        one.meant = [msg for msg in self._model.messages.values() if msg.asks and self._chooses(chosen, msg)]
        one.busy = True

        def then(of: Answer[Any], _: bool) -> None:
            one.busy = False
            error = of.error()
            if error is None:
                one.number = of.value().number
                self._asked.append(one)
            elif not isinstance(error, Unavailable) and getattr(error, "state", "") != "full":
                # Those of which the answer was lost count as well.
                raise error

        answer = self._sim.engine.bulk_commands.ask(action, chosen, WHO, delay_ms=delay_ms)
        self._sim.ask(f"ask to {action} {chosen}", answer, then)

    @staticmethod
    def _chooses(chosen: MessageFilter, msg: Msg) -> bool:
        message = msg.message
        return (
            (message.namespace or DEFAULT_NAMESPACE) == chosen.namespace
            and chosen.owner in (None, message.owner)
            and chosen.key in (None, message.key)
            and chosen.destination in (None, message.destination)
        )

    def follow(self) -> None:
        """Look at a command, or confirm it once it is counted."""
        open_ = [one for one in self._asked if not one.busy and one.phase not in ("done", "stopped")]
        if not open_:
            return
        one = self._random.choice(open_)
        if one.phase == "counted" and not one.confirmed:
            self._confirm(one)
        else:
            self._look(one)

    def finish(self) -> None:
        """Hear of all that go on: the run comes to its end."""
        for one in self._asked:
            if one.confirmed and not one.busy and one.phase not in ("done", "stopped"):
                self._look(one)

    def _look(self, one: Asked) -> None:
        assert one.number is not None
        one.busy = True
        self._sim.ask(
            f"look at command {one.number}",
            self._sim.engine.bulk_commands.get(one.number),
            lambda of, _: self._told(one, of),
        )

    def _told(self, one: Asked, of: Answer[Any]) -> None:
        one.busy = False
        error = of.error()
        if isinstance(error, Unavailable):
            return
        if error is not None:
            raise Violation(f"command {one.number} was asked for, and got {error!r}") from error
        command: BulkCommand = of.value()
        if command.phase in ("running", "done") and not one.confirmed:
            raise Violation(f"command {one.number} is {command.phase}, and nobody has confirmed it")
        one.phase, one.counted = command.phase, command.counted
        # By now each message that was moved is due by then.
        self._sim.note_due(self._checker.highest_ms() + (one.delay_ms or 0))
        if one.phase == "done":
            self._sim.coverage.note(f"bulk command done: {one.action}")
            self._done(one)

    def _confirm(self, one: Asked) -> None:
        assert one.number is not None
        one.confirmed = one.busy = True
        one.since, now_ms = self._sim.since(), self._sim.clock.now_ms()
        one.low_ms = now_ms + (one.delay_ms or 0)
        self._sim.note_due(one.low_ms)
        for msg in one.meant:
            self._may_act_on(one, msg, one.low_ms)

        def then(of: Answer[Any], unclear: bool) -> None:
            one.busy = False
            error = of.error()
            if error is None:
                self._sim.coverage.note("bulk command confirmed")
                if self._sim.fatal and not self._sim.draining and self._random.random() < 0.3:
                    self._sim.faults.crash_soon()
            elif isinstance(error, Conflict) and error.state in (
                "count",
                "counting",
                "stopped",
                "running",
                "done",
            ):
                one.phase = "counting" if error.state == "counting" else one.phase
            elif not isinstance(error, Unavailable):
                raise Violation(
                    f"command {one.number} was counted, and its confirmation got {error!r}"
                ) from error
            if error is not None and not unclear:
                one.confirmed = False
                self._acts_no_more(one)

        answer = self._sim.engine.bulk_commands.confirm(one.number, one.counted, WHO)
        self._sim.ask(f"confirm command {one.number}", answer, then)

    def _may_act_on(self, one: Asked, msg: Msg, due_at_ms: int) -> None:
        """From now on a message may be acted on, at a moment that is not known."""
        for other in self._asked:
            # Which of the two comes first is not known, even if one has long begun.
            other.sure.pop(msg.token, None)
        if self._acts_surely(one, msg):
            one.sure[msg.token] = msg.commands, min(promise.due_at_ms for promise in msg.promises)
        msg.touched = True
        msg.bulk += 1
        msg.frozen_ms = None
        match one.action:
            case "cancel":
                msg.cancel_maybe = True
            case "send":
                msg.promises.append(Promise(0, one.since))
            case "move":
                msg.promises.append(Promise(0 if msg.eager else due_at_ms, one.since))
                msg.delays = sorted({*msg.delays, one.delay_ms or 0})
            case _ if msg.told in ("", "failed") and not msg.cancelled:
                msg.retries += 1
                msg.retrying += 1
                msg.begin_again()
                msg.promises.append(Promise(0 if msg.eager else due_at_ms, one.since))
                # Its dead letter is taken back, perhaps.
                self._model.recalled.update(self._sim.retries.letters_of(msg))

    def _acts_surely(self, one: Asked, msg: Msg) -> bool:
        """Whether a message is acted on for certain if it waits until the command is done."""
        if (
            msg.accepted_step > one.born
            or msg.launches
            or msg.maybe_cancelled
            or msg.bulk
            or msg.message.group
        ):
            return False
        refused = one.action == "move" and (one.delay_ms or 0) > HOUR_MS
        return one.action in ("cancel", "move") and not refused and self._checker.waits_surely(msg)

    def _done(self, one: Asked) -> None:
        """Every message that waited all the while was acted on."""
        for msg in one.meant:
            commands, due_at_ms = one.sure.get(msg.token, (-1, 0))
            if commands != msg.commands or msg.busy or due_at_ms <= self._checker.highest_ms():
                continue
            if self._model.clock_set_back or self._model.damaged:
                continue
            if one.action == "cancel":
                self._checker.cancelled(msg)
            else:
                msg.promises = [Promise(0 if msg.eager else one.low_ms, one.since)]
        self._acts_no_more(one)

    @staticmethod
    def _acts_no_more(one: Asked) -> None:
        for msg in one.meant:
            msg.bulk -= 1
            if one.action == "retry" and msg.retrying:
                msg.retrying -= 1

    def stop(self) -> None:
        """Stop a command."""
        open_ = [one for one in self._asked if not one.busy and one.phase not in ("done", "stopped")]
        if not open_:
            return
        one = self._random.choice(open_)
        assert one.number is not None
        one.busy = True

        def then(of: Answer[Any], _: bool) -> None:
            one.busy = False
            error = of.error()
            if isinstance(error, NotFound) or not (
                error is None or isinstance(error, Unavailable | Conflict)
            ):
                raise Violation(f"command {one.number} was asked for, and got {error!r}") from error

        self._sim.ask(
            f"stop command {one.number}", self._sim.engine.bulk_commands.stop(one.number, WHO), then
        )
