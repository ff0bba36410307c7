"""Which server a client speaks to, and what every request to it has in common. Reads the configuration, and does no other I/O."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tarry.client.call import ClientCall, Unreachable
from tarry.client.http1 import header_lines
from tarry.client.retries import waits
from tarry.core.errors import Invalid


class ServerAddress:
    """An address, a token, and how long to wait."""

    def __init__(self, url: str | None, token: str | None, timeout_s: float, retry_for_s: float) -> None:
        configured = None
        if not url:
            # Late: a program that names its server has no need of the configuration.
            from tarry.config.server import configured_server

            configured = configured_server()
            url = configured.url
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise Invalid("url", f"{self.url} is not like http://127.0.0.1:8080")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self.secure else 80)
        self.prefix = parts.path
        self.timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self.tls = configured.tls if configured else None
        """TLS as configured; a client's own goes before it."""
        common = {"host": parts.netloc.rpartition("@")[2], "user-agent": "tarry-python"}
        self.token = token or (configured.token if configured else os.environ.get("TARRY_TOKEN")) or None
        if self.token is not None:
            common["authorization"] = f"Bearer {self.token}"
        self._common = header_lines(common)

    def header_lines(self, call: ClientCall[Any]) -> bytes:
        """The headers of a request as they are sent, but for the length of its body."""
        lines = self._common
        if call.body:
            lines += b"content-type: %b\r\n" % call.content_type.encode()
        return lines + header_lines(call.headers) if call.headers else lines

    @property
    def repeats(self) -> bool:
        """Whether a call is sent again after a broken connection."""
        return self._retry_for_s > 0

    def waits(self) -> Iterator[float]:
        """How long to wait before each further attempt."""
        return waits(self._retry_for_s)

    def unreachable(self, cause: Exception) -> Unreachable:
        """The error for a connection that broke."""
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return Unreachable(f"no answer from {self.url}: {reason}; is the server running? (tarry up)")
