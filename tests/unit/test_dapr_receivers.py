"""The receivers of a subscription: how many are at work at a time, and what becomes of messages whose receiver fails."""

import asyncio

from tarry.outlets.dapr.component import Received, Reply
from tarry.outlets.dapr.receiving import Receivers
from tests.waiting import until


async def test_no_more_are_at_work_than_there_are_places() -> None:
    at_work: list[bytes] = []
    go_on = asyncio.Event()
    settled: list[Reply] = []

    async def receive(message: Received) -> Reply:
        at_work.append(message.data)
        await go_on.wait()
        return Reply.ACK

    async def settle(reply: Reply) -> None:
        settled.append(reply)

    async def start_all(receivers: Receivers) -> None:
        for number in range(5):
            await receivers.start(Received(topic="t", data=b"%d" % number), settle)

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
    assert settled == [Reply.ACK] * 5


async def test_what_a_receiver_raises_or_does_not_finish_in_time_means_again() -> None:
    replies: asyncio.Queue[Reply] = asyncio.Queue()
    never = asyncio.Event()

    async def receive(message: Received) -> Reply:
        if message.data == b"slow":
            await never.wait()
        raise RuntimeError("a bug")

    receivers = Receivers(receive, None, within_ms=20)
    for data in (b"slow", b"wrong"):
        await receivers.start(Received(topic="t", data=data), replies.put)
    async with asyncio.timeout(30):
        assert [await replies.get() for _ in range(2)] == [Reply.NACK] * 2
    await receivers.close()
