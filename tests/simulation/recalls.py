"""Producers who change their mind about delayed entries: they reschedule them, or cancel them."""

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
        return {"reschedule": self.reschedule, "recall": self.recall}

    def reschedule(self) -> None:
        """Give an entry another due instant."""
        publication = self._chosen()
        if publication is None or publication.entry_id is None:
            return
        due = Promise(self._sim.clock.now_ms() + self._random.choice(DELAYS_MS), self._sim.since())
        self._sim.note_due(due.due_at_ms)
        # From now on it may come then; once that is answered, no earlier.
        publication.dues.append(due)

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            if error is None:
                publication.deliver_at_ms, publication.since = due.due_at_ms, due.since
                publication.dues[:] = publication.dues[publication.dues.index(due) + 1 :]
            elif not unclear:
                _check(error)
                publication.dues.remove(due)

        answer = self._sim.engine.delayed.reschedule(publication.topic, publication.entry_id, due.due_at_ms)
        self._sim.ask(f"reschedule {publication.token} {due.due_at_ms}", answer, then)

    def recall(self) -> None:
        """Cancel an entry."""
        publication = self._chosen()
        if publication is None or publication.entry_id is None:
            return
        place = publication.topic, publication.entry_id
        known = place in self._model.recalled
        self._model.recalled.add(place)

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            if error is None:
                publication.recalled = True
            elif not unclear:
                _check(error)
                if not known:
                    self._model.recalled.discard(place)

        answer = self._sim.engine.delayed.cancel(*place)
        self._sim.ask(f"recall {publication.token}", answer, then)

    def _chosen(self) -> Publication | None:
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
