"""The meaning of failures of Redis and of its library."""

from typing import Final

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Denied, NeverTaken

FAILURES: Final = (RedisError, RedisClusterException, OSError, TimeoutError)


def component_error(error: BaseException, *, sent: bool = False) -> ComponentError:
    """The error for a failure; `sent` if the command may have arrived."""
    text = str(error) or type(error).__name__
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError) or text.startswith(
        ("NOAUTH", "WRONGPASS", "NOPERM")
    ):
        return Denied(f"Redis: {text}")
    if isinstance(error, ResponseError):
        if text.startswith("WRONGTYPE"):
            return NeverTaken(f"Redis: the key of this topic is no stream: {text}")
        return BrokerUnreachable(f"Redis: {text}")
    # What failed while connecting was never sent.
    return BrokerUnreachable(f"Redis: {text}", uncertain=sent and "connecting to" not in text)
