"""Event streams: a subscription as server-sent events.

At most a window of entries is unacknowledged, and nothing more is asked of the engine while the client
does not read, so a slow client holds up itself and nobody else. When the stream ends, for whatever
reason, what was not acknowledged goes to others.
"""

from functools import partial
from typing import Final

from tarry.core.errors import Conflict
from tarry.doors.http.bodies import read_query
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import EventsQuery
from tarry.doors.http.topics.entries import EntryJson
from tarry.doors.http.topics.session import Entries, SessionKey, Stream
from tarry.doors.http.topics.sessions import Sessions
from tarry.doors.http.topics.subscriptions import reach_subscription
from tarry.engine.api import ids_of
from tarry.http.request import Request
from tarry.http.response import Sender, Streamed

_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Proxies that buffer would hold entries back until their time is over.
    (b"x-accel-buffering", b"no"),
)


class EventEndpoint:
    """GET …/subscriptions/{name}/events."""

    def __init__(self, sessions: Sessions, settings: HttpSettings) -> None:
        self._sessions = sessions
        self._ack_timeout_ms = settings.ack_timeout_ms
        self._keep_alive_s = settings.keep_alive_ms / 1000

    def events(self, request: Request) -> Streamed:
        """Open the stream; the response then runs it, until the client or the session goes."""
        topic, name = reach_subscription(request)
        asked = read_query(request.query, EventsQuery)
        stream = self._sessions.stream(SessionKey(topic, name, asked.consumer), asked.window, request.caller)
        request.on_gone = stream.changed
        timeout_ms = asked.ack_timeout_ms or self._ack_timeout_ms
        return Streamed(200, _HEADERS, partial(self._run, request, stream, timeout_ms / 1000))

    async def _run(self, request: Request, stream: Stream, ack_timeout_s: float, sender: Sender) -> None:
        session, json = stream.session, self._sessions.json
        try:
            await sender.write(b": open\n\n")
            while session.ended is None and not request.gone:
                batches = stream.take()
                if batches:
                    session.hold(batches, ack_timeout_s)
                    await sender.write(b"".join([_events(entries, json) for entries in batches]))
                elif not await stream.wait(self._keep_alive_s):
                    await sender.write(b": keep-alive\n\n")
        finally:
            self._sessions.close(session, Conflict("the stream has ended; open it again", "ended"))


def _events(entries: Entries, json: EntryJson) -> bytes:
    shown = zip(ids_of(entries), json.show_each(entries), strict=True)
    return b"".join([b"id: %d\ndata: %b\n\n" % one for one in shown])
