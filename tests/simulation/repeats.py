"""Clients who have messages sent again and again, and pause, resume, change and remove these repeats (ADR 0025)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, DelayTooLong, NotFound, TooManyPending, Unavailable
from tarry.core.messages.repeat import Repeat
from tarry.core.names import DEFAULT_NAMESPACE
from tarry.engine.answer import Answer
from tests.simulation.checker import Violation
from tests.simulation.clients import KEYS
from tests.simulation.model import HOSTS, TOPICS, AskedRepeat

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

NAMES = ("w0", "w1")
"""Few, so that repeats are changed."""
OWNER = "rita"
"""She has nothing but repeats, so that nobody else's limits count them."""
REFUSALS = (Unavailable, DelayTooLong, TooManyPending)


class Repeats:
    """Repeats by name."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._model = sim.model
        self._checker = sim.checker
        self._random = sim.random
        self._open: set[str] = set()
        """Names with a command that is not answered yet."""

    def new_life(self) -> None:
        """The server is gone, and with it who waits for what."""
        self._open.clear()

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that these clients take."""
        return {
            "repeat": self.set,
            "pause_repeat": self.pause,
            "resume_repeat": self.resume,
            "remove_repeat": self.remove,
        }

    def set(self) -> None:
        """Begin a repeat, perhaps in the place of another."""
        random, name = self._random, self._random.choice(NAMES)
        if name in self._open:
            return
        self._open.add(name)
        token, now_ms = self._sim.token("r"), self._sim.clock.now_ms()
        every_ms = random.choice((1, 40, 1_000, 7_000, 400_000))
        start_at_ms = now_ms + random.choice((0, 1, 300, 5_000)) if random.random() < 0.6 else None
        repeat = Repeat(
            destination=random.choice((*HOSTS, *TOPICS)), payload=token.encode(), headers={"token": token},
            key=random.choice(KEYS), owner=OWNER, every_ms=every_ms, start_at_ms=start_at_ms,
            count=random.choice((1, 3, 8)), missed=random.choice(("all", "all", "latest", "none")),
        )  # fmt: skip
        first_ms = now_ms + every_ms if start_at_ms is None else start_at_ms
        asked = AskedRepeat(name, repeat, first_ms)
        self._sim.note_due(first_ms + every_ms * (repeat.count or 0))
        before = self._model.repeat_named(name)
        if before is not None:
            before.disturbed = True
            before.none_after_ms = None
        self._model.repeats[token] = asked
        highest_ms = self._checker.perhaps_sent_ms()

        def then(of: Answer[Any], unclear: bool) -> None:
            self._open.discard(name)
            error = of.error()
            if error is None:
                asked.accepted = True
                if before is not None:
                    before.none_after_ms = highest_ms
            elif not unclear:
                if not isinstance(error, REFUSALS):
                    raise error
                asked.refused = True

        self._sim.ask(
            f"repeat {name} {token} {repeat}",
            self._sim.engine.repeats.set(DEFAULT_NAMESPACE, name, repeat),
            then,
        )

    def pause(self) -> None:
        """Pause a repeat."""
        self._end(self._random.choice(NAMES), "pause")

    def remove(self) -> None:
        """Remove a repeat."""
        self._end(self._random.choice(NAMES), "remove")

    def _end(self, name: str, what: str) -> None:
        """Have no more occurrences accepted, and those taken back that are not due."""
        asked = self._model.repeat_named(name)
        if asked is None or name in self._open:
            return
        self._open.add(name)
        asked.disturbed = True
        highest_ms = self._checker.perhaps_sent_ms()
        engine = self._sim.engine.repeats
        answer: Answer[Any] = (engine.pause if what == "pause" else engine.remove)(DEFAULT_NAMESPACE, name)

        def then(of: Answer[Any], unclear: bool) -> None:
            self._open.discard(name)
            error = of.error()
            if error is None:
                self._sim.coverage.note("repeat paused or removed")
                asked.none_after_ms = highest_ms
                asked.removed = what == "remove"
            elif isinstance(error, NotFound):
                asked.removed = True
            elif not unclear and not isinstance(error, Unavailable | Conflict):
                raise Violation(f"repeat {name}: {what} got {error!r}") from error

        self._sim.ask(f"{what} repeat {name}", answer, then)

    def resume(self) -> None:
        """Resume a repeat that may be paused."""
        name = self._random.choice(NAMES)
        asked = self._model.repeat_named(name)
        if asked is None or asked.removed or name in self._open:
            return
        self._open.add(name)
        asked.none_after_ms = None

        def then(of: Answer[Any], unclear: bool) -> None:
            self._open.discard(name)
            error = of.error()
            if error is not None and not unclear and not isinstance(error, Unavailable | NotFound):
                raise Violation(f"repeat {name}: resume got {error!r}") from error

        self._sim.ask(f"resume repeat {name}", self._sim.engine.repeats.resume(DEFAULT_NAMESPACE, name), then)

    # The end

    def finish(self) -> None:
        """Remove the repeats that may go on: only those go on of which it is known what they send."""
        for name in NAMES:
            asked = self._model.repeat_named(name)
            if asked is not None and not asked.removed and not self._is_sure(asked):
                self._end(name, "remove")

    @staticmethod
    def _is_sure(asked: AskedRepeat) -> bool:
        """Whether every occurrence of a repeat comes for certain."""
        return asked.accepted and not asked.disturbed and asked.repeat.missed == "all"

    def missing(self) -> list[str]:
        """The occurrences that have to come yet: of repeats that nobody has disturbed, and that send all that they missed."""
        seen = self._model.messages
        return [
            token
            for asked in self._model.repeats.values()
            if self._is_sure(asked)
            for token in asked.tokens()
            if token not in seen
        ]
