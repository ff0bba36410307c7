"""Transactions of the homeserver to the application service, and Tarry's use of them."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarry.engine.journal.journal import Journal
from tests.unit.matrix_kit import (
    HS_TOKEN,
    ROOM,
    UNSTABLE,
    MatrixServing,
    bearer,
    error,
    matrix_serving,
    until_state,
)
from tests.waiting import until

HOMESERVER = bearer(HS_TOKEN)
ANN, BOB = "@ann:example.org", "@bob:example.org"


async def tell(serving: MatrixServing, txn: str, *events: Any, headers: Any = HOMESERVER) -> httpx.Response:
    return await serving.client.put(
        f"/_matrix/app/v1/transactions/{txn}", json={"events": list(events)}, headers=headers
    )


def state(sender: str, type_: str = "m.s", key: str = "k", **fields: Any) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    return {"type": type_, "state_key": key, "room_id": ROOM, "sender": sender, "content": {},
            "origin_server_ts": now_ms, "unsigned": {"age": 0}, "event_id": "$e"} | fields  # fmt: skip


async def schedule_state(serving: MatrixServing, key: str = "k") -> str:
    path = f"/_matrix/client/v3/rooms/{ROOM}/delayed_event/m.s/{time.monotonic_ns()}"
    body = {"delay": 60_000, "state_key": key, "content": {}}
    answer = await serving.client.put(path, json=body, headers=bearer("ann-token"))
    delay_id: str = answer.json()["delay_id"]
    # What comes in the same millisecond is not newer.
    await until(lambda: time.time_ns() // 1_000_000 > serving.engine.clock.now_ms() - 1)
    now_ms = serving.engine.clock.now_ms()
    await until(lambda: serving.engine.clock.now_ms() > now_ms + 1)
    return delay_id


async def test_only_the_homeserver_is_listened_to(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for headers, status in (({}, 401), (bearer("guess"), 403), (bearer("ann-token"), 403)):
            answer = await tell(serving, "1", headers=headers)
            assert answer.status_code == status
        assert (await tell(serving, "1")).json() == {}
        legacy = f"/_matrix/app/v1/transactions/2?access_token={HS_TOKEN}"
        assert (await serving.client.put(legacy, json={"events": []})).status_code == 200
        assert (await serving.client.post("/_matrix/app/v1/ping", headers=HOMESERVER)).json() == {}
        answer = await serving.client.get("/_matrix/app/v1/users/@x:example.org", headers=HOMESERVER)
        assert (answer.status_code, answer.json()["errcode"]) == (404, "M_NOT_FOUND")
        answer = await serving.client.put("/_matrix/app/v1/transactions/3", content=b"{", headers=HOMESERVER)
        assert (answer.status_code, answer.json()["errcode"]) == (400, "M_NOT_JSON")
        assert not serving.homeserver.got


async def test_state_of_someone_else_cancels_delayed_state_where_the_operator_wants_it(
    tmp_path: Path,
) -> None:
    async with matrix_serving(tmp_path / "data", cancel_by_state_update=True) as serving:
        delay_id = await schedule_state(serving)
        other = await schedule_state(serving, "other")
        message = await serving.schedule()
        # Not the owner's own, not another key, type or room, nor an event that is no state.
        assert (
            await tell(serving, "1", state(ANN), state(BOB, key="x"), state(BOB, "m.t"))
        ).status_code == 200
        elsewhere = state(BOB, room_id="!elsewhere:example.org")
        assert (
            await tell(serving, "2", elsewhere, {"type": "m.s", "room_id": ROOM, "sender": BOB})
        ).json() == {}
        assert len((await serving.listed())["scheduled"]) == 3
        # What is no proper event does not stop the others of its transaction.
        odd = [7, {"state_key": 5}, state(BOB, content="x"), state(BOB, unsigned={"age": "old"})]
        assert (await tell(serving, "3", *odd, state(BOB))).status_code == 200
        lists = await serving.listed()
        assert {one["delay_id"] for one in lists["scheduled"]} == {other, message}
        (ended,) = lists["finalised"]
        assert ended["delayed_event"]["delay_id"] == delay_id
        assert (ended["outcome"], ended["reason"]) == ("cancel", "error")
        assert ended["error"]["errcode"] == "M_CANCELLED_BY_STATE_UPDATE"
        (ended,) = (await serving.listed(root=UNSTABLE, status="finalised"))["finalised"]
        assert ended["error"]["errcode"] == "M_UNKNOWN"
        assert ended["error"]["org.matrix.msc4140.errcode"] == "M_CANCELLED_BY_STATE_UPDATE"


async def test_without_that_wish_nothing_is_cancelled(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await schedule_state(serving)
        assert (await tell(serving, "1", state(BOB))).status_code == 200
        assert len((await serving.listed())["scheduled"]) == 1


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_transaction_that_comes_while_another_server_may_own_the_ledger_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    async with matrix_serving(tmp_path / "data", cancel_by_state_update=True) as serving:
        delay_id = await schedule_state(serving)
        # The new owner may have accepted more about the same state: who does not know of it cannot answer for it either.
        event = state(BOB) if known else state(BOB, key="elsewhere")
        with monkeypatch.context() as doubted:
            doubted.setattr(Journal, "in_doubt", True)
            answer = await tell(serving, "1", event)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await tell(serving, "1", event)).status_code == 200
        await until_state(serving, delay_id, "cancelled" if known else "scheduled")


async def test_a_transaction_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", cancel_by_state_update=True) as serving:
        await schedule_state(serving)
        update = state(BOB)
        await tell(serving, "1", update)
        assert not (await serving.listed())["scheduled"]
        later = await schedule_state(serving)
        # The same transaction again, and the same event in another: it is older than what is scheduled now.
        await tell(serving, "1", state(BOB))
        await tell(serving, "2", update)
        await tell(serving, "3", state(BOB, unsigned={"age": 60_000}))
        assert [one["delay_id"] for one in (await serving.listed())["scheduled"]] == [later]
        await tell(serving, "4", state(BOB))
        assert not (await serving.listed())["scheduled"]


async def test_who_leaves_because_of_a_deactivation_sends_nothing_any_more(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        theirs = await serving.schedule("b", token="bob-token")
        leave = {"content": {"membership": "leave"}}
        left = state(ANN, "m.room.member", ANN, **leave)
        await tell(serving, "1", state(BOB, "m.room.member", ANN, **leave))
        assert not serving.homeserver.got
        await tell(serving, "2", left)
        await until(lambda: serving.homeserver.got)
        assert (await serving.engine.get(delay_id)).state == "scheduled"
    async with matrix_serving(tmp_path / "data2") as serving:
        delay_id = await serving.schedule()
        theirs = await serving.schedule("b", token="bob-token")
        serving.homeserver.deactivated.add(ANN)
        await tell(serving, "1", left, left)
        await until_state(serving, delay_id, "cancelled")
        assert len(serving.homeserver.got) == 1
        (ended,) = (await serving.listed(status="finalised"))["finalised"]
        assert (ended["outcome"], ended["reason"]) == ("cancel", "error")
        assert ended["error"]["errcode"] == "M_USER_DEACTIVATED"
        assert (await serving.engine.get(theirs)).state == "scheduled"


async def test_a_deactivation_through_the_proxy_cancels_at_once(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        deactivate = "/_matrix/client/v3/account/deactivate"
        serving.homeserver.answers.append(lambda _: error(401, "M_FORBIDDEN"))
        await serving.client.post(deactivate, json={}, headers=bearer("ann-token"))
        assert (await serving.engine.get(delay_id)).state == "scheduled"
        serving.homeserver.answers.clear()
        assert (
            await serving.client.post(deactivate, json={}, headers=bearer("ann-token"))
        ).status_code == 200
        await until_state(serving, delay_id, "cancelled")


async def test_an_old_state_event_does_not_end_a_later_future(tmp_path: Path) -> None:
    """A homeserver that was away tells of old events late: by its age, by its time stamp, or by both."""
    async with matrix_serving(tmp_path / "data") as serving:
        path = f"/_matrix/client/v3/rooms/{ROOM}/state_future/m.s/k?future_timeout=60000"
        answer = await serving.client.put(path, json={}, headers=bearer("ann-token"))
        assert answer.status_code == 200
        accepted_ms = serving.engine.clock.now_ms()
        await until(lambda: serving.engine.clock.now_ms() > accepted_ms + 1)

        async def waiting() -> int:
            listed = await serving.client.get("/_matrix/client/v3/future", headers=bearer("ann-token"))
            return len(listed.json())

        old_ms = accepted_ms - 60_000
        for number, seen in enumerate(
            (
                state(BOB, origin_server_ts=old_ms, unsigned={"age": 60_000}),
                state(BOB, origin_server_ts=old_ms, unsigned={}),
                state(BOB, unsigned={"age": 60_000}),
            )
        ):
            assert (await tell(serving, f"old{number}", seen)).status_code == 200
            assert await waiting() == 1, seen
        assert (await tell(serving, "new", state(BOB))).status_code == 200
        assert await waiting() == 0
