"""Send, cancel and restart through the Matrix door: what each comes to, in each dialect."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tarry.engine.answer import Answer
from tarry.testing.insides import InsidesOf
from tests.unit.matrix_kit import (
    ROOM,
    SELDOM,
    STABLE,
    UNSTABLE,
    MatrixServing,
    Sent,
    bearer,
    error,
    matrix_serving,
    until_state,
)
from tests.waiting import until

ANN = bearer("ann-token")
SEED, MERGED, QUERY = "seed", "merged", "query"


async def schedule(
    serving: MatrixServing, dialect: str, txn: str, delay: int = 60_000, room: str = ROOM
) -> str:
    if dialect == QUERY:
        path = f"/_matrix/client/v3/rooms/{room}/send/m.x/{txn}?org.matrix.msc4140.delay={delay}"
        answer = await serving.client.put(path, json={}, headers=ANN)
    else:
        path = f"/_matrix/client/v3/rooms/{room}/delayed_event/m.x/{txn}"
        name = "delay" if dialect == SEED else "delay_ms"
        answer = await serving.client.put(path, json={name: delay, "content": {}}, headers=ANN)
    assert answer.status_code == 200, answer.text
    delay_id: str = answer.json()["delay_id"]
    return delay_id


def forbid(sent: Sent) -> Any:
    return error(403, "M_FORBIDDEN", extra="kept") if "/send/" in sent.path else None


async def finalise(serving: MatrixServing, delay_id: str, outcome: str) -> None:
    """Let an event end by its clock or by command."""
    if outcome == "cancelled":
        assert (await serving.act(delay_id, "cancel")).status_code == 200
    elif outcome == "sent":
        assert (await serving.act(delay_id, "send")).status_code == 200
    else:
        serving.homeserver.answers.append(forbid)
        await serving.engine.restart(delay_id, delay_ms=1)
        await until_state(serving, delay_id, "failed")
        serving.homeserver.answers.clear()


AFTERWARDS = [
    # dialect, how it ended, action, the answer on the stable path, and on the unstable one
    (SEED, "sent", "send", 200, 200),
    (SEED, "sent", "cancel", 404, 404),
    (SEED, "sent", "restart", 404, 404),
    (SEED, "cancelled", "send", 404, 404),
    (SEED, "cancelled", "cancel", 404, 404),
    (SEED, "cancelled", "restart", 404, 404),
    (SEED, "failed", "send", 403, 403),
    (SEED, "failed", "cancel", 404, 404),
    (SEED, "failed", "restart", 404, 404),
    (QUERY, "sent", "send", 200, 200),
    (QUERY, "sent", "restart", 404, 404),
    (QUERY, "cancelled", "cancel", 404, 404),
    (QUERY, "failed", "send", 403, 403),
    (MERGED, "sent", "send", 200, 200),
    (MERGED, "sent", "cancel", 409, 404),
    (MERGED, "sent", "restart", 409, 404),
    (MERGED, "cancelled", "send", 409, 404),
    (MERGED, "cancelled", "cancel", 200, 200),
    (MERGED, "cancelled", "restart", 409, 404),
    (MERGED, "failed", "send", 409, 404),
    (MERGED, "failed", "cancel", 200, 200),
    (MERGED, "failed", "restart", 409, 404),
]


async def test_an_action_on_a_finalised_event_is_answered_in_its_dialect(tmp_path: Path) -> None:
    async with matrix_serving(
        tmp_path / "data", manage_per_second_per_event=0.0, manage_per_second=0.0
    ) as serving:
        ended: dict[tuple[str, str], str] = {}
        for dialect, outcome, action, stable, unstable in AFTERWARDS:
            if (dialect, outcome) not in ended:
                ended[dialect, outcome] = await schedule(serving, dialect, f"{dialect}-{outcome}")
                await finalise(serving, ended[dialect, outcome], outcome)
            for root, expected in ((STABLE, stable), (UNSTABLE, unstable)):
                delay_id = ended[dialect, outcome]
                by_path = await serving.act(delay_id, action, root)
                by_body = await serving.client.post(f"{root}/{delay_id}", json={"action": action})
                case = (dialect, outcome, action, root)
                assert by_path.status_code == by_body.status_code == expected, case
                assert by_path.json() == by_body.json(), case
                if expected == 200:
                    assert by_path.json() == {}, case
                elif expected == 403:
                    assert by_path.json() == {
                        "errcode": "M_FORBIDDEN",
                        "error": "it said no",
                        "extra": "kept",
                    }
                else:
                    assert by_path.json()["errcode"] == ("M_NOT_FOUND" if expected == 404 else "M_UNKNOWN"), (
                        case
                    )
                assert by_path.headers["access-control-allow-origin"] == "*"


async def test_restart_begins_the_delay_again(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule(delay=60_000)
        (before,) = (await serving.listed())["scheduled"]
        await until(lambda: serving.engine.clock.now_ms() > before["running_since"] + 5)
        for root in (STABLE, UNSTABLE):
            for action in ("restart", "refresh"):
                answer = await serving.act(delay_id, action, root)
                assert (answer.status_code, answer.json()) == (200, {})
        (after,) = (await serving.listed())["scheduled"]
        assert after["running_since"] > before["running_since"]
        assert after["delay"] == 60_000
        # With or without a token, a body or a content type: as clients and delegates send it.
        assert (await serving.act(delay_id, "restart", json={})).status_code == 200
        assert (
            await serving.act(delay_id, "restart", headers=bearer("whose"), content=b"")
        ).status_code == 200


async def test_management_does_not_need_the_homeserver(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        ids = [await serving.schedule(txn) for txn in "abc"]
        await serving.homeserver.stop()
        assert (await serving.act(ids[0], "restart")).status_code == 200
        assert (await serving.act(ids[1], "cancel")).status_code == 200
        # It is due from now on, and goes out as soon as the homeserver is there; until then nobody is told that it is sent.
        refusal = await serving.act(ids[2], "send")
        assert (refusal.status_code, refusal.json()["errcode"]) == (502, "M_UNKNOWN")
        await serving.homeserver.start()
        (sent,) = await serving.arrived()
        assert sent.json == {"body": "c"}


async def test_guessed_ids_and_unknown_actions(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        for guess in ("0" * 32, "x", delay_id.upper(), delay_id + "0", delay_id[::-1], "%00", "é"):
            for action in ("send", "cancel", "restart"):
                answer = await serving.act(guess, action)
                assert (answer.status_code, answer.json()["errcode"]) == (404, "M_NOT_FOUND"), (guess, action)
        answer = await serving.act(delay_id, "explode")
        assert (answer.status_code, answer.json()["errcode"]) == (404, "M_UNRECOGNIZED")
        for body, errcode in (
            ({"action": "explode"}, "M_INVALID_PARAM"),
            ({}, "M_MISSING_PARAM"),
            ({"action": 1}, "M_BAD_JSON"),
            ([], "M_BAD_JSON"),
        ):
            answer = await serving.client.post(f"{STABLE}/{delay_id}", json=body)
            assert (answer.status_code, answer.json()["errcode"]) == (400, errcode)
        assert (await serving.client.post(f"{STABLE}/{delay_id}", content=b"")).status_code == 400
        assert (await serving.client.delete(f"{STABLE}/{delay_id}")).status_code == 405
        assert (await serving.client.get(f"{STABLE}/{delay_id}/send")).status_code == 405
        assert [one["delay_id"] for one in (await serving.listed())["scheduled"]] == [delay_id]


async def test_one_event_is_managed_only_so_fast_whoever_does_it(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", manage_per_second_per_event=SELDOM) as serving:
        first, second = await serving.schedule("a"), await serving.schedule("b")
        assert (await serving.act(first, "restart")).status_code == 200
        for action in ("restart", "send"):
            answer = await serving.act(first, action)
            assert (answer.status_code, answer.json()["errcode"]) == (429, "M_LIMIT_EXCEEDED")
            assert 0 < answer.json()["retry_after_ms"] <= 50_000
        # Another event from the same address is not concerned, and the limited send has sent nothing.
        assert (await serving.act(second, "restart")).status_code == 200
        assert len((await serving.listed())["scheduled"]) == 2
        assert not serving.homeserver.events


async def test_the_events_of_one_user_are_managed_only_so_fast(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", manage_per_second=SELDOM) as serving:
        ids = [await serving.schedule(f"t{number}") for number in range(3)]
        theirs = await serving.schedule("b", token="bob-token")
        answers = [await serving.act(delay_id, "send") for delay_id in ids]
        assert [answer.status_code for answer in answers] == [200, 429, 429]
        assert answers[-1].json()["retry_after_ms"] > 0
        assert (await serving.act(theirs, "cancel")).status_code == 200
        assert len((await serving.listed())["scheduled"]) == 2


async def test_with_the_switch_management_needs_a_token_of_the_owner(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", management_token=True) as serving:
        delay_id = await serving.schedule()
        refusals: list[tuple[dict[str, Any], int, str]] = [
            ({}, 401, "M_MISSING_TOKEN"),
            ({"headers": bearer("nobody")}, 401, "M_UNKNOWN_TOKEN"),
            ({"headers": bearer("bob-token")}, 404, "M_NOT_FOUND"),
        ]
        for how, status, errcode in refusals:
            for action in ("restart", "send", "cancel"):
                answer = await serving.act(delay_id, action, **how)
                assert (answer.status_code, answer.json()["errcode"]) == (status, errcode)
        for action in ("restart", "cancel"):
            assert (await serving.act(delay_id, action, headers=ANN)).status_code == 200


async def test_a_send_that_is_refused_tells_the_error_and_ends_or_stays_by_dialect(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        seed, merged = await schedule(serving, SEED, "a"), await schedule(serving, MERGED, "b")
        serving.homeserver.answers.append(forbid)
        for delay_id in (seed, merged):
            answer = await serving.act(delay_id, "send")
            assert (answer.status_code, answer.json()["errcode"]) == (403, "M_FORBIDDEN")
        lists = await serving.listed()
        assert [one["delay_id"] for one in lists["scheduled"]] == [merged]
        (failed,) = lists["finalised"]
        assert failed["delayed_event"]["delay_id"] == seed
        assert (failed["outcome"], failed["reason"], failed["error"]["errcode"]) == (
            "cancel",
            "error",
            "M_FORBIDDEN",
        )
        # The cause is gone: it may still be sent.
        serving.homeserver.answers.clear()
        assert (await serving.act(merged, "send")).status_code == 200
        assert (await serving.act(merged, "send")).status_code == 200
        assert len([one for one in serving.homeserver.events if "/m.x/" in one.path]) == 3


async def test_a_send_that_the_homeserver_limits_tells_so_and_is_sent_later(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        limit = [error(429, "M_LIMIT_EXCEEDED", retry_after_ms=50)]
        serving.homeserver.answers.append(
            lambda sent: limit.pop() if limit and "/send/" in sent.path else None
        )
        answer = await serving.act(delay_id, "send")
        assert (answer.status_code, answer.json()["errcode"]) == (429, "M_LIMIT_EXCEEDED")
        assert answer.json()["retry_after_ms"] == 50
        await serving.arrived(2)
        await until_state(serving, delay_id, "sent")


# Which of two answered commands holds


@pytest.mark.parametrize("dialect", [SEED, MERGED, QUERY])
@pytest.mark.parametrize("later", ["cancel", "restart"])
async def test_send_says_what_became_of_the_event(tmp_path: Path, dialect: str, later: str) -> None:
    """A client that changes its mind at once: the two requests meet in one commit, or shortly after it."""
    async with matrix_serving(
        tmp_path / "data", manage_per_second_per_event=0.0, schedule_per_second=0.0, manage_per_second=0.0
    ) as serving:
        outcomes = set()
        for number in range(24):
            delay_id = await schedule(serving, dialect, f"t{number}")
            before = len(serving.homeserver.events)
            send = asyncio.create_task(serving.act(delay_id, "send"))
            await asyncio.sleep(0.0004 * (number % 6))
            changed = await serving.act(delay_id, later)
            sent = await send
            arrived = len(serving.homeserver.events) - before
            assert (sent.status_code == 200) == (arrived == 1), (sent.text, changed.text)
            assert (changed.status_code == 200) == (arrived == 0), (sent.text, changed.text)
            state = (await serving.engine.get(delay_id)).state
            assert state == ("sent" if arrived else "cancelled" if later == "cancel" else "scheduled")
            outcomes.add(sent.status_code)
        refused = {"restart": 503, "cancel": 409 if dialect == MERGED else 404}[later]
        assert outcomes <= {200, refused}


@pytest.mark.parametrize("dialect", [SEED, MERGED])
async def test_while_the_homeserver_is_down_the_last_command_holds(tmp_path: Path, dialect: str) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        cancelled, restarted, sent = [
            await schedule(serving, dialect, txn, room=f"!{txn}:example.org") for txn in "abc"
        ]
        await serving.homeserver.stop()
        for delay_id in (cancelled, restarted, sent):
            assert (await serving.act(delay_id, "send")).status_code == 502
        assert (await serving.act(cancelled, "cancel")).status_code == 200
        assert (await serving.act(restarted, "restart")).status_code == 200
        await serving.homeserver.start()
        assert (await serving.act(sent, "send")).status_code == 200
        # The others were tried as often before, and would have been tried again by now.
        assert [one.path.split("/")[5] for one in serving.homeserver.events] == ["!c:example.org"]
        assert (await serving.engine.get(cancelled)).state == "cancelled"
        assert (await serving.engine.get(restarted)).state == "scheduled"


async def test_a_homeserver_that_takes_its_time_is_not_taken_for_success(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", send_timeout_ms=50) as serving:
        delay_id = await serving.schedule()
        go_on = asyncio.Event()
        serve = serving.homeserver.serve

        async def slowly(request: web.Request) -> web.StreamResponse:
            if "/send/" in request.path:
                await go_on.wait()
            return await serve(request)

        serving.homeserver.serve = slowly
        answer = await serving.act(delay_id, "send")
        assert (answer.status_code, answer.json()["errcode"]) == (504, "M_UNKNOWN")
        assert "unless it is cancelled" in answer.json()["error"]
        cancel = asyncio.create_task(serving.act(delay_id, "cancel"))
        go_on.set()
        # The attempt under way arrives: nothing can be cancelled any more, and to send again is to hear that it is sent.
        assert (await cancel).status_code == 404
        assert (await serving.act(delay_id, "send")).status_code == 200
        assert len(serving.homeserver.events) == 1


async def test_a_send_that_runs_out_of_time_is_answered_by_what_the_event_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine even to look up a finalised event takes longer than a short time for `send`."""
    async with matrix_serving(tmp_path / "data", send_timeout_ms=20) as serving:
        cancelled, sent = await serving.schedule("c"), await serving.schedule("s")
        assert (await serving.act(cancelled, "cancel")).status_code == 200
        await serving.engine.restart(sent, delay_ms=1)
        await until_state(serving, sent, "sent")
        flush = InsidesOf(serving.engine).upkeep.flush

        def slowly() -> Answer[None]:
            answer: Answer[None] = Answer()
            asyncio.get_running_loop().call_later(0.1, lambda: flush().forward_to(answer))
            return answer

        monkeypatch.setattr(InsidesOf(serving.engine).upkeep, "flush", slowly)
        assert (await serving.act(cancelled, "send")).status_code == 404
        assert (await serving.act(sent, "send")).status_code == 200


