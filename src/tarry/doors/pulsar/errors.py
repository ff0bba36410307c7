"""Tarry's errors in Pulsar's words."""

from typing import Final

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

Code = wire.ServerError


class Refused(TarryError):
    """A refusal that has a code of Pulsar's already."""

    code = "refused"

    def __init__(self, server_error: int, reason: str) -> None:
        super().__init__(reason)
        self.server_error = server_error


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
    if isinstance(error, Refused):
        return error.server_error
    if isinstance(error, QuotaExceeded):
        held = error.action == "producer_request_hold"
        return Code.ProducerBlockedQuotaExceededError if held else Code.ProducerBlockedQuotaExceededException
    if isinstance(error, Conflict) and error.state == "ranges":
        return Code.ConsumerAssignError
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.UnknownError)


def text_of(error: BaseException) -> str:
    """The text for an error; that of a delay which is too long is known to clients to the letter (PIP-315)."""
    if isinstance(error, DelayTooLong):
        return f"Exceeds max allowed delivery delay of {error.max_delay_ms} milliseconds"
    return str(error) or type(error).__name__
