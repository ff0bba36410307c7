"""All consumer sessions of the door: bounded in number, swept for what is late or idle."""

import asyncio
from typing import Final

from tarry.core.errors import Conflict, TarryError, Unavailable
from tarry.core.names import check_name
from tarry.core.tenants.access import Access, Caller
from tarry.core.tenants.shares import Shares
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.topics.entries import EntryJson
from tarry.doors.http.topics.session import Session, SessionKey, Stream
from tarry.engine.api import Topics

SWEEP_S: Final = 0.25
"""How exactly an acknowledgement timeout is kept."""


class Sessions:
    """All sessions of the door, bounded in number, and swept for late entries and idle sessions."""

    def __init__(self, topics: Topics, settings: HttpSettings, access: Access) -> None:
        self.json = EntryJson()
        """Writes the entries that these sessions are given."""
        self._topics = topics
        self._settings = settings
        self._sessions: dict[SessionKey, Session] = {}
        self._callers: dict[Session, Caller] = {}
        """The caller in whose share each session is."""
        self._places = Shares(settings.max_sessions, "consumer sessions", access)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: SessionKey) -> Session | None:
        """The session, if it is open."""
        session = self._sessions.get(key)
        return None if session is None or session.ended is not None else session

    def poll(self, key: SessionKey, caller: Caller) -> Session:
        """The session for a long poll, opened if need be."""
        session = self.find(key)
        if session is None:
            return self._open(key, caller)
        if session.stream is not None:
            raise Conflict("this consumer reads an event stream; poll under another name", "streaming")
        return session

    def stream(self, key: SessionKey, window: int, caller: Caller) -> Stream:
        """A new stream. One that has the same name ends: its client has probably come back."""
        # Before the old one goes, so that a stream of nothing ends nothing.
        self._topics.subscription(key.topic, key.subscription)
        old = self._sessions.get(key)
        if old is not None:
            self.close(
                old,
                Conflict("another stream took this consumer's place; use another name for each", "replaced"),
            )
        session = self._open(key, caller)
        session.stream = Stream(session, window)
        return session.stream

    def _open(self, key: SessionKey, caller: Caller) -> Session:
        check_name(key.consumer, "consumer")
        subscription = self._topics.subscription(key.topic, key.subscription)
        if self._closed:
            raise Unavailable("the server is stopping; try again in a moment")
        loop = asyncio.get_running_loop()
        session = Session(key, loop.time)
        if (old := self._sessions.get(key)) is not None and old.ended is not None:
            # It ended by itself, and was not swept yet.
            self.close(old, old.ended)
        self._places.take(caller)
        try:
            session.attach(subscription.attach(key.consumer, session.deliver, prepare=self.json.prepare))
        except TarryError:
            self._places.give_back(caller)
            raise
        self._sessions[key] = session
        self._callers[session] = caller
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_S, self._sweep)
        return session

    def close(self, session: Session, reason: TarryError) -> None:
        """End a session; its unacknowledged entries go to others."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self._places.give_back(self._callers.pop(session))
        session.end(reason)

    def sought(self, topic: str, subscription: str) -> None:
        """A subscription went elsewhere."""
        for key, session in self._sessions.items():
            if key[:2] == (topic, subscription):
                session.sought()

    def revoke(self) -> None:
        """End the sessions of tokens that are not in force any more; their entries go to other consumers."""
        for session, caller in list(self._callers.items()):
            if not caller.standing.in_force:
                # Somebody else may poll under the same name, and may go on: the next request finds out who it is.
                self.close(session, Unavailable("the token that opened this consumer is gone; ask again"))

    def stop(self) -> None:
        """End every session; no more are opened."""
        self._closed = True
        for session in list(self._sessions.values()):
            self.close(session, Unavailable("the server is stopping; try again in a moment"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self._timer = None
        idle_s = self._settings.session_idle_ms / 1000
        for session in list(self._sessions.values()):
            if session.ended is not None:
                self.close(session, session.ended)
                continue
            session.expire()
            if session.is_idle(idle_s):
                self.close(session, Conflict("the session was idle; open it again", "idle"))
        if self._sessions:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
