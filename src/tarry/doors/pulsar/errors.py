"""Tarry's errors in Pulsar's words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tarry.core.errors import (
    Conflict,
    Damage,
    DelayTooLong,
    Forbidden,
    NotFound,
    QuotaExceeded,
    RateLimited,
    Rejected,
    TarryError,
    TooManyPending,
    Unavailable,
)
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.engine.api import FULL

Code = wire.ServerError


class PulsarRefusal(TarryError):
    """A refusal that has a code of Pulsar's already."""

    code = "refused"

    def __init__(self, server_error: int, reason: str) -> None:
        super().__init__(reason)
        self.server_error = server_error


@contextmanager
def told_as(server_error: int) -> Iterator[None]:
    """Refuse what there is no place for with this code: Pulsar has one for each thing that is bounded."""
    try:
        yield
    except Unavailable as full:
        raise PulsarRefusal(server_error, str(full)) from None


_CODES: Final[tuple[tuple[type[TarryError], int], ...]] = (
    (Forbidden, Code.AuthorizationError),
    # A name that cannot be is no reason to try again, as clients do with InvalidTopicName.
    (Rejected, Code.NotAllowedError),
    (NotFound, Code.TopicNotFound),
    (Conflict, Code.ConsumerBusy),
    (TooManyPending, Code.TooManyRequests),
    (RateLimited, Code.TooManyRequests),
    (Unavailable, Code.ServiceNotReady),
    (Damage, Code.PersistenceError),
)


def code_of(error: BaseException) -> int:
    """The code for an error."""
    if isinstance(error, PulsarRefusal):
        return error.server_error
    if isinstance(error, QuotaExceeded):
        held = error.action == "producer_request_hold"
        return Code.ProducerBlockedQuotaExceededError if held else Code.ProducerBlockedQuotaExceededException
    if isinstance(error, Conflict) and error.state == "ranges":
        return Code.ConsumerAssignError
    if isinstance(error, Conflict) and error.state == FULL:
        return Code.NotAllowedError
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.UnknownError)


def text_of(error: BaseException) -> str:
    """The text for an error; that of a delay which is too long is known to clients to the letter (PIP-315)."""
    if isinstance(error, DelayTooLong):
        return f"Exceeds max allowed delivery delay of {error.max_delay_ms} milliseconds"
    return str(error) or type(error).__name__


def say(answer: Any, error: BaseException) -> None:
    """Make a command the answer that says no, where it has the fields `error` and `message`."""
    answer.error, answer.message = code_of(error), text_of(error)


def say_code(answer: Any, error: BaseException) -> None:
    """Write an error into an answer whose fields are called `error_code` and `error_message`."""
    answer.error_code, answer.error_message = code_of(error), text_of(error)
