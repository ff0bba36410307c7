"""The homeserver as an HTTP peer, for requests of Tarry's own (`lines`) and for those that are passed on.

Knows where it is and the application service's token; knows nothing of delayed events. Nothing is decompressed, no
redirect is followed, no cookie is kept, and no address is encoded again: what is asked is what is sent.
"""

from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any, Final

import aiohttp
from msgspec import Struct
from yarl import URL

from tarry.outlets.matrix.lines import LineAnswer, Lines

FAILURES: Final = (aiohttp.ClientError, OSError, RuntimeError)
"""Errors of the HTTP client and the event loops for faults of a homeserver or the network; a time-out is an `OSError`."""

_KEEPALIVE_S: Final = 15.0
_OWN_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the client would add by itself."""


class HomeserverSettings(Struct, frozen=True, kw_only=True):
    """The address of the homeserver, and the credentials by which Tarry speaks to it."""

    url: str
    as_token: str = ""
    connect_timeout_ms: int = 10_000
    timeout_ms: int = 60_000
    """The longest time for a request of Tarry's own; proxied ones have none, a long poll takes what it takes."""


class Homeserver:
    """One homeserver. Made before the loop runs; its connections belong to the loop that first uses it."""

    def __init__(self, settings: HomeserverSettings) -> None:
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._lines = Lines(self._base, settings.connect_timeout_ms, settings.timeout_ms)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> LineAnswer:
        """Ask something; raises one of `FAILURES`. `path` is already encoded and may have a query."""
        given = dict(headers or {})
        if body is not None:
            given.setdefault("Content-Type", "application/json")
        return await self._lines.ask(method, path, given, body)

    async def as_service(self, method: str, path: str, body: bytes | None = None) -> LineAnswer:
        """Ask as the application service, for the user that the path's query names (`user_id`)."""
        authorization = {"Authorization": f"Bearer {self._settings.as_token}"}
        return await self.request(method, path, body=body, headers=authorization)

    def expect(self, requests: int) -> None:
        """So many requests of Tarry's own are coming at one instant, soon."""
        self._lines.expect(requests)

    def stream(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: AsyncIterable[bytes] | None
    ) -> Any:
        """A request that is passed on: a context manager that gives the response, unread and as it is."""
        return self._open().request(
            method,
            self.url(path),
            data=body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._settings.connect_timeout_ms / 1000, sock_read=None
            ),
        )

    def url(self, path: str) -> URL:
        """The address of a path, to the letter."""
        return URL(self._base + path, encoded=True)

    async def close(self) -> None:
        """Close all connections. It cannot be used again."""
        self._closed = True
        self._lines.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise aiohttp.ClientConnectionError("closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                skip_auto_headers=_OWN_HEADERS,
                max_line_size=64 * 1024,
                max_field_size=64 * 1024,
            )
        return self._session
