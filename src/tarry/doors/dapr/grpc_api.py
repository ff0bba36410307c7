"""Dapr's gRPC API: publish, bulk publish, streaming subscriptions, metadata; the rest is passed on or refused.

One generic handler for the whole service, so that a call that is not served here can go to a real sidecar as bytes,
whatever it is.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from dapr.proto.runtime.v1 import metadata_pb2, pubsub_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.empty_pb2 import Empty
from google.rpc import error_details_pb2, status_pb2

from tarry.core.access import Access, Caller, Role
from tarry.core.errors import Forbidden
from tarry.doors.dapr import errors
from tarry.doors.dapr.cloudevents import Trace, trace_of
from tarry.doors.dapr.errors import DOMAIN, Refusal
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.publishing import Entry, Publishing
from tarry.doors.dapr.streaming import Streams

SERVICE: Final = "/dapr.proto.runtime.v1.Dapr/"
MESSAGE_ID: Final = "tarry-message-id"
MESSAGE_IDS: Final = "tarry-message-ids"
MAX_SHOWN_IDS: Final = 200
DETAILS: Final = "grpc-status-details-bin"

Context = Any
"""A call of gRPC's; the library has no types."""
_EMPTY: Final = Empty()
_log = logging.getLogger(__name__)


class GrpcApi(grpc.GenericRpcHandler):  # type: ignore[misc] # the library has no types
    """The service."""

    def __init__(
        self,
        publishing: Publishing,
        streams: Streams,
        access: Access,
        metadata: Metadata,
        passing: "GrpcPassing | None",
    ) -> None:
        self._publishing = publishing
        self._streams = streams
        self._access = access
        self._metadata = metadata
        bulk = _unary(self._publish_bulk, pubsub_pb2.BulkPublishRequest)
        self._handlers = {
            "PublishEvent": _unary(self._publish, pubsub_pb2.PublishEventRequest),
            "BulkPublishEvent": bulk,
            "BulkPublishEventAlpha1": bulk,
            "GetMetadata": _unary(self._get_metadata, metadata_pb2.GetMetadataRequest),
            "SetMetadata": _unary(self._set_metadata, metadata_pb2.SetMetadataRequest),
            "SubscribeTopicEventsAlpha1": grpc.stream_stream_rpc_method_handler(
                self._subscribe,
                pubsub_pb2.SubscribeTopicEventsRequestAlpha1.FromString,
                pubsub_pb2.SubscribeTopicEventsResponseAlpha1.SerializeToString,
            ),
        }
        self._passing = passing

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None is UNIMPLEMENTED."""
        method: str = handler_call_details.method
        if method.startswith(SERVICE) and (found := self._handlers.get(method.removeprefix(SERVICE))):
            return found
        if self._passing is not None:
            return self._passing.handler(method)
        return None

    def _let_in(self, context: Context, role: Role = "produce") -> tuple[Trace | None, Caller]:
        """The trace context of a call that is let in, and whose it is; raises `Refusal`."""
        given = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        token = given.get("dapr-api-token")
        caller = self._access.known(None if token is None else token.encode())
        if caller is None:
            raise Refusal(errors.TOKEN, "invalid api token")
        try:
            caller.require(role)
        except Forbidden as error:
            raise Refusal(errors.TOKEN, f"invalid api token: {error}") from None
        parent = given.get("traceparent")
        return None if parent is None else trace_of(parent, given.get("tracestate")), caller

    async def _publish(self, request: pubsub_pb2.PublishEventRequest, context: Context) -> Empty:
        trace, caller = self._let_in(context)
        planned = self._publishing.plan(
            request.pubsub_name,
            request.topic,
            request.data,
            request.data_content_type,
            dict(request.metadata),
            trace,
        )
        self._publishing.check_reach(caller, planned)
        id_ = await self._publishing.publish(planned)
        if id_ is not None:
            await _tell(context, (MESSAGE_ID, id_))
        return _EMPTY

    async def _publish_bulk(
        self, request: pubsub_pb2.BulkPublishRequest, context: Context
    ) -> pubsub_pb2.BulkPublishResponse:
        trace, caller = self._let_in(context)
        metadata = dict(request.metadata)
        entries = [
            Entry(one.entry_id, one.event, one.content_type, dict(one.metadata)) for one in request.entries
        ]
        plans = self._publishing.plan_bulk(request.pubsub_name, request.topic, entries, metadata, trace)
        for one in plans[:1]:
            self._publishing.check_reach(caller, one)
        result = await self._publishing.publish_bulk(entries, plans, metadata)
        if 0 < len(result.ids) <= MAX_SHOWN_IDS:
            await _tell(context, (MESSAGE_IDS, ",".join(result.ids)))
        return pubsub_pb2.BulkPublishResponse(
            failedEntries=[
                pubsub_pb2.BulkPublishResponseFailedEntry(entry_id=entry_id, error=reason)
                for entry_id, reason in result.failed.items()
            ]
        )

    async def _get_metadata(
        self, _request: metadata_pb2.GetMetadataRequest, context: Context
    ) -> metadata_pb2.GetMetadataResponse:
        self._let_in(context)
        return metadata_message(self._metadata)

    async def _set_metadata(self, request: metadata_pb2.SetMetadataRequest, context: Context) -> Empty:
        self._let_in(context)
        self._metadata.extended[request.key] = request.value
        return _EMPTY

    async def _subscribe(self, _requests: AsyncIterator[Any], context: Context) -> None:
        try:
            self._let_in(context, "consume")
            await self._streams.serve(context.read, context.write, grpc.aio.EOF)
        except Refusal as refusal:
            await abort(context, refusal)


class GrpcPassing:
    """Passes calls on to a real sidecar, as bytes."""

    def __init__(self, address: str, options: Sequence[tuple[str, int]]) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=list(options))

    def handler(self, method: str) -> Any:
        """A handler for any method: every call is a stream of messages both ways."""
        call = self._channel.stream_stream(method)

        async def pass_on(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            passed = call(requests, metadata=tuple(context.invocation_metadata()))
            try:
                await context.send_initial_metadata(tuple(await passed.initial_metadata()))
                async for answer in passed:
                    yield answer
                context.set_trailing_metadata(tuple(await passed.trailing_metadata()))
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), tuple(error.trailing_metadata() or ()))

        return grpc.stream_stream_rpc_method_handler(pass_on)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _unary(method: Callable[[Any, Context], Awaitable[Any]], request: Any) -> Any:
    """A handler that says in both protocols' words what is refused."""

    async def handle(given: Any, context: Context) -> Any:
        try:
            return await method(given, context)
        except Refusal as refusal:
            await abort(context, refusal)

    return grpc.unary_unary_rpc_method_handler(
        handle, request.FromString, lambda answer: answer.SerializeToString()
    )


