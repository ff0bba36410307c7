"""Dapr's gRPC API: publish, bulk publish, streaming subscriptions, metadata; the rest is passed on or refused.

A call that is not served here goes to a real sidecar as bytes, whatever it is. A scheduled publish costs no task: it is
answered when the ledger has it.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
from dapr.proto.runtime.v1 import metadata_pb2, pubsub_pb2
from google.protobuf import duration_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from tarry.core.errors import Forbidden, Unavailable
from tarry.core.telemetry.faults import told
from tarry.core.tenants.access import Access, Caller
from tarry.core.tenants.rights import DAPR_GRPC, PASSED_ON, right_of
from tarry.core.tenants.shares import Shares
from tarry.doors.dapr import errors
from tarry.doors.dapr.cloudevents import Trace, parent_in_binary, trace_of
from tarry.doors.dapr.errors import DOMAIN, Refusal, spend
from tarry.doors.dapr.metadata import Metadata
from tarry.doors.dapr.planning import BulkItem, check_entries
from tarry.doors.dapr.publishing import Publishing
from tarry.doors.dapr.streaming import Streams
from tarry.engine.answer import Answer
from tarry.grpc.call import INTERNAL, Call, Streaming, Unary

SERVICE: Final = "/dapr.proto.runtime.v1.Dapr/"
MESSAGE_ID: Final = "tarry-message-id"
MESSAGE_IDS: Final = "tarry-message-ids"
MAX_SHOWN_IDS: Final = 200
DETAILS: Final = "grpc-status-details-bin"
TRACE_BINARY: Final = "grpc-trace-bin"

_SubscribeRequest: Final[Any] = pubsub_pb2.SubscribeTopicEventsRequestAlpha1
_log = logging.getLogger(__name__)


class GrpcApi:
    """The service."""

    def __init__(
        self,
        publishing: Publishing,
        streams: Streams,
        access: Access,
        metadata: Metadata,
        passing: "GrpcPassing | None",
        max_calls: int,
    ) -> None:
        self._places = Shares(max_calls, "calls", access)
        self._publishing = publishing
        self._streams = streams
        self._access = access
        self._metadata = metadata
        self._passing = passing
        self._unary: dict[str, Unary] = {
            SERVICE + name: partial(_refusing, serve)
            for name, serve in (
                ("PublishEvent", self._publish),
                ("BulkPublishEvent", self._publish_bulk),
                ("BulkPublishEventAlpha1", self._publish_bulk),
                ("GetMetadata", self._get_metadata),
                ("SetMetadata", self._set_metadata),
            )
        }

    @property
    def calls(self) -> int:
        """Number of calls under way."""
        return self._places.taken

    def admit(self, call: Call) -> None:
        """Refuse a call whose token is not known, over its rate or over its share, whatever it asks for."""
        token = None if self._access.is_open else _token(call)
        call.caller = self._access.known(token)
        with _refusals(call):
            if call.caller is None:
                raise Refusal(errors.TOKEN, "invalid api token")
            spend(call.caller)
            try:
                self._places.take(call.caller)
            except Unavailable as full:
                raise Refusal(errors.TOO_MANY_AT_ONCE, str(full)) from None
            call.when_over(partial(self._places.give_back, call.caller))

    def unary(self, path: str) -> Unary | None:
        """The function that serves a method with one message each way."""
        return self._unary.get(path)

    def streaming(self, path: str) -> Streaming | None:
        """The function that serves any other method; None is UNIMPLEMENTED."""
        if path == SERVICE + "SubscribeTopicEventsAlpha1":
            return self._subscribe
        return None if self._passing is None else partial(self._pass_on, self._passing, path)

    def _let_in(self, call: Call, operation: str) -> tuple[Trace | None, Caller]:
        """The trace context of a call that may use this operation, and its sender; raises `Refusal`."""
        given = dict(call.metadata)
        caller = call.caller
        assert caller is not None, "a call is admitted before it is served"
        try:
            right_of(DAPR_GRPC, operation).check(caller)
        except Forbidden as error:
            raise Refusal(errors.TOKEN, f"invalid api token: {error}") from None
        return _trace(given), caller

    def _publish(self, call: Call, message: bytes) -> None:
        trace, caller = self._let_in(call, "PublishEvent")
        request = pubsub_pb2.PublishEventRequest.FromString(message)
        planned = self._publishing.plan(
            request.pubsub_name,
            request.topic,
            request.data,
            request.data_content_type,
            dict(request.metadata),
            trace,
            traced_raw=True,
        )
        planned.mounted.require_reach(caller, planned.topic)
        outcome = self._publishing.publish(planned)
        if isinstance(outcome, Answer):
            outcome.then(partial(_tell_scheduled, call))
        else:
            call.run(partial(self._publish_at_broker, call, outcome))

    async def _publish_at_broker(self, call: Call, published: Awaitable[None]) -> None:
        with _refusals(call):
            await published
            call.answer(b"")

    def _publish_bulk(self, call: Call, message: bytes) -> None:
        trace, caller = self._let_in(call, "BulkPublishEvent")
        request = pubsub_pb2.BulkPublishRequest.FromString(message)
        check_entries(len(request.entries), request.pubsub_name)
        call.run(partial(self._publish_all, call, caller, trace, request))

    async def _publish_all(self, call: Call, caller: Caller, trace: Trace | None, request: Any) -> None:
        metadata = dict(request.metadata)
        entries = [
            # Mostly an entry has none of its own, and making a mapping of nothing costs as much as all the rest.
            BulkItem(one.entry_id, one.event, one.content_type, dict(own) if (own := one.metadata) else {})
            for one in request.entries
        ]
        with _refusals(call):
            plans = await self._publishing.plan_bulk(
                request.pubsub_name, request.topic, entries, metadata, trace
            )
            for one in plans[:1]:
                one.mounted.require_reach(caller, one.topic)
            # They go together: what they are over the rate by, later operations wait for.
            caller.standing.charge(len(entries))
            result = await self._publishing.publish_bulk(entries, plans, metadata)
            answer = pubsub_pb2.BulkPublishResponse(
                failedEntries=[
                    pubsub_pb2.BulkPublishResponseFailedEntry(entry_id=entry_id, error=reason)
                    for entry_id, reason in result.failed.items()
                ]
            )
            shown = 0 < len(result.ids) <= MAX_SHOWN_IDS
            call.answer(answer.SerializeToString(), ((MESSAGE_IDS, ",".join(result.ids)),) if shown else ())

    def _get_metadata(self, call: Call, _: bytes) -> None:
        self._let_in(call, "GetMetadata")
        call.answer(metadata_message(self._metadata).SerializeToString())

    def _set_metadata(self, call: Call, message: bytes) -> None:
        self._let_in(call, "SetMetadata")
        request = metadata_pb2.SetMetadataRequest.FromString(message)
        self._metadata.extend(request.key, request.value)
        call.answer(b"")

    async def _subscribe(self, call: Call) -> None:
        async def read() -> Any:
            message = await call.read()
            return None if message is None else _SubscribeRequest.FromString(message)

        async def write(answer: Any) -> None:
            await call.write(answer.SerializeToString())

        with _refusals(call):
            _, caller = self._let_in(call, "SubscribeTopicEventsAlpha1")
            await self._streams.serve(caller, read, write)

    async def _pass_on(self, passing: "GrpcPassing", path: str, call: Call) -> None:
        with _refusals(call):
            self._let_in(call, PASSED_ON)
            await passing.pass_on(path, call)


class GrpcPassing:
    """Passes calls on to a real sidecar, as bytes."""

    def __init__(self, address: str, options: Sequence[tuple[str, int]]) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=list(options))

    async def pass_on(self, path: str, call: Call) -> None:
        """Serve any method: every call is a stream of messages both ways."""

        async def requests() -> AsyncIterator[bytes]:
            while (message := await call.read()) is not None:
                yield message

        passed = self._channel.stream_stream(path)(requests(), metadata=call.metadata)
        try:
            call.begin(tuple(await passed.initial_metadata()))
            async for answer in passed:
                await call.write(answer)
            call.end(tuple(await passed.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            call.fail(error.code().value[0], error.details() or "", tuple(error.trailing_metadata() or ()))

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _token(call: Call) -> bytes | None:
    """The token that a call shows."""
    for name, value in call.metadata:
        if name == "dapr-api-token" and isinstance(value, str):
            return value.encode()
    return None


def _trace(given: Mapping[str, str | bytes]) -> Trace | None:
    """The trace context among a call's metadata: binary, as gRPC has it, or as HTTP has it."""
    binary, parent, state = (given.get(name) for name in (TRACE_BINARY, "traceparent", "tracestate"))
    if isinstance(binary, bytes):
        parent = parent_in_binary(binary) or parent
    if not isinstance(parent, str):
        return None
    return trace_of(parent, state if isinstance(state, str) else None)


