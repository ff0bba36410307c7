"""Clients that give their messages names, take each other's names, and find and command messages by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.messages.message import NamedMessage, NamedScheduled, OnConflict
from tarry.core.names import DEFAULT_NAMESPACE
from tarry.engine.answer import Answer
from tests.simulation.checker import Violation
from tests.simulation.model import ELSEWHERE, HOSTS, Msg, Promise

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

NAMES = ("n0", "n1", "n2")
"""Few, so that there are conflicts."""


class Names:
    """Scheduling under names, and commands by name."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._model = sim.model
        self._checker = sim.checker
        self._random = sim.random

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that these clients take."""
        return {"name": self.schedule, "by_name": self.find}

    def schedule(self) -> None:
        """One message with a name."""
        random = self._random
        msg = self._sim.clients.new(plain=True)
        message = structs.replace(msg.message, listed=random.random() < 0.3)
        if message.destination in HOSTS and random.random() < 0.3:
            message = structs.replace(message, namespace=ELSEWHERE)
        on_conflict: OnConflict = random.choice(("fail", "keep", "replace", "replace", "replace"))
        named = NamedMessage.of(message, random.choice(NAMES), on_conflict)
        msg.message = named
        before = self._model.named_before(msg)
        over = {one.token for one in before if self._checker.is_over(one)}
        for one in before if on_conflict == "replace" else ():
            one.replacers += one.token not in over
        promise = self._sim.clients.promise(msg)
        # It may wait for a verdict, and its delay counts from when it is decided.
        msg.busy = True

        def then(of: Answer[Any], unclear: bool) -> None:
            msg.busy = False
            rivals = [one for one in before if one.token not in over and (one.accepted or one.maybe)]
            error = of.error()
            if unclear:
                return
            replaced = error is None and self._accepted(msg, promise, of.value(), before, rivals)
            if error is not None:
                self._refused(msg, promise, error, rivals)
            if on_conflict == "replace" and not replaced:
                for one in before:
                    one.replacers -= one.token not in over

        self._sim.ask(f"name {msg.token} {named.name} {on_conflict}", self._sim.engine.schedule(named), then)

    def _accepted(
        self, msg: Msg, promise: Promise | None, answer: NamedScheduled, before: list[Msg], rivals: list[Msg]
    ) -> bool:
        """The answer to a schedule came; gives whether it took the place of another message."""
        if answer.kept:
            self._sim.coverage.note("message kept under its name")
            self._sim.clients.forget(msg, promise)
            self._checker.kept(msg, answer.id, before, rivals)
            return False
        # If it had to wait for a verdict, its delay began when that came.
        self._sim.note_due(answer.due_at_ms or 0)
        self._checker.scheduled(msg, answer)
        self._checker.took_name(msg, before, rivals, replaced=answer.replaced)
        if answer.replaced:
            self._sim.coverage.note("message replaced under its name")
        return answer.replaced

    def _refused(self, msg: Msg, promise: Promise | None, error: BaseException, rivals: list[Msg]) -> None:
        if isinstance(error, Conflict) and error.state in ("named", "uncertain"):
            if not rivals:
                raise Violation(f"{msg.token}: nobody has its name, and it got {error}") from error
            self._sim.clients.forget(msg, promise)
        else:
            self._sim.clients.refused(msg, promise, error)

    def find(self) -> None:
        """Somebody finds a message by its name, and commands it."""
        random = self._random
        namespace, name = random.choice((DEFAULT_NAMESPACE, ELSEWHERE)), random.choice(NAMES)
        asked = [one for one in self._model.messages.values() if one.place == (namespace, name)]
        accepted = [at for at, one in enumerate(asked) if one.accepted is not None]
        last = accepted[-1] if accepted else -1
        try:
            id_ = self._sim.engine.id_of_name(namespace, name)
        except Unavailable:
            return
        except NotFound:
            if accepted:
                raise Violation(f"{asked[last].token} is not found by its name") from None
            return
        found = next((one for one in asked if one.accepted is not None and one.accepted.id == id_), None)
        if found is None:
            if not any(one.maybe for one in asked[last + 1 :]):
                raise Violation(f"{name} leads to a message that was not given this name last")
        elif found is not asked[last]:
            raise Violation(f"{name} leads to {found.token}, and is of {asked[last].token}")
        elif not found.busy:
            self._sim.clients.act(found, id_)