async def _tell(context: Context, pair: tuple[str, str]) -> None:
    """Give the caller a name and a value: Dapr's SDK shows what comes first, others what comes last."""
    context.set_trailing_metadata((pair,))
    await context.send_initial_metadata((pair,))


async def abort(context: Context, refusal: Refusal) -> None:
    """End a call with a refusal and its details."""
    code = getattr(grpc.StatusCode, refusal.kind.grpc)
    await context.abort(code, refusal.message, ((DETAILS, status_of(refusal).SerializeToString()),))


def status_of(refusal: Refusal) -> status_pb2.Status:
    """A refusal with its details, as gRPC has them."""
    info = error_details_pb2.ErrorInfo(
        domain=DOMAIN, reason=refusal.kind.reason, metadata=dict(refusal.metadata)
    )
    details = [_packed(info)]
    if refusal.pubsub:
        details.append(
            _packed(
                error_details_pb2.ResourceInfo(
                    resource_type="pubsub", resource_name=refusal.pubsub, description=refusal.message
                )
            )
        )
    number = getattr(grpc.StatusCode, refusal.kind.grpc).value[0]
    return status_pb2.Status(code=number, message=refusal.message, details=details)


def _packed(message: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def metadata_message(metadata: Metadata) -> metadata_pb2.GetMetadataResponse:
    """The metadata as gRPC shows them."""
    shown = metadata.show()
    answer = metadata_pb2.GetMetadataResponse(
        id=shown["id"],
        runtime_version=shown["runtimeVersion"],
        enabled_features=shown["enabledFeatures"],
        extended_metadata=shown["extended"],
        registered_components=[
            metadata_pb2.RegisteredComponents(
                name=one["name"], type=one["type"], version=one["version"], capabilities=one["capabilities"]
            )
            for one in shown["components"]
        ],
        subscriptions=[
            metadata_pb2.PubsubSubscription(
                pubsub_name=one["pubsubname"],
                topic=one["topic"],
                metadata=one["metadata"],
                dead_letter_topic=one["deadLetterTopic"],
                type=getattr(metadata_pb2, one["type"]),
                rules=metadata_pb2.PubsubSubscriptionRules(
                    rules=[metadata_pb2.PubsubSubscriptionRule(**rule) for rule in one["rules"]]
                ),
            )
            for one in shown["subscriptions"]
        ],
    )
    if "appConnectionProperties" in shown:
        given = shown["appConnectionProperties"]
        answer.app_connection_properties.port = given["port"]
        answer.app_connection_properties.protocol = given["protocol"]
        answer.app_connection_properties.channel_address = given["channelAddress"]
        answer.app_connection_properties.max_concurrency = given["maxConcurrency"]
    return answer
