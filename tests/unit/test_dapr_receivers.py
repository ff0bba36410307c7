"""The receivers of a subscription: how many are at work at a time, and what becomes of messages whose receiver fails."""

import asyncio

from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.receiving import Receivers
from tests.waiting import until


async def test_no_more_are_at_work_than_there_are_places() -> None:
    at_work: list[bytes] = []
    go_on = asyncio.Event()
    settled: list[Settlement] = []

    async def receive(message: BrokerMessage) -> Settlement:
        at_work.append(message.data)
        await go_on.wait()
        return Settlement.ACK

    async def settle(reply: Settlement) -> None:
        settled.append(reply)

    async def start_all(receivers: Receivers) -> None:
        for number in range(5):
            await receivers.start(BrokerMessage(topic="t", data=b"%d" % number), settle)

    receivers = Receivers(receive, 2)
    starting = asyncio.create_task(start_all(receivers))
    for _ in range(20):
        await asyncio.sleep(0)
    assert at_work == [b"0", b"1"]
    assert len(receivers) == 2
    go_on.set()
    await starting
    await until(lambda: not len(receivers))
    assert at_work == [b"%d" % number for number in range(5)]
    assert settled == [Settlement.ACK] * 5


async def test_what_a_receiver_raises_or_does_not_finish_in_time_means_again() -> None:
    replies: asyncio.Queue[Settlement] = asyncio.Queue()
    never = asyncio.Event()

    async def receive(message: BrokerMessage) -> Settlement:
        if message.data == b"slow":
            await never.wait()
        raise RuntimeError("a bug")

    receivers = Receivers(receive, None, within_ms=20)
    for data in (b"slow", b"wrong"):
        await receivers.start(BrokerMessage(topic="t", data=data), replies.put)
    async with asyncio.timeout(30):
        assert [await replies.get() for _ in range(2)] == [Settlement.NACK] * 2
    await receivers.close()
