"""Hearing the outcome of a message: of one that a command makes due, and of one that is on its way to its end.

A wait is for one version. Where that version was replaced meanwhile, the message is looked up again: the commands on it
hold in the order of their records (`tarry.core.messages.lifecycle`), and whoever waits is told what came of the message by then.
"""

from collections.abc import Callable

from tarry.core.errors import Conflict
from tarry.core.messages.delivery import Delivered, Verdict
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import FINALISED, State
from tarry.core.messages.message import MessageView
from tarry.engine.answer import Answer
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.queries.commands import Commands, MadeDue
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key


class Hearing:
    """Waits for the outcome of messages."""

    def __init__(self, state: EngineState, ids: Ids, dispatcher: Dispatcher, commands: Commands) -> None:
        self._state = state
        self._ids = ids
        self._dispatcher = dispatcher
        self._commands = commands

    def deliver(self, id: str, *, keep: bool = False, namespace: str | None = None) -> Answer[Verdict]:
        """Make a message due now, and hear the verdict on the next attempt to send it.

        A conflict if a command that was recorded after this one has cancelled or restarted it before that. With `keep`,
        a message that is refused waits for its due instant again.
        """
        answer: Answer[Verdict] = Answer()

        def due(of: Answer[MadeDue]) -> None:
            error = of.error()
            if error is not None:
                answer.fail(error)
            else:
                # In the turn in which it became durable: no record after it has taken effect yet.
                self._watch(id, of.value().seq, answer)

        self._commands.make_due(id, keep=keep, namespace=namespace).then(due)
        return answer

    def _watch(self, id_: str, seq: int, answer: Answer[Verdict]) -> None:
        def told(verdict: Verdict | None) -> None:
            if verdict is None:
                self._commands.get(id_).then(looked)
            else:
                answer.settle(verdict)

        def looked(of: Answer[MessageView]) -> None:
            error = of.error() or _overruled(of.value())
            if error is not None:
                answer.fail(error)
            elif of.value().state is State.SENT:
                answer.settle(Delivered(of.value().reference))
            else:
                # Another version of it is due: sent by another command, or carried forward.
                self._when_alive(id_, lambda current: self._watch(id_, current, answer), lambda: told(None))

        self._dispatcher.flights.verdicts.watch(seq, told)

    def ended(self, id: str) -> Answer[MessageView]:
        """A message that is due, once it is finalised."""
        answer: Answer[MessageView] = Answer()

        def look() -> None:
            self._commands.get(id).then(shown)

        def wait(seq: int) -> None:
            self._dispatcher.end_writer.when_settled(seq, look)

        def shown(of: Answer[MessageView]) -> None:
            error = of.error()
            if error is not None:
                answer.fail(error)
            elif of.value().state in FINALISED:
                answer.settle(of.value())
            else:
                self._when_alive(id, wait, look)

        look()
        return answer

    def _when_alive(self, id_: str, wait: Callable[[int], None], look: Callable[[], None]) -> None:
        """Wait for the present version of a message; look again if that has ended since the last look."""
        place = self._ids.read(id_)
        assert place is not None
        current = self._state.current(Key(place[1], place[0]))
        if current.seq in self._state.dead:
            look()
        else:
            wait(current.seq)


def _overruled(view: MessageView) -> Conflict | None:
    """The conflict of a send with a later command; None if the message was sent, or is still due by command."""
    if view.state is State.SENT or (view.state not in FINALISED and view.commanded):
        return None
    if view.state in FINALISED:
        return Conflict(f"the message is {view.state}: it was not sent", view.state)
    return Conflict("the message was restarted before it could be sent; send it again", "restarted")
