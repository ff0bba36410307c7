"""Verdicts on attempts to send an event, from the homeserver's answer.

A Matrix error is kept as it was said, with its status, so that the door can repeat it. Reasons for people are made
here and hold nothing that the homeserver or a user wrote but the error code.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from tarry.core.limits import HOUR_MS, SECOND_MS
from tarry.core.messages.delivery import Delivered, Refused, Retry, Verdict
from tarry.core.time.backoff import after_attempts
from tarry.core.unreadable import UNREADABLE
from tarry.outlets.gateways import PASSED_ON
from tarry.outlets.matrix.lines import LineAnswer
from tarry.outlets.retry_after import retry_after_ms

MAX_ERROR_BYTES: Final = 4096
"""A longer error is kept by its code alone."""
FIRST_WAIT_MS: Final = SECOND_MS // 4
LONGEST_WAIT_MS: Final = 30 * SECOND_MS
"""Between two attempts at a homeserver that is down: it should not take long to be noticed that it is back."""
MAX_RETRY_AFTER_MS: Final = HOUR_MS

AWAY: Final = frozenset({401, 408, 502, 503, 504})
"""Statuses that say nothing of this event: the homeserver, or the way to it, is not in order. (401: its token for us.)"""


class KeptError(Struct, frozen=True):
    """A Matrix error as it was answered."""

    status: int
    body: dict[str, Any]


class _Sent(Struct):
    event_id: str | None = None


_sent = msgspec.json.Decoder(_Sent)
_object = msgspec.json.Decoder(dict[str, Any])


def of_answer(answer: LineAnswer, attempt: int, now_ms: int) -> Verdict:
    """The verdict on an answer. Where the same was asked before in vain, a failure does not say that nothing was done."""
    uncertain = answer.asked_before or answer.status in PASSED_ON
    if 200 <= answer.status <= 299:
        return Delivered(_event_id(answer.body))
    error = matrix_error(answer)
    reason = f"HTTP {answer.status} {error.body['errcode']} from the homeserver"
    if answer.status == 429:
        wish_ms = _wish_ms(error, answer, now_ms)
        told = error if wish_ms is None else KeptError(429, {**error.body, "retry_after_ms": wish_ms})
        after_ms = wait_ms(attempt) if wish_ms is None else wish_ms
        return Retry(reason, after_ms=after_ms, error=_text(told), counted=False, uncertain=uncertain)
    if answer.status in AWAY:
        return Retry(reason, after_ms=wait_ms(attempt), counted=False, uncertain=uncertain)
    if answer.status >= 500:
        # Perhaps it fails for this event only: it must not hold up its room for ever.
        return Retry(reason, after_ms=wait_ms(attempt), uncertain=True)
    return Refused(reason, error=_text(error))


def of_failure(connected: bool, attempt: int) -> Retry:
    """The verdict on a request that got no answer."""
    return Retry(
        "the homeserver cannot be reached" if not connected else "the homeserver gave no answer",
        after_ms=wait_ms(attempt),
        uncertain=connected,
        counted=False,
    )


def wait_ms(attempt: int) -> int:
    """How long to the next attempt: twice as long each time, up to a bound."""
    return after_attempts(attempt, FIRST_WAIT_MS, LONGEST_WAIT_MS)


def matrix_error(answer: LineAnswer) -> KeptError:
    """The error in an answer; one that is none in the words of Matrix gets them."""
    try:
        body = _object.decode(answer.body)
    except UNREADABLE:
        body = {}
    code = body.get("errcode")
    if not isinstance(code, str) or not code:
        code, body = "M_UNKNOWN", {"error": f"The homeserver answered with HTTP {answer.status}"}
    if len(answer.body) > MAX_ERROR_BYTES:
        body = {"error": "The homeserver's error was too long to be kept"}
    return KeptError(answer.status, {**body, "errcode": code[:255]})


def _text(error: KeptError) -> str:
    return msgspec.json.encode(error).decode()


def _event_id(body: bytes) -> str | None:
    try:
        return _sent.decode(body).event_id
    except UNREADABLE:
        return None


def _wish_ms(error: KeptError, answer: LineAnswer, now_ms: int) -> int | None:
    """How long a homeserver wants us to wait: by its body, which is the finer one, or by its header."""
    wish = error.body.get("retry_after_ms")
    if isinstance(wish, int) and wish > 0:
        return min(wish, MAX_RETRY_AFTER_MS)
    return retry_after_ms(answer.retry_after, now_ms, MAX_RETRY_AFTER_MS)
