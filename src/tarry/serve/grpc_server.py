"""A listening gRPC server inside the server's own loop."""

from pathlib import Path
from typing import Any, Final

import grpc

from tarry.config.dapr import DaprApp
from tarry.serve.listener import ListenError, advice
from tarry.serve.room import Part

STREAMS: Final = 16_384
"""Calls under way at once on one connection."""
FRAME_BYTES: Final = 64 * 1024
"""What a request may have beside its body."""


class GrpcServer:
    """`bind`, `start`, and at the end `stop`."""

    def __init__(self, app: DaprApp, part: Part) -> None:
        self._app = app
        self._part = part
        self._server: Any = None

    def bind(self) -> int:
        """Take the address; gives the port."""
        app = self._app
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", app.max_body_bytes + FRAME_BYTES),
                ("grpc.max_allowed_incoming_connections", self._part.limit),
                ("grpc.max_concurrent_streams", STREAMS),
                ("grpc.max_connection_idle_ms", app.idle_timeout_ms),
            ]
        )
        address = f"{app.host}:{app.grpc_port}"
        try:
            if app.tls_cert is None or app.tls_key is None:
                return int(self._server.add_insecure_port(address))
            pair = (Path(app.tls_key).read_bytes(), Path(app.tls_cert).read_bytes())
            return int(self._server.add_secure_port(address, grpc.ssl_server_credentials([pair])))
        except (RuntimeError, OSError) as error:
            variable = advice(self._part.name).replace("__PORT", "__GRPC_PORT")
            raise ListenError(
                f"cannot listen on {address}: {error}; stop what uses it, or set {self._part.name}.grpc_port ({variable})"
            ) from None

    async def start(self, handler: Any) -> None:
        """Begin to accept."""
        self._server.add_generic_rpc_handlers((handler,))
        await self._server.start()

    async def stop(self) -> None:
        """Accept no more, and let the calls under way end within `drain_ms`."""
        if self._server is not None:
            await self._server.stop(self._app.drain_ms / 1000)
