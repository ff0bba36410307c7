"""Event streams: a subscription as server-sent events.

At most a window of entries is unacknowledged, and nothing more is asked of the engine while the client
does not read, so a slow client holds up itself and nobody else. When the stream ends, for whatever
reason, what was not acknowledged goes to others.
"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from tarry.core.errors import Conflict
from tarry.doors.http.asgi import Receive, Scope, Send, until_gone
from tarry.doors.http.bodies import read_query
from tarry.doors.http.deadlines import Deadlines
from tarry.doors.http.gate import caller_of
from tarry.doors.http.problems import HttpRefusal
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import EventsQuery
from tarry.doors.http.topics.entries import EntryJson
from tarry.doors.http.topics.session import Entries, SessionKey, Stream
from tarry.doors.http.topics.sessions import Sessions
from tarry.doors.http.topics.subscriptions import reach_subscription
from tarry.engine.api import ids_of


class EventEndpoint:
    """GET …/subscriptions/{name}/events."""

    def __init__(self, sessions: Sessions, settings: HttpSettings, deadlines: Deadlines) -> None:
        self._sessions = sessions
        self._settings = settings
        self._deadlines = deadlines

    async def events(self, request: Request) -> Response:
        """Open the stream; the response object then runs it."""
        topic, name = reach_subscription(request)
        asked = read_query(request.scope, EventsQuery)
        stream = self._sessions.stream(
            SessionKey(topic, name, asked.consumer), asked.window, caller_of(request)
        )
        timeout_ms = asked.ack_timeout_ms or self._settings.ack_timeout_ms
        return _EventResponse(self._sessions, stream, timeout_ms / 1000, self._settings, self._deadlines)


class _EventResponse(Response):
    """Runs one stream until the client or the session goes."""

    def __init__(
        self,
        sessions: Sessions,
        stream: Stream,
        ack_timeout_s: float,
        settings: HttpSettings,
        deadlines: Deadlines,
    ) -> None:
        super().__init__()
        self._sessions = sessions
        self._stream = stream
        self._ack_timeout_s = ack_timeout_s
        self._keep_alive_s = settings.keep_alive_ms / 1000
        self._deadlines = deadlines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._stream.session
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            # Proxies that buffer would hold entries back until their time is over.
            (b"x-accel-buffering", b"no"),
        ]
        gone = asyncio.ensure_future(until_gone(receive))
        gone.add_done_callback(lambda _: self._stream.changed())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._push(send, b": open\n\n")
            await self._run(send, gone)
            if not gone.done():
                await send({"type": "http.response.body", "body": b""})
        except HttpRefusal:
            # It did not take what was sent, for too long.
            return
        finally:
            gone.cancel()
            self._sessions.close(session, Conflict("the stream has ended", "ended"))

    async def _run(self, send: Send, gone: "asyncio.Future[None]") -> None:
        stream, session = self._stream, self._stream.session
        while session.ended is None and not gone.done():
            lots = stream.take()
            if lots:
                session.hold(lots, self._ack_timeout_s)
                await self._push(send, b"".join([_events(lot, self._sessions.json) for lot in lots]))
                continue
            if not await stream.wait(self._keep_alive_s):
                await self._push(send, b": keep-alive\n\n")

    async def _push(self, send: Send, body: bytes) -> None:
        with self._deadlines.within():
            await send({"type": "http.response.body", "body": body, "more_body": True})


def _events(entries: Entries, json: EntryJson) -> bytes:
    shown = zip(ids_of(entries), json.show_each(entries), strict=True)
    return b"".join([b"id: %d\ndata: %b\n\n" % one for one in shown])
