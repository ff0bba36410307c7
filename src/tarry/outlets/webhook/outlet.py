"""Sends a due message as an HTTP POST, once, and gives the verdict.

Invariants: `send` ends within the sum of the queue and total timeouts (and a second for the body of the
response); it raises nothing for what a receiver or the network does; redirects are never followed;
no socket is opened but through `GuardedSockets`; nothing that a receiver sends is kept, or waited for
once its status is known, beyond a small bound. Cookies and proxies are not used, so that nothing is
carried from one owner's delivery to another's and nothing in the environment leads around the guard.

Must not know: how often a message is tried and when. That is the engine's.
"""

import asyncio
import functools
import ssl
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver

from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Delivery, Refused, Retry, Verdict
from tarry.core.time.clock import Clock
from tarry.outlets.webhook.addresses import AddressRules
from tarry.outlets.webhook.event import Unsendable, encode
from tarry.outlets.webhook.resolver import NameResolver
from tarry.outlets.webhook.settings import WebhookSettings
from tarry.outlets.webhook.signing import decode_secret, sign
from tarry.outlets.webhook.slots import HostSlots
from tarry.outlets.webhook.sockets import GuardedSockets
from tarry.outlets.webhook.target import Target, parse
from tarry.outlets.webhook.verdict import FAILURES, of_failure, of_status

MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Read and thrown away, so that the connection can be used again. A longer body closes it."""

_DRAIN_S: Final = 1.0
_READ_BUFFER_BYTES: Final = 16 * 1024
_WRITTEN_AT_ONCE_BYTES: Final = 256 * 1024
_MAX_RESPONSE_LINE_BYTES: Final = 8 * 1024
_MAX_RESPONSE_HEADERS: Final = 64
_KEEPALIVE_S: Final = 4.0
"""Shorter than the five seconds after which common servers close, so that we seldom write into that."""

_LOOPBACKS: Final = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


class WebhookOutlet:
    """The outlet for `http://` and `https://` destinations."""

    def __init__(
        self, settings: WebhookSettings, clock: Clock, resolver: AbstractResolver | None = None
    ) -> None:
        """`resolver` is for tests; without it names are resolved by the operating system."""
        self._settings = settings
        self._clock = clock
        self._rules = AddressRules(settings.allow, settings.deny)
        self._sockets = GuardedSockets(self._rules)
        self._slots = HostSlots(settings.max_connections, settings.max_connections_per_host)
        self._keys = [decode_secret(secret) for secret in settings.secrets]
        self._keys_by_host = {
            host: [decode_secret(secret) for secret in secrets]
            for host, secrets in settings.secrets_by_host.items()
        }
        self._tls = _tls(settings.ca_file)
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def check(self, destination: str) -> None:
        """Raise `Invalid` for a destination that is no URL, or names a forbidden address. Resolves no name."""
        self._check(parse(destination))

    def order_key(self, destination: str, key: str | None) -> str | None:
        """With a key: one after another to the same URL. Without the query, which may hold secrets."""
        if key is None:
            return None
        try:
            target = parse(destination)
        except Invalid:  # was accepted under other rules; `send` refuses it
            return f"{destination}#{key}"
        return f"{target.scheme}://{target.authority}{target.path}#{key}"

    async def send(self, delivery: Delivery) -> Verdict:
        """POST it once. At least once is all that HTTP can give: receivers know repetitions by their id."""
        try:
            target = parse(delivery.destination)
            self._check(target)
        except Invalid as error:
            return Refused(error.reason)
        if self._closed:
            return Retry("the outlet is closed")
        try:
            async with asyncio.timeout(self._settings.queue_timeout_ms / 1000):
                await self._slots.acquire(target.authority)
        except TimeoutError:
            return Retry(f"too many deliveries to {target.host} under way")
        try:
            return await self._post(delivery, target)
        except Unsendable as error:
            return Refused(str(error))
        finally:
            self._slots.release(target.authority)

    async def close(self) -> None:
        """Close all connections; requests under way end as `Retry`. The outlet cannot be used again."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()

    def _check(self, target: Target) -> None:
        if target.address is not None:
            addresses: tuple[IPv4Address | IPv6Address, ...] = (target.address,)
        elif target.host == "localhost" or target.host.endswith(".localhost"):
            addresses = _LOOPBACKS  # by RFC 6761; no need to ask
        else:
            return
        refusals = [self._rules.why_refused(target.host, address) for address in addresses]
        if all(refusals):
            raise Invalid("destination", _address_reason(target.host, refusals[0]))

    async def _post(self, delivery: Delivery, target: Target) -> Verdict:
        now_ms = self._clock.now_ms()
        request = encode(delivery, self._settings, now_ms)
        headers = request.headers | self._signature(delivery.id, target, now_ms, request.body)
        if self._sockets.more_open_than(self._settings.max_connections // 2):
            # Idle connections to ever new hosts must not use up the process's descriptors.
            headers["connection"] = "close"
        # The client writes bytes in one go, and a stream in pieces between which others have their turn.
        data = request.body if len(request.body) <= _WRITTEN_AT_ONCE_BYTES else BytesIO(request.body)
        with self._sockets.attempt(target.host) as attempt:
            try:
                response = await self._open_session().post(
                    target.url, data=data, headers=headers, allow_redirects=False
                )
            except FAILURES as error:
                if attempt.nothing_allowed:
                    return Refused(_address_reason(target.host, attempt.refused))
                return of_failure(error, target.host)
        verdict = of_status(
            response.status,
            response.headers.get("retry-after"),
            target.host,
            self._clock.now_ms(),
            self._settings.max_retry_after_ms,
        )
        await _drain(response)
        return verdict

    def _signature(self, message_id: str, target: Target, now_ms: int, body: bytes) -> dict[str, str]:
        timestamp_s = now_ms // 1000
        headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp_s)}
        keys = self._keys_by_host.get(target.authority)
        if keys is None:
            keys = self._keys_by_host.get(target.host, self._keys)
        if keys:
            headers["webhook-signature"] = sign(keys, message_id, timestamp_s, body)
        return headers

    def _open_session(self) -> aiohttp.ClientSession:
        """The session, made at the first use because it belongs to the running loop."""
        if self._session is None:
            if self._resolver is None:
                self._resolver = NameResolver()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver,
                    socket_factory=self._sockets,
                    ssl=self._tls,
                    limit=0,  # `HostSlots` limits, before the clock of the request runs
                    keepalive_timeout=_KEEPALIVE_S,
                ),
                timeout=aiohttp.ClientTimeout(
                    total=self._settings.total_timeout_ms / 1000,
                    sock_connect=self._settings.connect_timeout_ms / 1000,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                read_bufsize=_READ_BUFFER_BYTES,
                max_line_size=_MAX_RESPONSE_LINE_BYTES,
                max_field_size=_MAX_RESPONSE_LINE_BYTES,
                max_headers=_MAX_RESPONSE_HEADERS,
            )
        return self._session


@functools.cache
def _tls(ca_file: str) -> ssl.SSLContext:
    """The authorities that vouch for receivers. Made once in a process: to read all authorities of a system takes 25 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


def _address_reason(host: str, kind: str | None) -> str:
    return f"{host} is or leads to a {kind} address, which is not allowed here (setting: webhook.allow)"


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the rest of a response and throw it away; the verdict is known and does not depend on it."""
    left = MAX_RESPONSE_BYTES
    try:
        async with asyncio.timeout(_DRAIN_S):
            while chunk := await response.content.readany():
                left -= len(chunk)
                if left < 0:
                    return
        response.release()
    except FAILURES:
        pass
    finally:
        response.close()  # does nothing to a connection that was released
