"""One call of the native API as a value: what to send, and how to read what comes back.

Pure: it opens no connection. `Client` and `AsyncClient` are two ways to carry a call out, so that what an
operation is stands in one place (`operations.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tarry.core import errors
from tarry.core.errors import TarryError

T = TypeVar("T")

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"


class Unreachable(errors.Unavailable):
    """The server did not answer: it is not there, or the connection broke."""

    code = "unreachable"


class Unauthorized(errors.Forbidden):
    """The server wants a token, or does not know this one."""

    code = "unauthorized"


class ServerAnswer(NamedTuple):
    """An answer of the server."""

    status: int
    headers: Mapping[str, str]
    """Headers of the answer, with names in lower case."""
    body: bytes


class Line(NamedTuple, Generic[T]):
    """A call as one line of a request of many."""

    path: str
    """The path of that request."""
    json: bytes
    read: Callable[[bytes, int], tuple[int, T | TarryError]]
    """Reads a line of the answer, which is the nth: the number of the line that it answers, and the outcome."""
    takes_key: bool = False
    """Whether that request takes an idempotency key, by which it can be sent again."""


class ClientCall(NamedTuple, Generic[T]):
    """A request, and how to read its answer."""

    method: str
    path: str
    read: Callable[[ServerAnswer], T]
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    repeatable: bool = False
    """Whether sending it again cannot do anything twice, so that a broken connection may be tried again."""
    wait_ms: int = 0
    """How long the server may hold the answer back on purpose."""
    line: Line[T] | None = None
    """How this call is written as a line of a batch request, and its answer read; None for calls that go alone."""


def query(path: str, /, **given: object) -> str:
    """A path with those query parameters that are not None."""
    chosen = {name: value for name, value in given.items() if value is not None}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def topic_path(topic: str, *rest: str) -> str:
    """The path of a topic, or of something in it. A short name is one in `public/default`."""
    name = topic.removeprefix("persistent://")
    parts = name.split("/", 2) if "/" in name else ["public", "default", name]
    if len(parts) != 3 or not all(parts):
        raise errors.Invalid(
            "topic", "a topic name is tenant/namespace/topic, or a short name without slashes"
        )
    return "/".join(["/v1/topics", *(quote(part, safe="") for part in (*parts, *rest))])


def as_json(value: object) -> bytes:
    """A request body."""
    return msgspec.json.encode(value)


def reads(kind: type[T]) -> Callable[[ServerAnswer], T]:
    """Reads a JSON answer of one type."""
    decoder = msgspec.json.Decoder(kind)

    def read(answered: ServerAnswer) -> T:
        check(answered)
        try:
            return decoder.decode(answered.body)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the server's answer is not what this client expects: {error}") from None

    return read


def reads_nothing(answered: ServerAnswer) -> None:
    """Reads an answer that has nothing to say but that it was done."""
    check(answered)


def check(answered: ServerAnswer) -> None:
    """Raise the error that an answer tells of."""
    if answered.status >= 400:
        raise error_of(answered)


def error_of(answered: ServerAnswer) -> TarryError:
    """The error that a problem document stands for."""
    try:
        problem = msgspec.json.decode(answered.body, type=dict[str, Any])
    except msgspec.DecodeError:
        problem = {}
    problem.setdefault("status", answered.status)
    if "retry_after_ms" not in problem and answered.headers.get("retry-after", "").isdigit():
        problem["retry_after_ms"] = int(answered.headers["retry-after"]) * 1000
    return problem_error(problem)


def problem_error(problem: Mapping[str, Any]) -> TarryError:
    """The error that the server raised, made again from the members of its problem document."""
    status = problem.get("status", 0)
    code = problem.get("code") or _CODES.get(status, "error")
    # Doors whose protocol has a word of its own for it say `reason`.
    said = problem.get("detail") or problem.get("title") or problem.get("reason")
    detail = str(said or f"the server answered {status}")
    match code:
        case errors.Invalid.code:
            field = str(problem.get("field", ""))
            return errors.Invalid(field, detail.removeprefix(f"{field}: "))
        case errors.TooLarge.code:
            return _worded(
                errors.TooLarge(str(problem.get("field", "")), int(problem.get("limit", 0))), detail
            )
        case errors.DelayTooLong.code:
            return _worded(errors.DelayTooLong(int(problem.get("max_delay_ms", 0))), detail)
        case errors.Conflict.code:
            return errors.Conflict(detail, str(problem.get("state", "")))
        case errors.TooManyPending.code:
            return _worded(errors.TooManyPending(int(problem.get("limit", 0))), detail)
        case errors.QuotaExceeded.code:
            return _worded(errors.QuotaExceeded("", ""), detail)
        case errors.RateLimited.code:
            return _worded(errors.RateLimited(int(problem.get("retry_after_ms", 0))), detail)
        case _ if status == 401:
            return Unauthorized(f"{detail} (set TARRY_TOKEN, or give token=)")
        case _:
            return _PLAIN.get(code, TarryError)(detail)


def _worded(error: TarryError, detail: str) -> TarryError:
    """The server's own words; they may say more than the number does."""
    error.args = (detail,)
    return error


_CODES: Final = {
    400: errors.Rejected.code,
    403: errors.Forbidden.code,
    404: errors.NotFound.code,
    409: errors.Conflict.code,
    412: errors.Rejected.code,
    413: errors.TooLarge.code,
    429: errors.RateLimited.code,
    503: errors.Unavailable.code,
}
_PLAIN: Final[dict[str, type[TarryError]]] = {
    kind.code: kind for kind in (errors.Rejected, errors.Forbidden, errors.NotFound, errors.Unavailable)
}
