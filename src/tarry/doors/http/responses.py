"""The plain ways to answer."""

from typing import Any, Final

import msgspec

from tarry.core.errors import TarryError
from tarry.doors.http.problems import HttpRefusal, encode, headers_of, problem_of
from tarry.http.response import Response

_encode: Final = msgspec.json.Encoder().encode
_JSON_HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


def json_response(value: Any, status: int = 200) -> Response:
    """An answer in JSON. It is not to be kept by anything on its way: it may hold an id or a payload."""
    return encoded_json(_encode(value) + b"\n", status)


def encoded_json(value: bytes, status: int = 200) -> Response:
    """A response whose body is JSON already."""
    return Response(status, _JSON_HEADERS, value)


def nothing() -> Response:
    """An answer that says no more than that it is done."""
    return Response(204)


def refusal(error: TarryError) -> Response:
    """The problem document of an error."""
    problem = problem_of(error)
    close = isinstance(error, HttpRefusal) and error.close
    return Response(problem.status, headers_of(error), encode(problem), close=close)
