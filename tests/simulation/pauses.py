"""Operators who pause messages, delayed entries and whole places, and resume them (ADR 0027)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, NotFound, RateLimited, Unavailable
from tarry.core.messages.message import MessageView
from tarry.core.messages.pause import PausablePlace
from tarry.core.names import DEFAULT_NAMESPACE, parse_topic
from tarry.engine.answer import Answer
from tests.simulation.checker import Violation
from tests.simulation.model import ELSEWHERE, HOSTS, NEVER_MS, TOPICS, Msg, Place, Promise, Publication

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

PLACES: tuple[Place, ...] = (
    ("owner", DEFAULT_NAMESPACE, "ann"),
    ("owner", ELSEWHERE, "bob"),
    *(("topic", DEFAULT_NAMESPACE, topic) for topic in TOPICS),
    *(("destination", DEFAULT_NAMESPACE, host) for host in HOSTS),
    ("destination", DEFAULT_NAMESPACE, HOSTS[0].rpartition("/")[0]),
    ("destination", ELSEWHERE, HOSTS[0].rpartition("/")[0]),
)
NOT_PAUSED = ("scheduled", "sending", "held", "sent", "cancelled", "failed")
"""States in the conflict that a message gets which is resumed and was not paused."""


class Pauses:
    """Pauses and resumes."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._model = sim.model
        self._random = sim.random
        self._over: set[Place] = set()
        """Places that were resumed at the end."""

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that operators take."""
        return {
            "pause": self.pause,
            "resume": self.resume,
            "freeze": self.freeze,
            "pause_place": self.pause_place,
            "resume_place": self.resume_place,
        }

    # Messages

    def pause(self) -> None:
        """Pause a message that may wait."""
        able = [msg for msg in self._model.accepted() if not (msg.busy or self._sim.checker.is_over(msg))]
        if not able:
            return
        msg = self._random.choice(able)
        assert msg.accepted is not None
        low_ms = min(promise.due_at_ms for promise in msg.promises)
        frozen_ms = low_ms if msg.frozen_ms is None else msg.frozen_ms
        msg.commands += 1
        msg.busy = msg.touched = msg.maybe_paused = True

        def then(of: Answer[Any], unclear: bool) -> None:
            msg.busy = False
            error = of.error()
            if error is None:
                self._sim.coverage.note("message paused")
                msg.frozen_ms = None if msg.bulk else frozen_ms
                msg.promise(Promise(0 if msg.eager else NEVER_MS, self._sim.since()))
            elif not unclear:
                self._sim.clients.check_conflict(msg, error)

        self._sim.ask(f"pause {msg.token}", self._sim.engine.pausing.pause(msg.accepted.id), then)

    def resume(self) -> None:
        """Resume a message that may be paused, or one that is not."""
        able = [msg for msg in self._model.accepted() if not msg.busy]
        paused = [msg for msg in able if msg.maybe_paused]
        if able:
            self._resume(self._random.choice(paused if paused and self._random.random() < 0.9 else able))

    def _resume(self, msg: Msg) -> None:
        assert msg.accepted is not None
        before, frozen_ms = list(msg.promises), msg.frozen_ms
        since = self._sim.since()
        low_ms = 0 if msg.frozen_ms is None or self._model.clock_set_back or msg.eager else msg.frozen_ms
        msg.commands += 1
        msg.busy = msg.touched = True
        # Whether it is paused is not known until that is answered.
        msg.frozen_ms = None
        msg.promises.append(Promise(low_ms, since))

        def then(of: Answer[Any], unclear: bool) -> None:
            msg.busy = False
            error = of.error()
            if error is None:
                self._resumed(msg, of.value(), frozen_ms, low_ms, since)
            elif not unclear:
                msg.promises, msg.frozen_ms = before, frozen_ms
                if isinstance(error, Conflict) and error.state in NOT_PAUSED:
                    if frozen_ms is not None and error.state in ("scheduled", "sending", "held"):
                        raise Violation(f"{msg.token} was paused, and is said not to be: {error}")
                    msg.maybe_paused = False
                    if error.state in ("sent", "cancelled", "failed"):
                        self._sim.checker.told(msg, error.state)
                else:
                    self._sim.clients.check_conflict(msg, error)

        self._sim.ask(f"resume {msg.token}", self._sim.engine.pausing.resume(msg.accepted.id), then)

    def _resumed(self, msg: Msg, view: MessageView, frozen_ms: int | None, low_ms: int, since: int) -> None:
        # One that was sent by command goes out at once, whenever it was to be due.
        due_at_ms = view.due_at_ms if view.due_at_ms and frozen_ms else 0
        msg.maybe_paused = False
        if due_at_ms < low_ms and low_ms < NEVER_MS and not self._model.clock_set_back:
            raise Violation(
                f"{msg.token} was due at {low_ms} when it was paused, and is due at {due_at_ms} now"
            )
        self._sim.note_due(view.due_at_ms or 0)
        msg.promise(Promise(0 if msg.eager else due_at_ms, since))

    # Delayed entries

    def freeze(self) -> None:
        """Pause a delayed entry, or resume it."""
        publication = self._sim.recalls.chosen()
        if publication is None or publication.id is None or publication.busy:
            return
        if publication.maybe_paused and self._random.random() < 0.7:
            self._thaw(publication)
            return
        dues = [publication.deliver_at_ms or 0, *(due.due_at_ms for due in publication.dues)]
        frozen_ms = min(dues) if publication.frozen_ms is None else publication.frozen_ms
        publication.maybe_paused = True

        def paused(_: MessageView) -> Promise:
            self._sim.coverage.note("delayed entry paused")
            publication.frozen_ms = frozen_ms
            return Promise(NEVER_MS, self._sim.since())

        answer = self._sim.engine.pausing.pause(publication.id)
        self._moving(publication, Promise(NEVER_MS, self._sim.since()), answer, paused, "freeze")

    def _thaw(self, publication: Publication) -> None:
        assert publication.id is not None
        since = self._sim.since()
        before_ms = publication.frozen_ms or 0
        low_ms = 0 if self._model.clock_set_back else before_ms

        def resumed(view: MessageView) -> Promise:
            publication.maybe_paused = False
            self._sim.note_due(view.due_at_ms or 0)
            if (view.due_at_ms or 0) < low_ms:
                raise Violation(
                    f"{publication.token} was due at {low_ms}, and is due at {view.due_at_ms} once resumed"
                )
            # One that was sent by command goes out at once, whenever it was to be due.
            return Promise(view.due_at_ms or 0 if before_ms else 0, since)

        answer = self._sim.engine.pausing.resume(publication.id)
        self._moving(publication, Promise(low_ms, since), answer, resumed, "thaw")

    def _moving(
        self,
        publication: Publication,
        due: Promise,
        answer: Answer[MessageView],
        moved: Callable[[MessageView], Promise],
        what: str,
    ) -> None:
        """An entry is due at another instant from now on, perhaps; once that is answered, then and no earlier."""
        publication.dues.append(due)
        publication.busy += 1
        # Whether it is paused is not known until that is answered.
        frozen_ms, publication.frozen_ms = publication.frozen_ms, None

        def then(of: Answer[Any], unclear: bool) -> None:
            publication.busy -= 1
            error = of.error()
            if error is None:
                promise = moved(of.value())
                self._sim.checker.commanded(publication, of.value())
                publication.moved(due, promise)
            elif not unclear:
                publication.dues.remove(due)
                if isinstance(error, Conflict):
                    publication.maybe_paused = False
                    return
                publication.frozen_ms = frozen_ms
                if not isinstance(error, Unavailable | NotFound | RateLimited):
                    raise error

        self._sim.ask(f"{what} {publication.token}", answer, then)

    # Places

    def pause_place(self) -> None:
        """Pause a place."""
        place = self._random.choice(PLACES)
        if place in self._model.pausing:
            return
        self._model.pausing.add(place)
        self._model.ever_paused.add(place)

        def then(of: Answer[Any], _: bool) -> None:
            self._model.pausing.discard(place)
            error = of.error()
            if error is None:
                self._sim.coverage.note("place paused")
                self._model.held.setdefault(place, self._sim.since())
            elif not isinstance(error, Unavailable):
                raise error

        self._sim.ask(f"pause {place}", self._sim.engine.pausing.pause_place(_named(place)), then)

    def resume_place(self) -> None:
        """Resume a place that may be paused."""
        able = sorted(self._model.ever_paused - self._model.pausing)
        if able:
            self._resume_place(self._random.choice(able))

    def _resume_place(self, place: Place) -> None:
        sure = self._model.held.pop(place, None) is not None
        self._model.pausing.add(place)

        def then(of: Answer[Any], _: bool) -> None:
            self._model.pausing.discard(place)
            error = of.error()
            if isinstance(error, NotFound) and sure:
                raise Violation(f"{place} was paused, and is said not to be")
            if error is None:
                self._sim.coverage.note("place resumed")
            elif not isinstance(error, NotFound | Unavailable):
                raise error

        self._sim.ask(f"resume {place}", self._sim.engine.pausing.resume_place(_named(place)), then)

    # The end

    def resume_all(self) -> None:
        """Resume all that is paused, or may be: the run comes to its end."""
        for place in sorted(self._model.ever_paused - self._model.pausing - self._over):
            self._over.add(place)
            self._resume_place(place)
        for msg in self._model.accepted():
            if msg.maybe_paused and not msg.busy:
                self._resume(msg)
        for publication in self._model.publications.values():
            if publication.maybe_paused and not publication.busy:
                self._thaw(publication)


def _named(place: Place) -> PausablePlace:
    kind, namespace, name = place
    return PausablePlace(kind, namespace, parse_topic(name).full if kind == "topic" else name)
