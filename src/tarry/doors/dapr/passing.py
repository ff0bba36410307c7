"""Passes calls that are not pub/sub on to a real sidecar."""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import aiohttp

from tarry.doors.dapr import errors
from tarry.doors.dapr.errors import Refusal
from tarry.http.passing import end_to_end, relayed
from tarry.http.request import Request
from tarry.http.response import Streamed

_OF_THE_CONNECTION: Final = frozenset((b"content-length", b"host"))
"""Further fields that each connection has of its own."""
_NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the library would add for the client; it may not take an encoding that the client did not ask for."""
TIMEOUT_S: Final = 60.0
FAILURES: Final = (aiohttp.ClientError, TimeoutError)


class HttpPassing:
    """Passes HTTP requests on."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def pass_on(self, request: Request) -> Streamed:
        """The sidecar's own response, to be sent as it comes; raises `Refusal` if it does not give one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        task = asyncio.current_task()
        assert task is not None
        request.on_gone = task.cancel
        fields = end_to_end(request.headers, _OF_THE_CONNECTION)
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
                    self._session.request(
                        request.method,
                        self._address + request.target,
                        data=request.body or None,
                        headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields],
                        skip_auto_headers=_NOT_ADDED,
                        allow_redirects=False,
                    )
                )
            except FAILURES as error:
                reason = str(error) or type(error).__name__
                text = f"the sidecar at {self._address} does not answer: {reason}"
                raise Refusal(errors.SIDECAR, text) from None
            exchange = stack.pop_all()
        return relayed(response.status, response.raw_headers, response.content.iter_any(), exchange, FAILURES)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