async def test_the_native_door_says_due_and_the_last_command_holds(tmp_path: Path) -> None:
    """Another system is down: its message is due, and may be cancelled while it has not gone out."""
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        await serving.homeserver.stop()
        due = await serving.native.post(f"/v1/messages/{delay_id}/send")
        assert (due.status_code, due.json()["state"]) == (200, "scheduled")
        cancel = await serving.native.post(f"/v1/messages/{delay_id}/cancel")
        assert (cancel.status_code, cancel.json()["state"]) == (200, "cancelled")
        again = await serving.native.post(f"/v1/messages/{delay_id}/send")
        assert again.status_code == 409
        await serving.homeserver.start()
        other = await serving.schedule("t2", delay=1)
        await until_state(serving, other, "sent")
        assert len(serving.homeserver.events) == 1


# Whose ids it takes


async def test_ids_of_other_doors_mean_nothing_here(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", manage_per_second_per_event=0.0) as serving:
        native = {"destination": "orders", "payload": "x", "delay_ms": 60_000}
        ids = [(await serving.native.post("/v1/messages", json=native)).json()["id"] for _ in range(2)]
        await serving.native.post(f"/v1/messages/{ids[1]}/cancel")
        for id_, state in zip(ids, ("scheduled", "cancelled"), strict=True):
            before = await serving.engine.get(id_)
            for root in (STABLE, UNSTABLE):
                for action in ("restart", "send", "cancel"):
                    by_path = await serving.act(id_, action, root)
                    by_body = await serving.client.post(f"{root}/{id_}", json={"action": action})
                    for answer in (by_path, by_body):
                        assert (answer.status_code, answer.json()["errcode"]) == (404, "M_NOT_FOUND")
                shown = await serving.client.get(f"{root}/{id_}", headers=ANN)
                assert shown.status_code == 404
            assert await serving.engine.get(id_) == before
            assert before.state == state


async def test_what_is_not_served_is_the_homeservers_to_answer(tmp_path: Path) -> None:
    path = "/_matrix/client/unstable/io.element.msc4195/rtc/livekit/delegate_delayed_leave"
    async with matrix_serving(tmp_path / "data") as serving:
        serving.homeserver.answers.append(lambda _: error(404, "M_UNRECOGNIZED"))
        answer = await serving.client.post(path, json={})
        assert (answer.status_code, answer.json()["errcode"]) == (404, "M_UNRECOGNIZED")
