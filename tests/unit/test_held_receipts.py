"""Answers of the doors of Dapr and Matrix wait for their record: a real server whose disk does not sync meanwhile."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarry.ledger.disk import RealFile
from tests.unit.dapr_kit import dapr
from tests.unit.matrix_kit import ROOM, MatrixServing, bearer, matrix_serving
from tests.unit.test_dapr_grpc import client
from tests.unit.test_matrix_transactions import BOB, schedule_state, state, tell
from tests.waiting import until

LATER = {"scheduledSendTime": "PT1H"}
DELAYED = "?org.matrix.msc4140.delay=60000"
SEND = f"/_matrix/client/v3/rooms/{ROOM}/send/m.room.message"


class HeldDisk:
    """A disk on which no sync ends until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._free = threading.Event()
        self._free.set()
        sync = RealFile.sync

        def held(file: RealFile) -> None:
            assert self._free.wait(60), "nobody has let the disk go"
            sync(file)

        monkeypatch.setattr(RealFile, "sync", held)

    async def answer(self, asked: Awaitable[Any], engine: Any, question: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a request that comes only once its record is synced.

        The door's answer to a later question shows that it had its time to answer this one.
        """
        ledger = engine.ledger
        await until(lambda: ledger.durable_seq == ledger.next_seq - 1)
        head = ledger.next_seq
        self._free.clear()
        try:
            answering = asyncio.ensure_future(asked)
            await until(lambda: ledger.next_seq > head or answering.done())
            await question()
            assert ledger.next_seq > head, f"it has written no record: {answering.result()}"
            assert not answering.done(), "it was answered before its record was on disk"
        finally:
            self._free.set()
        return await answering


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    return HeldDisk(monkeypatch)


@pytest.mark.parametrize("when", [LATER, {}])
async def test_what_is_published_over_dapr_is_on_disk(
    tmp_path: Path, disk: HeldDisk, when: dict[str, str]
) -> None:
    async with dapr(tmp_path / "data") as doors:

        def question() -> Awaitable[Any]:
            return doors.client.get("/v1.0/metadata")

        answer = await disk.answer(doors.publish("t", {"a": 1}, **when), doors.engine, question)
        assert answer.status_code == 204, answer.text
        bulk = doors.client.post(
            "/v1.0-alpha1/publish/bulk/pubsub/t", params={f"metadata.{name}": value for name, value in when.items()},
            json=[{"entryId": "1", "event": "a", "contentType": "text/plain"}],
        )  # fmt: skip
        answer = await disk.answer(bulk, doors.engine, question)
        assert answer.status_code == 204, answer.text


@pytest.mark.parametrize("when", [LATER, {}])
async def test_what_is_published_over_grpc_is_on_disk(
    tmp_path: Path, disk: HeldDisk, when: dict[str, str]
) -> None:
    async with dapr(tmp_path / "data") as doors, client(doors) as calls:
        await disk.answer(
            calls.publish("t", b"x", "pubsub", "", **when),
            doors.engine,
            lambda: doors.client.get("/v1.0/metadata"),
        )


async def test_what_matrix_is_told_is_on_disk(tmp_path: Path, disk: HeldDisk) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        put = serving.client.put(f"{SEND}/t1{DELAYED}", json={"body": "x"}, headers=bearer("ann-token"))
        answer = await held(disk, serving, put)
        assert answer.status_code == 200, answer.text
        delay_id = answer.json()["delay_id"]
        for action in ("restart", "cancel"):
            answer = await held(disk, serving, serving.act(delay_id, action))
            assert answer.status_code == 200, answer.text
        later = await serving.schedule("t2")
        answer = await held(disk, serving, serving.act(later, "send"))
        assert answer.status_code == 200, answer.text
        assert len(await serving.arrived()) == 1


async def test_a_transaction_of_the_homeserver_is_taken_once_what_it_ends_is_on_disk(
    tmp_path: Path, disk: HeldDisk
) -> None:
    async with matrix_serving(tmp_path / "data", cancel_by_state_update=True) as serving:
        await schedule_state(serving)
        put = tell(serving, "1", state(BOB))
        answer = await held(disk, serving, put)
        assert answer.status_code == 200, answer.text


async def held(disk: HeldDisk, serving: MatrixServing, asked: Awaitable[httpx.Response]) -> httpx.Response:
    answer: httpx.Response = await disk.answer(
        asked, serving.engine, lambda: serving.client.get("/_matrix/client/versions")
    )
    return answer
