"""An application that is served over gRPC: Dapr's AppCallback service."""

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

import grpc
from dapr.proto.runtime.v1 import appcallback_pb2
from google.protobuf.empty_pb2 import Empty

from tarry.config.dapr import DaprApp
from tarry.core.time.backoff import doubling
from tarry.doors.dapr.channel import (
    CONNECT_AGAIN_S,
    DELIVERY_TIMEOUT_S,
    LONGEST_WAIT_S,
    AppMessage,
    Status,
    readable,
    trace_fields,
)
from tarry.doors.dapr.cloudevents import NO_PARENT, binary_of_parent, is_parent
from tarry.doors.dapr.subscriptions import AppSubscription, of_callback
from tarry.doors.dapr.topic_events import bulk_event, status_of, topic_event

_log = logging.getLogger(__name__)

_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class GrpcChannel:
    """Implements `Channel`."""

    def __init__(self, app: DaprApp) -> None:
        self._app = app
        self._channel = grpc.aio.insecure_channel(f"{app.app_host}:{app.app_port}", options=OPTIONS)
        self._list = self._method(
            "AppCallback/ListTopicSubscriptions", appcallback_pb2.ListTopicSubscriptionsResponse
        )
        self._event = self._method("AppCallback/OnTopicEvent", appcallback_pb2.TopicEventResponse)
        self._bulk = self._method("AppCallback/OnBulkTopicEvent", appcallback_pb2.TopicEventBulkResponse)
        self._bulk_alpha = self._method(
            "AppCallbackAlpha/OnBulkTopicEventAlpha1", appcallback_pb2.TopicEventBulkResponse
        )
        self._health = self._method("AppCallbackHealthCheck/HealthCheck", Empty)
        self._metadata: tuple[tuple[str, str], ...] = (
            () if app.app_token is None else (("dapr-api-token", app.app_token),)
        )

    def _method(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/dapr.proto.runtime.v1.{name}", lambda request: request.SerializeToString(), answer.FromString
        )

    async def subscriptions(self) -> list[AppSubscription]:
        """Ask `ListTopicSubscriptions`, again and again while the application does not answer."""
        waits = doubling(CONNECT_AGAIN_S, LONGEST_WAIT_S)
        while True:
            try:
                answer = await self._call(self._list, Empty())
                return readable(self._app, of_callback(answer.subscriptions))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return []
                _log.warning(
                    "application %s does not say its subscriptions: %s", self._app.app_id, error.details()
                )
            await asyncio.sleep(next(waits))

    async def actors(self) -> list[str]:
        """None: actors are asked for over HTTP only."""
        return []

    async def is_healthy(self) -> bool:
        """Call `HealthCheck`; an answer is yes."""
        try:
            await self._call(self._health, Empty())
        except grpc.aio.AioRpcError:
            return False
        return True

    async def deliver(self, arrival: AppMessage) -> Status:
        """Call `OnTopicEvent`."""
        try:
            answer = await self._call(self._event, topic_event(arrival), _beside(arrival))
        except grpc.aio.AioRpcError as error:
            return Status.DROP if error.code() is grpc.StatusCode.UNIMPLEMENTED else Status.RETRY
        return status_of(answer.status)

    async def deliver_bulk(self, arrivals: Sequence[AppMessage]) -> dict[str, Status]:
        """Call `OnBulkTopicEvent`, or its older name."""
        request = bulk_event(arrivals)
        try:
            try:
                answer = await self._call(self._bulk, request)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                answer = await self._call(self._bulk_alpha, request)
        except grpc.aio.AioRpcError as error:
            said = Status.DROP if error.code() is grpc.StatusCode.UNIMPLEMENTED else Status.RETRY
            return {one.entry_id: said for one in arrivals}
        return {one.entry_id: status_of(one.status) for one in answer.statuses}

    async def _call(self, method: Any, request: Any, more: tuple[tuple[str, str | bytes], ...] = ()) -> Any:
        return await method(request, timeout=DELIVERY_TIMEOUT_S, metadata=self._metadata + more)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _beside(arrival: AppMessage) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata of a call with an event to a gRPC application: fields that gRPC keeps for itself are left out."""
    fields: list[tuple[str, str | bytes]] = [
        (name, value) for name, value in arrival.beside.items() if _KEY.fullmatch(name)
    ]
    parent = trace_fields(arrival.event).get("traceparent")
    if parent is not None and is_parent(parent) and parent != NO_PARENT:
        fields.append(("grpc-trace-bin", binary_of_parent(parent)))
    return tuple(fields)
