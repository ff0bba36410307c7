"""Verdicts on requests, from status, `Retry-After` or failure.

Reasons are short and made here. Nothing that a receiver wrote goes into one, nor any part of the URL
but its host: a path or query may hold secrets, and the text of the client's errors may hold the URL.
"""

import errno
import os
import ssl
from typing import Final

import aiohttp

from tarry.core.messages.delivery import Delivered, Refused, Retry, Verdict
from tarry.outlets.gateways import PASSED_ON
from tarry.outlets.retry_after import retry_after_ms

FAILURES: Final = (aiohttp.ClientError, OSError, UnicodeError, RuntimeError)
"""Errors of the HTTP client and the event loops for faults of a receiver or the network.

`TimeoutError` is an `OSError`; uvloop raises `RuntimeError` for some failed connections.
"""

_RETRIED_4XX: Final = frozenset({408, 425, 429})


def of_status(status: int, retry_after: str | None, host: str, now_ms: int, bound_ms: int) -> Verdict:
    """The verdict on a response. `retry_after` is the header, if there was one."""
    if 200 <= status <= 299:
        return Delivered()
    reason = f"HTTP {status} from {host}"
    if status >= 500 or status in _RETRIED_4XX:
        return Retry(
            reason,
            after_ms=retry_after_ms(retry_after, now_ms, bound_ms),
            uncertain=status in PASSED_ON,
        )
    if 300 <= status <= 399:
        return Refused(f"{reason}: redirects are never followed; schedule to the final URL")
    return Refused(reason)


def of_failure(error: BaseException, host: str) -> Retry:
    """The verdict on a request that got no valid response: it may work another time.

    Unless no connection was made, the receiver may have got it all the same.
    """
    unconnected = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return Retry(f"{_describe(error)} ({host})", uncertain=not unconnected)


def _describe(error: BaseException) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name could not be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the TLS certificate is not valid"
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return "TLS failed"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return "the response is not valid HTTP"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without a response"
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
        return os.strerror(cause.errno).lower()
    return "the connection failed"
