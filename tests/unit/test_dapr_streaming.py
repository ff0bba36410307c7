"""A streaming subscription without its wire: what waits before its beginning and after its end, and gRPC's trace context."""

import asyncio
import base64
from pathlib import Path
from typing import Any

from dapr.proto.runtime.v1 import pubsub_pb2

from tarry.core.tenants.access import Caller
from tarry.doors.dapr.channel import AppMessage, Status
from tarry.doors.dapr.receiving import Deliver
from tarry.doors.dapr.streaming import Streams
from tarry.doors.dapr.subscriptions import AppSubscription
from tests.unit.dapr_kit import app, dapr, to
from tests.unit.http2_kit import CALL, Client

ANYBODY = Caller("anybody", frozenset(("consume",)), None)
FIRST = pubsub_pb2.SubscribeTopicEventsRequestAlpha1(
    initial_request=pubsub_pb2.SubscribeTopicEventsRequestInitialAlpha1(pubsub_name="pubsub", topic="t")
)


class Opened:
    """Stands for the component: a message is there as soon as the subscription is, and another after its end."""

    def __init__(self) -> None:
        self.deliveries: list[asyncio.Task[Status]] = []
        self.open = False
        self.may_close = asyncio.Event()
        self._deliver: Deliver | None = None

    async def open_stream(self, caller: Caller, subscription: AppSubscription, deliver: Deliver) -> "Opened":
        assert subscription.topic == "t"
        self.open = True
        self._deliver = deliver
        await self.bring("early")
        return self

    async def bring(self, id_: str) -> None:
        """A message comes, and the loop turns often enough for it to be written."""
        assert self._deliver is not None
        arrival = AppMessage({"id": id_}, b"{}", "pubsub", "t", "/", id_, {}, b"", None, False)
        delivery: Any = self._deliver(arrival)
        self.deliveries.append(asyncio.create_task(delivery))
        for _ in range(10):
            await asyncio.sleep(0)

    def end_stream(self, subscription: AppSubscription) -> None:
        self.open = False

    async def close(self) -> None:
        await self.may_close.wait()
        for delivery in self.deliveries:
            delivery.cancel()
        await asyncio.gather(*self.deliveries, return_exceptions=True)


async def test_messages_wait_before_the_beginning_of_a_stream_and_after_its_end() -> None:
    opened, written = Opened(), []
    streams = Streams(opened)
    frames = [FIRST]

    async def read() -> Any:
        if frames:
            return frames.pop()
        # The application has nothing more to say: it ends when the message is there.
        for _ in range(10):
            await asyncio.sleep(0)
        return None

    async def write(answer: pubsub_pb2.SubscribeTopicEventsResponseAlpha1) -> None:
        written.append(answer.event_message.id or "begun")

    await streams.serve(ANYBODY, read, write)
    assert not opened.open
    await opened.bring("late")
    assert written == ["begun", "early"]
    opened.may_close.set()
    await streams.close()
    assert all(delivery.cancelled() for delivery in opened.deliveries), "given back, and not refused"


async def test_a_trace_context_comes_in_the_binary_form_of_grpc(tmp_path: Path) -> None:
    """The Python library cannot send it: here it is done by hand."""
    binary = bytes.fromhex("00000af7651916cd43dd8448eb211c80319c01b7ad6b71692033310201")
    fields = [pair for pair in CALL if pair[0] != b":path"]
    request = pubsub_pb2.PublishEventRequest(
        pubsub_name="pubsub", topic="t", data=b"x", metadata={"scheduledSendTime": "1ms"}
    )
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        calls = Client(doors.door.sidecars["app"].grpc_api).begin()
        calls.call(
            1,
            request.SerializeToString(),
            (
                (b":path", b"/dapr.proto.runtime.v1.Dapr/PublishEvent"),
                *fields,
                (b"grpc-trace-bin", base64.b64encode(binary)),
            ),
        )
        await shop.count(1)
        assert shop.got[0][1]["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
