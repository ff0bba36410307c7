"""Refusals in the words of HTTP: RFC 9457 problem documents.

Every error of `core.errors` has one status here, and the few that only HTTP knows are made here. A
problem never repeats an id, a payload or a token, and has no `instance`, because a path may hold an id.
"""

import logging
import math
from typing import Final

import msgspec
from msgspec import Struct

from tarry.core import errors
from tarry.core.errors import TarryError
from tarry.core.limits import SECOND_MS
from tarry.http.response import HeaderList

PROBLEM_TYPE: Final = b"application/problem+json"
UNAVAILABLE_RETRY_MS: Final = SECOND_MS


_log = logging.getLogger(__name__)


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem document. `code` is stable and for machines, `detail` is for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    """The field, parameter or header that is wrong."""
    limit: int | None = None
    max_delay_ms: int | None = None
    retry_after_ms: int | None = None
    state: str | None = None
    """The state of the message that stands in the way."""


class HttpRefusal(TarryError):
    """A refusal that only HTTP knows: what is wrong with the request rather than with the message."""

    def __init__(
        self, status: int, code: str, detail: str, headers: HeaderList | None = None, close: bool = False
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers or []
        self.close = close
        """Whether the connection ends with the answer."""


def bad_json(reason: str) -> HttpRefusal:
    """The body is not JSON."""
    return HttpRefusal(400, "bad-json", f"the body is not valid JSON in UTF-8: {reason}")


def no_token(reason: str, challenge: bytes = b"Bearer") -> HttpRefusal:
    """No token, or one that is not known."""
    return HttpRefusal(401, "unauthorised", reason, [(b"www-authenticate", challenge)])


def unsupported(expected: str) -> HttpRefusal:
    """The content type is none that is taken here."""
    return HttpRefusal(415, "unsupported-media-type", f"send content-type {expected}")


def timed_out(detail: str = "the body did not arrive in time") -> HttpRefusal:
    """The body did not come in time. The rest of it may still come, so the connection ends."""
    return HttpRefusal(408, "timeout", detail, close=True)


_STATUSES: Final[tuple[tuple[type[TarryError], int, str], ...]] = (
    (errors.Invalid, 400, "A field is wrong"),
    (errors.TooLarge, 413, "Too large"),
    (errors.DelayTooLong, 400, "The delay is too long"),
    (errors.Forbidden, 403, "Not allowed"),
    (errors.Rejected, 400, "Refused"),
    (errors.NotFound, 404, "Not found"),
    (errors.Conflict, 409, "Conflict"),
    (errors.TooManyPending, 429, "Too many pending messages"),
    (errors.QuotaExceeded, 429, "The backlog is over its quota"),
    (errors.RateLimited, 429, "Too many requests"),
    (errors.Unavailable, 503, "Not available now"),
    (errors.Damage, 500, "Stored data is damaged"),
)

_TITLES: Final = {
    "bad-json": "The body is not JSON",
    "unauthorised": "A token is needed",
    "unsupported-media-type": "Unsupported content type",
    "timeout": "Too slow",
    "method-not-allowed": "Method not allowed",
    "no-such-path": "No such path",
    "internal": "Internal error",
}


def problem_of(error: TarryError) -> Problem:
    """The problem document that says what the error says."""
    if isinstance(error, HttpRefusal):
        status, title = error.status, _TITLES.get(error.code, "Refused")
    else:
        status, title = next(
            ((status, title) for kind, status, title in _STATUSES if isinstance(error, kind)),
            (500, "Internal error"),
        )
    detail = str(error)
    if isinstance(error, errors.Damage):
        # The place is for the operator; a caller has no business with the server's paths.
        _log.error("damage met by a request: %s", error)
        detail = "stored bytes are not what was written; the server's log names the place"
    return Problem(
        type=f"urn:tarry:problem:{error.code}",
        title=title,
        status=status,
        code=error.code,
        detail=detail,
        field=getattr(error, "field", None),
        limit=getattr(error, "limit", None),
        max_delay_ms=getattr(error, "max_delay_ms", None),
        retry_after_ms=_retry_after_ms(error),
        state=getattr(error, "state", None) or None,
    )


def headers_of(error: TarryError) -> HeaderList:
    """The headers that go with the problem, its content type among them."""
    headers: HeaderList = [(b"content-type", PROBLEM_TYPE), (b"cache-control", b"no-store")]
    if (wait_ms := _retry_after_ms(error)) is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait_ms / SECOND_MS))))
    if isinstance(error, HttpRefusal):
        headers.extend(error.headers)
    return headers


def encode(problem: Problem) -> bytes:
    """The document as JSON, with a newline for those who see it in a terminal."""
    return msgspec.json.encode(problem) + b"\n"


def internal() -> HttpRefusal:
    """Something that should not have happened; the log has the rest."""
    return HttpRefusal(500, "internal", "the server has met an error of its own; its log has more")


def _retry_after_ms(error: TarryError) -> int | None:
    if isinstance(error, errors.RateLimited):
        return error.retry_after_ms
    return UNAVAILABLE_RETRY_MS if isinstance(error, errors.Unavailable) else None
