"""Passes calls that are not pub/sub on to a real sidecar."""

from collections.abc import Iterable
from typing import Any, Final

import aiohttp

from tarry.doors.dapr import errors
from tarry.doors.dapr.errors import Refusal

_NOT_PASSED: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"transfer-encoding",
        b"content-length",
        b"host",
        b"upgrade",
        b"te",
        b"trailer",
    )
)
"""Headers for the next hop only (RFC 9110, 7.6.1), and those that each connection has of its own."""
_NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the library would add for the client; it may not take an encoding that the client did not ask for."""
TIMEOUT_S: Final = 60.0


class HttpPassing:
    """Passes HTTP requests on."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def pass_on(self, scope: Any, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """The sidecar's own answer; raises `Refusal` if it does not give one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = self._address + (path + query).decode("latin-1")
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in _passed(scope["headers"])
        ]
        try:
            async with self._session.request(
                scope["method"],
                url,
                data=body or None,
                headers=headers,
                skip_auto_headers=_NOT_ADDED,
                allow_redirects=False,
            ) as answer:
                given = [(name.lower(), value) for name, value in answer.raw_headers]
                return answer.status, _passed(given), await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Refusal(
                errors.SIDECAR,
                f"the sidecar at {self._address} does not answer: {reason}",
            ) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that go on: not those that are for this connection, nor those that `Connection` says are."""
    given = list(headers)
    named = [value for name, value in given if name == b"connection"]
    left_out = _NOT_PASSED.union(one.strip().lower() for value in named for one in value.split(b","))
    return [(name, value) for name, value in given if name not in left_out]
