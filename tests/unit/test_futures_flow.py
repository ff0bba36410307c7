"""Futures from end to end, with a homeserver that does what a test tells it to: away, slow, refusing.

What a real homeserver makes of them is in `tests/conformance/matrix/test_futures.py`.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tarry.core.messages.message import MessageQuery
from tarry.http.connection import HttpConnection
from tests.unit.matrix_kit import ROOM, MatrixServing, Sent, bearer, error, matrix_serving
from tests.waiting import until

V3 = "/_matrix/client/v3"
LONG_MS = 3_600_000
MESSAGE = {"type": "m.room.message", "content": {"body": "hi"}}


async def future(serving: MatrixServing, txn: str, query: str, token: str = "ann-token") -> httpx.Response:
    path = f"{V3}/rooms/{ROOM}/send_future/m.room.message/{txn}?{query}"
    return await serving.client.put(path, json={"body": txn}, headers=bearer(token))


async def batch(serving: MatrixServing, body: Any, txn: str = "t1") -> httpx.Response:
    path = f"{V3}/rooms/{ROOM}/send/future/{txn}"
    return await serving.client.put(path, json=body, headers=bearer("ann-token"))


async def post(serving: MatrixServing, token: str, **how: Any) -> httpx.Response:
    return await serving.client.post(f"{V3}/future/{token}", **how)


async def running(serving: MatrixServing) -> Any:
    answer = await serving.client.get(f"{V3}/future", headers=bearer("ann-token"))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_tokens_do_not_need_the_homeserver(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        timed = (await future(serving, "timed", f"future_timeout={LONG_MS}&future_group_id=g")).json()
        action = (await future(serving, "action", "future_group_id=g")).json()
        await serving.homeserver.stop()
        assert (await post(serving, timed["refresh_token"])).status_code == 200
        assert len(await running(serving)) == 2
        # It is chosen, and goes out as soon as the homeserver is there; until then nobody is told that it is sent.
        assert (await post(serving, action["send_token"])).status_code == 502
        assert (await post(serving, timed["cancel_token"])).status_code == 410
        await serving.homeserver.start()
        (sent,) = await serving.arrived()
        assert sent.json == {"body": "action"}


async def test_a_send_token_is_answered_when_the_homeserver_has_the_event(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", send_timeout_ms=20_000) as serving:
        asked, go_on = asyncio.Event(), asyncio.Event()
        serve = serving.homeserver.serve

        async def slowly(request: web.Request) -> web.StreamResponse:
            if "/send/" in request.path:
                asked.set()
                await go_on.wait()
            return await serve(request)

        serving.homeserver.serve = slowly
        tokens = (await future(serving, "t", f"future_timeout={LONG_MS}")).json()
        answer = asyncio.create_task(post(serving, tokens["send_token"]))
        await asked.wait()
        # It has had every chance to be answered too early.
        assert (await serving.client.get("/_matrix/client/versions")).status_code == 200
        assert not answer.done()
        go_on.set()
        done = await answer
        assert (done.status_code, done.json(), len(serving.homeserver.events)) == (200, {}, 1)


async def test_a_send_token_whose_event_is_not_sent_says_so_and_nothing_of_the_room(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", send_timeout_ms=300) as serving:
        refused, limited, late, cancelled = [
            (await future(serving, txn, f"future_timeout={LONG_MS}")).json() for txn in "abcd"
        ]
        serving.homeserver.answers.append(
            lambda sent: error(403, "M_FORBIDDEN") if "/send/" in sent.path else None
        )
        answer = await post(serving, refused["send_token"])
        assert (answer.status_code, answer.json()["errcode"]) == (409, "M_UNKNOWN")
        assert "said no" not in answer.text
        # The future is over.
        assert (await post(serving, refused["send_token"])).status_code == 410
        serving.homeserver.answers[:] = [
            lambda sent: (
                error(429, "M_LIMIT_EXCEEDED", retry_after_ms=30_000) if "/send/" in sent.path else None
            )
        ]
        assert (await post(serving, limited["send_token"])).status_code == 502
        # It waits behind that one.
        assert (await post(serving, late["send_token"])).status_code == 504
        waiting = asyncio.create_task(post(serving, cancelled["send_token"]))
        await until(lambda: serving.engine.stats().sending >= 3)
        assert (await post(serving, cancelled["cancel_token"])).status_code == 200
        assert (await waiting).status_code == 410


async def test_a_cancel_that_nobody_can_promise_is_a_conflict(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        # The homeserver dies in mid-answer, again and again.
        serving.homeserver.answers.append(lambda sent: _hang_up(sent) if sent.method == "PUT" else None)
        timed = (await future(serving, "timed", "future_timeout=1")).json()
        await serving.arrived(2)
        answer = await post(serving, timed["cancel_token"])
        assert (answer.status_code, answer.json()["errcode"]) == (409, "M_UNKNOWN")
        serving.homeserver.answers.clear()


def _hang_up(_: Sent) -> web.StreamResponse:
    raise asyncio.CancelledError


async def test_a_forwarded_address_counts_only_from_a_trusted_proxy(tmp_path: Path) -> None:
    def forwarded(address: str) -> dict[str, str]:
        return {"X-Forwarded-For": f"6.6.6.6, {address}"}

    async with matrix_serving(tmp_path / "data", trusted_proxies=["127.0.0.0/8"]) as serving:
        for _ in range(5):
            assert (await post(serving, "wrong", headers=forwarded("10.0.0.1"))).status_code == 410
        limited = await post(serving, "wrong", headers=forwarded("10.0.0.1"))
        assert (limited.status_code, limited.json()["errcode"]) == (429, "M_LIMIT_EXCEEDED")
        assert (await post(serving, "wrong", headers=forwarded("10.0.0.2"))).status_code == 410
    async with matrix_serving(tmp_path / "other") as serving:
        statuses = [
            (await post(serving, "wrong", headers=forwarded(f"10.0.0.{last}"))).status_code
            for last in range(6)
        ]
        assert statuses == [410] * 5 + [429]


async def test_one_future_cannot_be_managed_too_fast(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", manage_per_second_per_event=1.0) as serving:
        tokens = (await future(serving, "t", f"future_timeout={LONG_MS}")).json()
        answers = [await post(serving, tokens["refresh_token"]) for _ in range(4)]
        assert answers[0].status_code == 200
        assert answers[-1].status_code == 429
        assert answers[-1].json()["retry_after_ms"] > 0
        assert len(await running(serving)) == 1


async def test_heartbeats_and_schedules_of_known_users_need_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        tokens = (await future(serving, "t", f"future_timeout={LONG_MS}")).json()

        async def in_a_task(*_: Any) -> None:
            raise AssertionError("a request was served in a task")

        monkeypatch.setattr(HttpConnection, "_await", in_a_task)
        async with asyncio.timeout(20):
            refreshed = await post(serving, tokens["refresh_token"])
            assert (refreshed.status_code, refreshed.json()) == (200, {})
            assert (await post(serving, tokens["cancel_token"])).status_code == 200
            assert (await post(serving, tokens["refresh_token"])).status_code == 410
            delay_id = await serving.schedule()
            assert (await serving.act(delay_id, "restart")).status_code == 200
            assert (await serving.act(delay_id, "refresh")).status_code == 200


# A batch


async def test_a_batch_that_the_homeserver_refuses_leaves_nothing(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        serving.homeserver.answers.append(
            lambda sent: error(403, "M_FORBIDDEN") if sent.method == "PUT" else None
        )
        body = {"timeout": 1, "send_on_timeout": MESSAGE, "send_now": MESSAGE}
        for _ in range(2):
            answer = await batch(serving, body)
            assert (answer.status_code, answer.json()["errcode"]) == (403, "M_FORBIDDEN")
        assert await running(serving) == []
        assert serving.engine.stats().pending == 0
        assert len(serving.homeserver.events) == 1


async def test_a_batch_that_takes_too_long_is_accepted_and_can_be_asked_for_again(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", send_timeout_ms=300) as serving:
        serving.homeserver.answers.append(
            lambda sent: error(502, "M_UNKNOWN") if sent.method == "PUT" else None
        )
        body = {
            "timeout": LONG_MS,
            "send_on_timeout": {"type": "t", "content": {"redacts": "$m.send_now.event_id"}},
            "send_now": MESSAGE,
        }
        answer = await batch(serving, body)
        assert (answer.status_code, answer.json()["errcode"]) == (504, "M_UNKNOWN")
        # Its time has not begun, and its tokens cannot be used yet.
        (entry,) = await running(serving)
        assert (await post(serving, entry["response"]["send_token"])).status_code == 409
        serving.homeserver.answers.clear()
        await until(lambda: serving.engine.stats().counters.get("sent"))
        again = await batch(serving, body)
        assert again.status_code == 200
        event_id = again.json()["send_now"]["eventId"]
        assert event_id.startswith("$event")
        (entry,) = await running(serving)
        assert entry["body"] == {"redacts": event_id}
        assert (await post(serving, again.json()["send_on_timeout"]["send_token"])).status_code == 200
        await until(lambda: serving.homeserver.events[-1].json == {"redacts": event_id})
        # All attempts at the first event had one transaction id: the homeserver takes it once.
        tried = {sent.path for sent in serving.homeserver.events if sent.json == MESSAGE["content"]}
        assert len(tried) == 1


async def test_a_batch_is_there_after_a_restart_with_all_that_it_needs(tmp_path: Path) -> None:
    body = {
        "timeout": LONG_MS,
        "send_on_timeout": MESSAGE,
        "send_on_action": {"end": {"type": "t", "content": {"of": "$m.send_now.event_id"}}},
        "send_now": MESSAGE,
    }
    async with matrix_serving(tmp_path / "data") as serving:
        first = (await batch(serving, body)).json()
        before = await running(serving)
    async with matrix_serving(tmp_path / "data") as serving:
        assert (await batch(serving, body)).json() == first
        assert await running(serving) == before
        assert not serving.homeserver.events
        assert (await post(serving, first["send_on_action"]["end"]["send_token"])).status_code == 200
        (sent,) = await serving.arrived()
        assert sent.json == {"of": first["send_now"]["eventId"]}


@pytest.mark.parametrize("name", ["access_token", "access%5Ftoken"])
async def test_an_access_token_in_the_address_is_not_kept(tmp_path: Path, name: str) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        path = (
            f"{V3}/rooms/{ROOM}/send_future/m.room.message/t?{name}=ann-token&future_timeout={LONG_MS}&a=%20b"
        )
        answer = await serving.client.put(path, json={})
        assert answer.status_code == 200
        (entry,) = await running(serving)
        assert entry["url"].endswith(f"/t?future_timeout={LONG_MS}&a=+b")
        view = await serving.engine.list_messages(MessageQuery())
        assert "ann-token" not in str(view)


async def test_nothing_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with matrix_serving(tmp_path / "data") as serving:
            timed = (await future(serving, "timed", "future_timeout=1500&access_token=ann-token")).json()
            action = (await future(serving, "act", f"future_group_id={timed['future_group_id']}")).json()
            await post(serving, timed["refresh_token"])
            await serving.arrived()
            await post(serving, action["send_token"])
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("tarry"))
    for secret in (*timed.values(), *action.values(), "ann-token"):
        assert secret not in ours
