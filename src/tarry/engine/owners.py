"""What concerns an owner or a subject as a whole: list an owner's messages, end many at once."""

from collections.abc import Callable
from typing import Any, TypeVar

from tarry.core.errors import TarryError
from tarry.core.message import MessagePage, MessageView, OwnedQuery
from tarry.engine.answer import Answer, failed
from tarry.engine.commands import Commands, Ending
from tarry.engine.journal import Journal
from tarry.engine.owned import OwnedKeys, ended_page, origins_of, waiting_page
from tarry.ledger.record import Key

T = TypeVar("T")


class Owners:
    """Finds the messages of an owner or a subject, and has `Commands` show or end each."""

    def __init__(self, journal: Journal, commands: Commands) -> None:
        self._journal = journal
        self._commands = commands

    def page(self, query: OwnedQuery) -> Answer[MessagePage]:
        """A page of an owner's listed messages."""
        if query.state == "finalised":
            return self._commands.after_flush(lambda: MessagePage(*ended_page(self._journal, query)))
        answer: Answer[MessagePage] = Answer()

        def show(keys: OwnedKeys) -> None:
            def done(views: list[Answer[MessageView]]) -> None:
                shown = [view.value() for view in views if view.error() is None]
                # One that has ended since the last flush is on the other list.
                waiting = [
                    view
                    for view in shown
                    if view.finalised_at_ms is None and query.namespace in (None, view.namespace)
                ]
                answer.settle(MessagePage(waiting, keys.next_page))

            together([self._commands.get(self._id(origin)) for origin in keys.origins], done)

        self._look(lambda: waiting_page(self._journal, query), show, answer)
        return answer

    def end_subject(self, subject: str, ending: Ending) -> Answer[int]:
        """End all that wait about a subject and that the ending is meant for; gives how many."""
        answer: Answer[int] = Answer()
        try:
            self._end(self._journal.subjects.of(subject), ending, answer)
        except TarryError as error:
            return failed(error)
        return answer

    def end_owner(self, owner: str, ending: Ending) -> Answer[int]:
        """End all of an owner's listed messages that the ending is meant for; gives how many."""
        answer: Answer[int] = Answer()
        self._look(
            lambda: origins_of(self._journal, owner), lambda found: self._end(found, ending, answer), answer
        )
        return answer

    def _end(self, origins: list[Key], ending: Ending, answer: Answer[int]) -> None:
        # One that has ended meanwhile, or is being sent and arrives, needs no other end.
        together(
            [self._commands.end(self._id(origin), ending) for origin in origins],
            lambda ends: answer.settle(sum(end.error() is None for end in ends)),
        )

    def _look(self, look: Callable[[], T], found: Callable[[T], None], answer: Answer[Any]) -> None:
        def looked(of: Answer[T]) -> None:
            error = of.error()
            if error is None:
                found(of.value())
            else:
                answer.fail(error)

        self._commands.after_flush(look).then(looked)

    def _id(self, origin: Key) -> str:
        return self._journal.ids.make(origin.seq, origin.fire_at_ms)


def together(answers: list[Answer[T]], done: Callable[[list[Answer[T]]], None]) -> None:
    """Call back with all answers once the last has come."""
    waiting = len(answers) + 1

    def arrived(_: object = None) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            done(answers)

    for answer in answers:
        answer.then(arrived)
    arrived()
