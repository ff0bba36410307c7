"""Producers who change their mind about delayed entries: they reschedule, cancel or send them, by their places or by their ids."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, DelayTooLong, NotFound, Unavailable
from tarry.engine.answer import Answer
from tests.simulation.model import TOPICS, Promise, Publication

if TYPE_CHECKING:
    from tests.simulation.world import Simulation


DELAYS_MS = (0, 1, 20, 1_500, 90_000)


class Recalls:
    """Commands on delayed entries."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._model = sim.model
        self._random = sim.random

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that they take."""
        return {
            "reschedule": self.reschedule,
            "recall": self.recall,
            "hasten": self.hasten,
            "inquire": self.inquire,
        }

    def reschedule(self) -> None:
        """Give an entry another due instant."""
        publication = self.chosen()
        if publication is None or publication.entry_id is None:
            return
        due_at_ms = self._sim.clock.now_ms() + self._random.choice(DELAYS_MS)
        engine, id_ = self._sim.engine, self._id(publication)
        if id_ is not None:
            answer: Answer[Any] = engine.restart(id_, due_at_ms=due_at_ms)
        else:
            answer = engine.delayed.reschedule(publication.topic, publication.entry_id, due_at_ms)
        self._moved(publication, Promise(due_at_ms, self._sim.since()), answer, f"reschedule {due_at_ms}")

    def hasten(self) -> None:
        """Have an entry sent now."""
        publication = self.chosen()
        id_ = None if publication is None else publication.id
        if publication is not None and id_ is not None:
            self._moved(publication, Promise(0, self._sim.since()), self._sim.engine.send(id_), "hasten")

    def _moved(self, publication: Publication, due: Promise, answer: Answer[Any], what: str) -> None:
        self._sim.note_due(due.due_at_ms)
        # From now on it may come then; once that is answered, no earlier.
        publication.dues.append(due)
        publication.frozen_ms = None
        publication.busy += 1

        def then(of: Answer[Any], unclear: bool) -> None:
            publication.busy -= 1
            error = of.error()
            if error is None:
                self._sim.checker.commanded(publication, of.value())
                publication.moved(due, due)
            elif not unclear:
                _check(error)
                publication.dues.remove(due)

        self._sim.ask(f"{what} {publication.token}", answer, then)

    def recall(self) -> None:
        """Cancel an entry."""
        publication = self.chosen()
        if publication is None or publication.entry_id is None:
            return
        place = publication.topic, publication.entry_id
        known = place in self._model.recalled
        self._model.recalled.add(place)
        publication.busy += 1

        def then(of: Answer[Any], unclear: bool) -> None:
            publication.busy -= 1
            error = of.error()
            if error is None:
                self._sim.checker.commanded(publication, of.value())
                publication.recalled = True
            elif not unclear:
                _check(error)
                if not known:
                    self._model.recalled.discard(place)

        engine, id_ = self._sim.engine, self._id(publication)
        answer: Answer[Any] = engine.delayed.cancel(*place) if id_ is None else engine.cancel(id_)
        self._sim.ask(f"recall {publication.token}", answer, then)

    def inquire(self) -> None:
        """Look at an entry as a message."""
        publication = self.chosen()
        if publication is None or publication.id is None:
            return

        def then(of: Answer[Any], _: bool) -> None:
            error = of.error()
            if error is None:
                self._sim.checker.inquired(publication, of.value())
            elif not isinstance(error, Unavailable):
                self._sim.checker.not_found(publication, error)

        self._sim.ask(f"inquire {publication.token}", self._sim.engine.get(publication.id), then)

    def _id(self, publication: Publication) -> str | None:
        """The id by which to command an entry, or None to do it by its place."""
        return None if self._random.random() < 0.3 else publication.id

    def chosen(self) -> Publication | None:
        """One that may still wait."""
        found = [
            one
            for one in self._model.publications.values()
            if one.accepted
            and one.entry_id is not None
            and one.deliver_at_ms is not None
            and one.topic in TOPICS
        ]
        # The newest: the older ones were mostly due before.
        return self._random.choice(found[-4:]) if found else None


def _check(error: BaseException) -> None:
    if not isinstance(error, Unavailable | Conflict | NotFound | DelayTooLong):
        raise error
