"""The Dapr door over gRPC: publish, bulk publish, streaming subscriptions and attributes, well formed and not.

Calls go by a real client; what such a client never sends (frames and messages that are none) goes over a bare connection.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from dapr.proto.runtime.v1 import metadata_pb2, pubsub_pb2

from tests.fuzz.dapr import PUBSUBS, metadata, payload
from tests.fuzz.http2 import garbage
from tests.fuzz.values import Values

SERVICE: Final = "/dapr.proto.runtime.v1.Dapr/"
METHODS: Final = ("PublishEvent", "BulkPublishEvent", "BulkPublishEventAlpha1", "SetMetadata", "GetMetadata")
STREAM: Final = "SubscribeTopicEventsAlpha1"
WITHIN_S: Final = 20
LISTENS_S: Final = 0.3
CONNECTIONS: Final = 20

Pairs = tuple[tuple[str, str | bytes], ...]


def _check(code: grpc.StatusCode, what: str) -> None:
    """A call may end with any status but with that of a server that failed inside."""
    assert code is not grpc.StatusCode.UNKNOWN, what


def _as_it_is(data: bytes) -> bytes:
    return data


class DaprGrpc:
    """An application, its sidecar's channel, and the port behind it."""

    def __init__(self, channel: grpc.aio.Channel, port: int, values: Values) -> None:
        self._channel = channel
        self._port = port
        self.values = values
        self.accepted: list[str] = []

    async def step(self) -> None:
        """Do one thing."""
        chosen: Callable[[], Awaitable[None]] = self.values.one(
            self._publish, self._publish, self._publish, self._publish_bulk, self._publish_bulk,
            self._attributes, self._malformed, self._stream, self._stream, self._frames, self._frames,
        )  # fmt: skip
        await chosen()

    # Calls

    async def _ask(self, name: str, request: bytes) -> None:
        """One call; whatever its status is, it is not that the server failed inside."""
        values = self.values
        method: Any = self._channel.unary_unary(SERVICE + name, _as_it_is, _as_it_is)
        call = method(
            request,
            timeout=values.one(WITHIN_S, WITHIN_S, WITHIN_S, 0.001),
            metadata=self._beside(),
            compression=values.one(None, None, grpc.Compression.Gzip, grpc.Compression.Deflate),
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            _check(error.code(), f"{name} of {request[:300]!r}")
            return
        said = dict(await call.initial_metadata())
        ids = said.get("tarry-message-id") or said.get("tarry-message-ids") or ""
        self.accepted += [id_ for id_ in str(ids).split(",") if id_]

    def _beside(self) -> Pairs:
        """Metadata of a call, which are its headers: none, odd ones, or too many."""
        values = self.values
        size = values.one(10, 1_000, 20_000, 100_000)
        pairs: Pairs = values.one(
            (), (), (), (("x-a", "v" * size),), tuple((f"x-{n}", "v") for n in range(values.one(5, 90, 500))),
            (("traceparent", values.one("", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x" * 60)),),
            (("grpc-trace-bin", values.data(40)),), (("x-bin", values.data(3_000)),), (("dapr-api-token", "x" * size),),
        )  # fmt: skip
        return pairs

    async def _publish(self) -> None:
        values = self.values
        data, type_ = payload(values)
        request = pubsub_pb2.PublishEventRequest(
            pubsub_name=values.one(*PUBSUBS, ""), topic=values.one(values.name(), values.name(), values.text(300)),
            data=data, data_content_type=type_, metadata=metadata(values),
        )  # fmt: skip
        await self._ask("PublishEvent", request.SerializeToString())

    async def _publish_bulk(self) -> None:
        values = self.values
        entries = []
        for n in range(values.one(0, 1, 30, 2_000)):
            data, type_ = payload(values) if n < 20 else (b"x", "text/plain")
            entry_id = str(n) if values.chance(0.97) else values.text(300)
            own = metadata(values) if n < 200 and values.chance(0.3) else {}
            entries.append(
                pubsub_pb2.BulkPublishRequestEntry(
                    entry_id=entry_id, event=data, content_type=type_, metadata=own
                )
            )
        request = pubsub_pb2.BulkPublishRequest(
            pubsub_name=values.one(*PUBSUBS), topic=values.name(), entries=entries, metadata=metadata(values)
        )
        await self._ask(values.one("BulkPublishEvent", "BulkPublishEventAlpha1"), request.SerializeToString())

    async def _attributes(self) -> None:
        values = self.values
        request = metadata_pb2.SetMetadataRequest(
            key=values.text(values.one(10, 1_000)), value=values.text(values.one(10, 20_000))
        )
        await self._ask("SetMetadata", request.SerializeToString())
        await self._ask("GetMetadata", b"")

    async def _malformed(self) -> None:
        """Bytes that are no such message, or barely one."""
        values = self.values
        data, type_ = payload(values)
        good = pubsub_pb2.PublishEventRequest(
            pubsub_name="pubsub", topic="n0", data=data, data_content_type=type_, metadata=metadata(values)
        ).SerializeToString()
        # A group in a group, and a field in a field: protobuf has a depth too.
        deep = b"\x0b" * values.one(50, 10_000)
        await self._ask(
            values.one(*METHODS, "NoSuchMethod"), values.one(values.mutated(good), values.data(3_000), deep)
        )

    # Streams

    async def _stream(self) -> None:
        """Subscribe, answer what comes with any status, and go, in good order or not."""
        values = self.values
        method: Any = self._channel.stream_stream(SERVICE + STREAM, _as_it_is, _as_it_is)
        call = method(metadata=self._beside())
        try:
            async with asyncio.timeout(values.one(LISTENS_S, 3 * LISTENS_S)):
                await call.write(self._first())
                if values.chance(0.05):
                    await call.write(self._first())
                while (answer := await call.read()) is not grpc.aio.EOF:
                    await call.write(self._processed(answer))
            _check(await call.code(), STREAM)
        except TimeoutError:
            pass
        except grpc.aio.AioRpcError as error:
            _check(error.code(), STREAM)
        except asyncio.InvalidStateError:
            # It had ended before something was written.
            _check(await call.code(), STREAM)
        finally:
            call.cancel()

    def _first(self) -> bytes:
        values = self.values
        first = pubsub_pb2.SubscribeTopicEventsRequestAlpha1(
            initial_request=pubsub_pb2.SubscribeTopicEventsRequestInitialAlpha1(
                pubsub_name=values.one(*PUBSUBS),
                topic=values.one(values.name(), values.name(), values.text(200)),
                dead_letter_topic=values.one("", "", "dead", values.text(200)),
                metadata=values.some(
                    rawPayload=lambda: values.one("true", "x"), other=lambda: values.text(300)
                ),
            )
        ).SerializeToString()
        return values.mutated(first) if values.chance(0.1) else first

    def _processed(self, answer: bytes) -> bytes:
        """The application's word on what came."""
        values = self.values
        event = pubsub_pb2.SubscribeTopicEventsResponseAlpha1.FromString(answer).event_message
        processed = pubsub_pb2.SubscribeTopicEventsRequestProcessedAlpha1(
            id=values.one(event.id, event.id, event.id, values.text(300))
        )
        processed.status.status = values.one(0, 0, 1, 2, 3, -1, (1 << 31) - 1)
        said = pubsub_pb2.SubscribeTopicEventsRequestAlpha1(event_processed=processed).SerializeToString()
        return values.mutated(said) if values.chance(0.05) else said

    # Bare connections

    async def _frames(self) -> None:
        """Say what no client says, on several connections: most end at the first frame that is wrong."""
        await asyncio.gather(*(self._garbage() for _ in range(CONNECTIONS)))

    async def _garbage(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(garbage(self.values, SERVICE + self.values.one(*METHODS, STREAM)))
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(LISTENS_S):
                    await writer.drain()
                    while await reader.read(1 << 16):
                        pass
        finally:
            writer.transport.abort()
