"""Owners and subjects as a whole: list an owner's messages, end many at once."""

from tarry.core.errors import TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessagePage, MessageView, OwnedQuery
from tarry.engine.answer import Answer, failed
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands, Ending
from tarry.engine.queries.finding import those_found
from tarry.engine.queries.owner_pages import OwnedKeys, ended_page, origins_of, waiting_page
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key


class Owners:
    """Finds the messages of an owner or a subject, and has `Commands` show or end each."""

    def __init__(self, journal: Journal, state: EngineState, ids: Ids, commands: Commands) -> None:
        self._journal = journal
        self._state = state
        self._ids = ids
        self._commands = commands

    def page(self, query: OwnedQuery) -> Answer[MessagePage]:
        """A page of an owner's listed messages."""
        if query.state == "finalised":
            return self._commands.after_flush(
                lambda: MessagePage(*ended_page(self._state.registry, self._state.names, self._ids, query))
            )

        def shown(view: MessageView) -> bool:
            # One that has ended since the last flush is on the other list.
            return view.finalised_at_ms is None and query.namespace in (None, view.namespace)

        def show(keys: OwnedKeys) -> Answer[MessagePage]:
            views = those_found([self._commands.get(self._id(origin)) for origin in keys.origins])
            return views.map(lambda found: MessagePage(list(filter(shown, found)), keys.next_page))

        return self._commands.after_flush(
            lambda: waiting_page(self._state.registry, self._journal.next_seq, query)
        ).and_then(show)

    def end_subject(self, subject: str, ending: Ending) -> Answer[int]:
        """End all that wait about a subject and that the ending is meant for; gives how many."""
        try:
            # Another owner may know of more.
            self._journal.check_shown()
            return self._end(self._state.subjects.of(subject), ending)
        except TarryError as error:
            return failed(error)

    def end_owner(self, owner: str, ending: Ending) -> Answer[int]:
        """End all of an owner's listed messages that the ending is meant for; gives how many."""
        found = self._commands.after_flush(lambda: origins_of(self._state.registry, owner))
        return found.and_then(lambda origins: self._end(origins, ending))

    def _end(self, origins: list[Key], ending: Ending) -> Answer[int]:
        # One that has ended meanwhile, or is being sent and arrives, needs no other end.
        return those_found([self._commands.end(self._id(origin), ending) for origin in origins]).map(len)

    def _id(self, origin: Key) -> str:
        return self._ids.make(origin.seq, origin.fire_at_ms)
