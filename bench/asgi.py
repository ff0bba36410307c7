"""An application of the HTTP kit as plain ASGI, so that uvicorn can serve the same door: what ADR 0032 compares the kit with."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tarry.http.application import Application
from tarry.http.errors import BodyTooLarge
from tarry.http.head import Fields, Head
from tarry.http.request import Request
from tarry.http.response import Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class AsAsgi:
    """The application. Endpoints with streams are not served."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Message, receive: Receive, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        fields = Fields(list(scope["headers"]), keep_alive=True, old=False)
        request = Request(Head(scope["method"], scope["raw_path"], scope["query_string"], fields))
        try:
            response = await self._answer(request, receive)
        except Exception as error:  # noqa: BLE001 - whatever it is, the door's table says it
            response = self._app.refuse(request, error)
        headers = [*response.headers, (b"content-length", b"%d" % len(response.body))]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _answer(self, request: Request, receive: Receive) -> Response:
        endpoint = self._app.open(request)
        if endpoint.max_body_bytes is not None:
            request.body = await _body(receive, endpoint.max_body_bytes)
        outcome: Any = endpoint.run(request)
        response = outcome if isinstance(outcome, Response) else await outcome
        assert isinstance(response, Response)
        return response


async def _body(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    more = True
    while more:
        event = await receive()
        pieces.append(event.get("body", b""))
        more = event.get("more_body", False)
        if sum(map(len, pieces)) > limit:
            raise BodyTooLarge(limit)
    return b"".join(pieces)
