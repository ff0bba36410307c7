"""The connection to RabbitMQ that a component's channels share; made again when it was lost."""

import asyncio
import ssl
from typing import Final

import aio_pika
from aio_pika.abc import AbstractConnection
from yarl import URL

from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties
from tarry.outlets.dapr.tls import client_context

CONNECTED_WITHIN_S: Final = 10.0


class RabbitLink:
    """Where RabbitMQ is, and the connection to it."""

    def __init__(self, properties: Properties, name: str) -> None:
        self._url = _url(properties)
        self._tls: ssl.SSLContext | None = None
        if self._url.scheme == "amqps":
            self._tls = client_context(properties)
        if properties.flag("saslExternal"):
            for field in ("caCert", "clientCert", "clientKey"):
                properties.needed(field, "is needed where saslExternal is true")
            self._url = self._url.update_query(auth="external")
        heartbeat_s = max(1, properties.duration_ms("heartBeat", 10_000, bare_ms=1000) // 1000)
        self._url = self._url.update_query(heartbeat=str(heartbeat_s))
        self._name = properties.text("clientName", name)
        self._connection: AbstractConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def connection(self) -> AbstractConnection:
        """The connection; connects where there is none."""
        async with self._connecting:
            if self._closed:
                raise ConnectionError("the component is closed")
            if self._connection is not None and not self._connection.connected.is_set():
                lost, self._connection = self._connection, None
                await lost.close()
            if self._connection is None:
                self._connection = await aio_pika.connect(
                    self._url,
                    ssl_context=self._tls,
                    timeout=CONNECTED_WITHIN_S,
                    client_properties={"connection_name": self._name},
                )
            return self._connection

    async def close(self) -> None:
        """Disconnect for good."""
        self._closed = True
        async with self._connecting:
            if self._connection is not None and not self._connection.is_closed:
                await self._connection.close()


def _url(properties: Properties) -> URL:
    given = properties.text("connectionString") or properties.text("host")
    protocol = properties.text("protocol")
    if protocol not in ("", "amqp", "amqps"):
        raise Misconfigured("protocol", f"{protocol!r} is neither amqp nor amqps")
    if given:
        try:
            url = URL(given)
        except ValueError:
            url = URL("")
        if url.scheme not in ("amqp", "amqps") or not url.host:
            raise Misconfigured("connectionString", "is not written amqp://user:password@host:port/vhost")
        if protocol and protocol != url.scheme:
            raise Misconfigured("protocol", f"{protocol!r} is not that of connectionString")
        return url
    host, colon, port = properties.text("hostname", "localhost").partition(":")
    if colon and not (port.isascii() and port.isdigit()):
        raise Misconfigured("hostname", "is not written host or host:port")
    return URL.build(
        scheme=protocol or "amqp",
        host=host,
        port=int(port) if colon else None,
        user=properties.text("username") or None,
        password=properties.text("password") or None,
    )
