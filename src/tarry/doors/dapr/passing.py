"""Passes calls that are not pub/sub on to a real sidecar."""

from typing import Any, Final

import aiohttp

from tarry.doors.dapr import errors
from tarry.doors.dapr.errors import Refusal

_NOT_PASSED: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"content-length",
        b"host",
        b"upgrade",
        b"te",
        b"trailer",
    )
)
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
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name not in _NOT_PASSED
        ]
        try:
            async with self._session.request(
                scope["method"], url, data=body or None, headers=headers, allow_redirects=False
            ) as answer:
                given = [(name.lower(), value) for name, value in answer.raw_headers]
                kept = [(name, value) for name, value in given if name not in _NOT_PASSED]
                return answer.status, kept, await answer.read()
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