def _refusing(serve: Unary, call: Call, message: bytes) -> None:
    try:
        serve(call, message)
    except Refusal as refusal:
        refuse(call, refusal)


@contextlib.contextmanager
def _refusals(call: Call) -> Iterator[None]:
    """Make a refusal inside the block the outcome of the call."""
    try:
        yield
    except Refusal as refusal:
        refuse(call, refusal)


def _tell_scheduled(call: Call, answer: Answer[str]) -> None:
    """Dapr's SDK shows the metadata that come first, others those that come last: the id is in both."""
    error = answer.error()
    if error is None:
        call.answer(b"", ((MESSAGE_ID, answer.value()),))
    elif isinstance(error, Refusal):
        refuse(call, error)
    else:
        _log.error("a publish failed with %s", told(error))
        call.fail(INTERNAL, "the server failed; its log says why")


def refuse(call: Call, refusal: Refusal) -> None:
    """End a call with a refusal and its details."""
    status = status_of(refusal)
    call.fail(status.code, refusal.message, ((DETAILS, status.SerializeToString()),))


def status_of(refusal: Refusal) -> status_pb2.Status:
    """A refusal with its details, as gRPC has them."""
    info = error_details_pb2.ErrorInfo(
        domain=DOMAIN, reason=refusal.kind.reason, metadata=dict(refusal.metadata)
    )
    details = [_packed(info)]
    if refusal.resource is not None:
        details.append(
            _packed(
                error_details_pb2.ResourceInfo(
                    resource_type="pubsub", resource_name=refusal.resource, description=refusal.message
                )
            )
        )
    if refusal.retry_after_ms is not None:
        wait = duration_pb2.Duration()
        wait.FromMilliseconds(refusal.retry_after_ms)
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=wait)))
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
                metadata=one.get("metadata"),
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
        if "health" in given:
            health = given["health"]
            answer.app_connection_properties.health.CopyFrom(
                metadata_pb2.AppConnectionHealthProperties(
                    health_check_path=health.get("healthCheckPath", ""),
                    health_probe_interval=health["healthProbeInterval"],
                    health_probe_timeout=health["healthProbeTimeout"],
                    health_threshold=health["healthThreshold"],
                )
            )
    return answer
