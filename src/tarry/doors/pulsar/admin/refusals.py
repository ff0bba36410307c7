"""Refusals in the words of Pulsar's administration: a status, and `{"reason": …}`."""

from typing import Final

import msgspec

from tarry.core import errors
from tarry.core.errors import TarryError
from tarry.doors.pulsar.errors import PulsarRefusal


class RestError(TarryError):
    """A refusal with the status that Pulsar gives it."""

    code = "rest"

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def no_topic(topic: str) -> RestError:
    """There is no such topic."""
    return RestError(404, f"Topic {topic} not found")


def no_namespace() -> RestError:
    """There is no such namespace."""
    return RestError(404, "Namespace does not exist")


def no_subscription(name: str) -> RestError:
    """There is no such subscription."""
    return RestError(404, f"Subscription {name} not found")


_STATUSES: Final[tuple[tuple[type[TarryError], int], ...]] = (
    (errors.Forbidden, 403),
    # A name or a value that cannot be.
    (errors.Rejected, 412),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.TooManyPending, 429),
    (errors.QuotaExceeded, 429),
    (errors.RateLimited, 429),
    (errors.Unavailable, 503),
    (PulsarRefusal, 409),
)


def refusal_of(error: TarryError) -> tuple[int, bytes]:
    """The status and the body that say an error."""
    if isinstance(error, RestError):
        status = error.status
    else:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    # The place of damage is for the server's log; a caller has no business with its paths.
    reason = "stored data is damaged" if isinstance(error, errors.Damage) else str(error)
    return status, msgspec.json.encode({"reason": reason})
