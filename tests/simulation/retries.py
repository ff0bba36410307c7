"""Operators who retry messages that have failed (ADR 0030)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, DelayTooLong, NotFound, RateLimited, TooManyPending, Unavailable
from tarry.engine.answer import Answer
from tests.simulation.checker import Violation
from tests.simulation.model import AUDIT, DEAD_LETTERS, KnownOfMsg, Msg, Promise

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

DELAYS_MS = (None, None, 0, 1, 1_500, 90_000)


class Retries:
    """Retries of failed messages."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._model = sim.model
        self._random = sim.random

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that operators take."""
        return {"retry": self.retry}

    def retry(self) -> None:
        """Retry a message that has failed, as far as is known; now and then one that has not."""
        named = [msg for msg in self._model.messages.values() if msg.place is not None]
        able = [msg for msg in self._model.accepted() if not msg.busy and not _has_lost_its_name(msg, named)]
        failed = [msg for msg in able if msg.told == "failed" or (msg.refused and msg.verdict_life >= 0)]
        if not able:
            return
        msg = self._random.choice(failed if failed and self._random.random() < 0.95 else able)
        assert msg.accepted is not None
        delay_ms = self._random.choice(DELAYS_MS)
        since, due_at_ms = self._sim.since(), self._sim.clock.now_ms() + (delay_ms or 0)
        self._sim.note_due(due_at_ms)
        promise = Promise(0 if msg.eager else due_at_ms, since)
        before, letters = msg.known(), self.letters_of(msg)
        recalled = letters - self._model.recalled
        if msg.told in ("", "failed") and not msg.cancelled:
            msg.begin_again()
            msg.promises.append(promise)
        msg.retries += 1
        msg.commands += 1
        msg.busy = msg.touched = True
        self._model.recalled |= recalled

        def then(of: Answer[Any], unclear: bool) -> None:
            msg.busy = False
            error = of.error()
            if error is None:
                if before.told not in ("", "failed") or msg.cancelled:
                    raise Violation(f"{msg.token} is {before.told or 'cancelled'}, and was retried")
                self._sim.coverage.note("failed message retried")
                self._sim.note_due(of.value().due_at_ms)
                # It may have failed while the request waited. It cannot have gone out since: its record is durable only now.
                msg.begin_again()
                msg.refused = msg.superseded = False
                msg.promise(Promise(0 if msg.eager else of.value().due_at_ms, since))
                self._model.withdrawn |= letters
            elif not unclear:
                self._check(msg, before, error)
                msg.go_on(before)
                msg.retries -= 1
                self._model.recalled -= recalled
                if isinstance(error, Conflict) and error.state in ("sent", "cancelled"):
                    self._sim.checker.told(msg, error.state)

        self._sim.ask(
            f"retry {msg.token} {delay_ms}", self._sim.engine.retry(msg.accepted.id, delay_ms=delay_ms), then
        )

    def letters_of(self, msg: Msg) -> set[tuple[str, int]]:
        """The dead letters of a message that somebody has read and nobody has taken back."""
        letters = [one for one in self._model.letters.get(msg.token, ()) if one[0] == DEAD_LETTERS]
        return set(letters) - self._model.withdrawn

    def _check(self, msg: Msg, before: KnownOfMsg, error: BaseException) -> None:
        if isinstance(error, Unavailable | DelayTooLong | RateLimited | TooManyPending):
            return
        if isinstance(error, NotFound) and msg.doomed:
            return
        if not isinstance(error, Conflict):
            raise Violation(f"{msg.token}: a retry got {error!r}") from error
        match error.state:
            case "scheduled" | "sending":
                if before.ended:
                    raise Violation(f"{msg.token} is {error.state}, but had ended") from error
            case "settled":
                if before.told == "failed" and self._surely_unsettled(msg):
                    raise Violation(
                        f"{msg.token}: nobody is done with its dead letter, and it got {error}"
                    ) from error
            case "grouped":
                if msg.message.group is None:
                    raise Violation(f"{msg.token} is in no group, and it got {error}") from error
            case "sent" | "cancelled":
                if before.told == "failed":
                    raise Violation(f"{msg.token} had failed, and is said to be {error.state}") from error
            case _:
                raise Violation(f"{msg.token}: a retry got {error!r}") from error

    def _surely_unsettled(self, msg: Msg) -> bool:
        """Whether the content of a message that failed is there for certain: nobody has acknowledged its dead letter."""
        if msg.message.ttl_ms or self._model.damaged or not msg.refused:
            return False
        if not self._sim.world.settings.dead_letter_topic:
            return True
        audit = self._model.subs.get((DEAD_LETTERS, AUDIT))
        letters = [one for one in self._model.letters.get(msg.token, ()) if one[0] == DEAD_LETTERS]
        if audit is None or len(letters) <= msg.retries - 1:
            return False
        entry_id = letters[-1][1]
        return (
            entry_id >= max(audit.acked_below, audit.excused_below)
            and entry_id not in audit.acked | audit.excused
        )


def _has_lost_its_name(msg: Msg, named: list[Msg]) -> bool:
    """Whether a later message was asked for under its name: whose name it is then, is not the judge's business."""
    return msg.place is not None and any(
        one.place == msg.place and one.born >= msg.born and one is not msg for one in named
    )
