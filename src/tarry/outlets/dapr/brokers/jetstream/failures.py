"""The meaning of failures of NATS and of its library."""

from typing import Final

import nats.errors
from nats.js.errors import APIError

from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Denied, NeverTaken

FAILURES: Final = (nats.errors.Error, OSError, TimeoutError)

_DENIED: Final = ("authorization", "authentication", "permissions", "user authentication expired")
_NEVER: Final = (nats.errors.MaxPayloadError, nats.errors.BadSubjectError)


def is_denial(error: BaseException) -> bool:
    """Whether the server does not know us, or does not allow it."""
    return any(word in str(error).lower() for word in _DENIED)


def component_error(error: BaseException, *, sent: bool = False) -> ComponentError:
    """The error for a failure; `sent` if a message may have arrived."""
    text = f"JetStream: {error}" if str(error) else f"JetStream: {type(error).__name__}"
    if is_denial(error):
        return Denied(text)
    if isinstance(error, _NEVER):
        return NeverTaken(text)
    # An answer of the server that says no is certain.
    return BrokerUnreachable(text, uncertain=sent and not isinstance(error, APIError))
