"""The few words of ASGI that the door uses, and the plain ways to answer."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from starlette.responses import Response

from tarry.core.errors import TarryError
from tarry.doors.http.problems import Headers, encode, headers_of, problem_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

Reply = Callable[[int, Headers, bytes], None]
"""Sends a whole answer at once: the status, the headers but for the length, and the body."""

Answering = Callable[[bytes, Any, Reply], bool]
"""Gets the body of a request that has come whole, and who sends it; says whether it will reply. See `serve.transport.heads`."""

_encoder = msgspec.json.Encoder()


class Disconnected(Exception):
    """The client has gone; there is nobody to answer."""


async def respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, error: TarryError) -> None:
    """Answer with the problem document of an error."""
    await respond(send, *refusal(error))


def refusal(error: TarryError) -> tuple[int, Headers, bytes]:
    """The problem document of an error as an answer."""
    problem = problem_of(error)
    return problem.status, headers_of(error), encode(problem)


def json_response(value: Any, status: int = 200) -> Response:
    """An answer in JSON. It is not to be kept by anything on its way: it may hold an id or a payload."""
    return encoded_json(_encoder.encode(value) + b"\n", status)


def encoded_json(value: bytes, status: int = 200) -> Response:
    """A response whose body is JSON already."""
    return Response(
        value,
        status,
        {"content-type": "application/json", "cache-control": "no-store"},
    )


def nothing() -> Response:
    """An answer that says no more than that it is done."""
    return Response(status_code=204)


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone, for an answer that takes a while."""
    while (await receive())["type"] != "http.disconnect":
        pass
