"""The connection to NATS that a component's publishes and subscriptions share."""

import asyncio
import base64
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client
from nats.js import JetStreamContext

from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties
from tarry.outlets.dapr.tls import client_context

CONNECTED_WITHIN_S: Final = 5.0
ANSWERED_WITHIN_S: Final = 5.0
RECONNECT_S: Final = 0.2


class NatsLink:
    """Where NATS is, and the connection to it, which comes back by itself once it was there."""

    def __init__(self, properties: Properties) -> None:
        url = properties.needed("natsURL")
        jwt, seed = properties.text("jwt"), properties.text("seedKey")
        if bool(jwt) != bool(seed):
            raise Misconfigured("seedKey" if jwt else "jwt", "is missing")
        self._options: dict[str, Any] = {
            "servers": [one.strip() for one in url.split(",")],
            "name": properties.text("name", "dapr.io - pubsub.jetstream"),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": RECONNECT_S,
            "connect_timeout": int(CONNECTED_WITHIN_S),
        }
        certificates = ("tls_client_cert", "tls_client_key")
        if jwt:
            key = _signing_key(seed)
            self._options["user_jwt_cb"] = jwt.encode
            self._options["signature_cb"] = lambda nonce: base64.b64encode(key.sign(nonce.encode()))
        elif any(properties.text(one) for one in certificates):
            self._options["tls"] = client_context(
                properties, ca="tls_ca_cert", certificate=certificates[0], key=certificates[1]
            )
        elif token := properties.text("token"):
            self._options["token"] = token
        self._domain = properties.text("domain") or None
        self._prefix = properties.text("apiPrefix") or None
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._client is not None and self._client.is_connected

    async def connection(self) -> Client:
        """The connection; connects if it was never there, and raises while it is lost."""
        async with self._connecting:
            if self._closed:
                raise ConnectionError("the component is closed")
            if self._client is None or self._client.is_closed:
                self._client = await self._connect()
            if not self._client.is_connected:
                raise ConnectionError("the connection is lost")
            return self._client

    async def _connect(self) -> Client:
        """Connect once: the library alone would try for ever; here the first failure is raised, and the caller tries again."""
        client = Client()
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        async def on_error(error: BaseException) -> None:
            if not failed.done():
                failed.set_result(error)

        connecting = asyncio.create_task(client.connect(error_cb=on_error, **self._options))
        done, _ = await asyncio.wait(
            (connecting, failed), timeout=CONNECTED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        if connecting in done:
            connecting.result()
            return client
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await client.close()
        if failed.done():
            raise failed.result()
        raise TimeoutError("no answer while connecting")

    def stream(self, client: Client) -> JetStreamContext:
        """JetStream on a connection."""
        options: dict[str, Any] = {"timeout": ANSWERED_WITHIN_S}
        if self._domain:
            options["domain"] = self._domain
        if self._prefix:
            options["prefix"] = self._prefix
        return client.jetstream(**options)

    async def close(self) -> None:
        """Disconnect for good."""
        self._closed = True
        if self._client is not None:
            await self._client.close()


def _signing_key(seed: str) -> Ed25519PrivateKey:
    """A user's nkey seed: two bytes of prefix, the key, and two of a checksum, in base 32."""
    try:
        raw = base64.b32decode(seed.strip() + "=" * (-len(seed.strip()) % 8))
    except ValueError:
        raw = b""
    if len(raw) != 36:
        raise Misconfigured("seedKey", "is not the seed of an nkey")
    return Ed25519PrivateKey.from_private_bytes(raw[2:34])
