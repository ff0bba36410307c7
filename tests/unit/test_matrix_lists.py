"""One's delayed events, listed: both arrays and their token, one event, and MSC4486's list."""

from pathlib import Path
from typing import Any

from tests.unit.matrix_kit import (
    ROOM,
    SELDOM,
    STABLE,
    UNSTABLE,
    MatrixServing,
    bearer,
    error,
    matrix_serving,
    until_state,
)
from tests.waiting import until

ANN = bearer("ann-token")
FILTERED = "/_matrix/client/unstable/org.matrix.msc4486/delayed_events"
NO_LIMITS = {
    "schedule_per_second": 0.0,
    "list_per_second": 0.0,
    "manage_per_second": 0.0,
    "manage_per_second_per_event": 0.0,
}


async def walk(serving: MatrixServing, root: str = STABLE, **query: Any) -> list[Any]:
    """All pages of a list."""
    pages = [await serving.listed(root=root, **query)]
    while "next_batch" in pages[-1]:
        pages.append(await serving.listed(root=root, **query, **{"from": pages[-1]["next_batch"]}))
    return pages


def ids(pages: list[Any], array: str) -> list[list[str]]:
    return [[one.get("delayed_event", one)["delay_id"] for one in page.get(array, [])] for page in pages]


async def test_pages_of_ten_in_the_stated_orders_with_one_token_for_both_arrays(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", **NO_LIMITS) as serving:
        waiting = [
            await serving.schedule(f"w{number}", delay=60_000 - number * 1_000) for number in range(25)
        ]
        ended = [await serving.schedule(f"e{number}") for number in range(12)]
        for delay_id in ended:
            await serving.act(delay_id, "cancel")
        await serving.schedule("x", token="bob-token")
        soonest = waiting[::-1]
        pages = await walk(serving)
        assert ids(pages, "scheduled") == [soonest[:10], soonest[10:20], soonest[20:]]
        assert ids(pages, "finalised") == [ended[:1:-1], ended[1::-1], []]
        only = await walk(serving, status="finalised")
        assert ids(only, "finalised") == [ended[:1:-1], ended[1::-1]]
        assert all("scheduled" not in page for page in only)
        only = await walk(serving, status="scheduled")
        assert [len(page["scheduled"]) for page in only] == [10, 10, 5]
        assert all("finalised" not in page for page in only)
        # Synapse's name for the array is there on the unstable path alone.
        (first, *_) = await walk(serving, UNSTABLE, status="scheduled")
        assert first["delayed_events"] == first["scheduled"] == only[0]["scheduled"]
        assert "delayed_events" not in only[0]


async def test_a_walk_misses_nothing_and_ends_while_events_restart(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", **NO_LIMITS) as serving:
        waiting = {await serving.schedule(f"w{number}", delay=60_000 + number) for number in range(25)}
        seen: list[str] = []
        token: dict[str, str] = {}
        for _ in range(20):
            page = await serving.listed(status="scheduled", **token)
            seen += [one["delay_id"] for one in page["scheduled"]]
            # All of them move behind where the walk is, and new ones come.
            for delay_id in waiting:
                await serving.act(delay_id, "restart")
            await serving.schedule(f"later{len(seen)}")
            if "next_batch" not in page:
                break
            token = {"from": page["next_batch"]}
        else:
            raise AssertionError("the walk does not end")
        assert set(seen) == waiting
        assert max(seen.count(one) for one in seen) <= 2


async def test_what_is_said_of_each_event(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        body = {"delay": 60_000, "state_key": "k", "content": {"x": [1, {"y": None}]}}
        path = f"/_matrix/client/v3/rooms/{ROOM}/delayed_event/m.s/1"
        state = (await serving.client.put(path, json=body, headers=ANN)).json()["delay_id"]
        by_clock = await serving.schedule("clock", delay=1)
        await until_state(serving, by_clock, "sent")
        by_action, cancelled, failed = [await serving.schedule(txn) for txn in ("action", "cancel", "fail")]
        await serving.act(by_action, "send")
        await serving.act(cancelled, "cancel")
        serving.homeserver.answers.append(lambda _: error(403, "M_FORBIDDEN"))
        await serving.act(failed, "send")
        lists = await serving.listed()
        (one,) = lists["scheduled"]
        since = one.pop("running_since")
        assert one == {"delay_id": state, "room_id": ROOM, "type": "m.s", "state_key": "k", "delay": 60_000,
                       "content": {"x": [1, {"y": None}]}}  # fmt: skip
        assert abs(since - serving.engine.clock.now_ms()) < 60_000
        by_id = {one["delayed_event"]["delay_id"]: one for one in lists["finalised"]}
        outcomes = {id_: (one["outcome"], one["reason"]) for id_, one in by_id.items()}
        assert outcomes == {
            by_clock: ("send", "delay"),
            by_action: ("send", "action"),
            cancelled: ("cancel", "action"),
            failed: ("cancel", "error"),
        }
        assert {id_ for id_, one in by_id.items() if "event_id" in one} == {by_clock, by_action}
        assert {id_ for id_, one in by_id.items() if "error" in one} == {failed}
        assert by_id[failed]["error"] == {"errcode": "M_FORBIDDEN", "error": "it said no"}
        sent = by_id[by_clock]
        assert sent["delayed_event"]["content"] == {"body": "clock"}
        assert "state_key" not in sent["delayed_event"]
        assert sent["origin_server_ts"] >= sent["delayed_event"]["running_since"] + 1


async def test_a_finalised_event_is_as_it_was_after_a_restart_of_the_server(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        await serving.act(delay_id, "send")
        before = await serving.listed()
    async with matrix_serving(tmp_path / "data") as serving:
        assert await serving.listed() == before
        assert (await serving.act(delay_id, "send")).status_code == 200
        assert not serving.homeserver.events


async def test_the_filters(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", **NO_LIMITS) as serving:
        first, second, ended = [await serving.schedule(txn) for txn in "abc"]
        await serving.act(ended, "cancel")
        theirs = await serving.schedule("d", token="bob-token")
        wanted: dict[str, Any] = {"delay_id": [second, theirs, ended, "nonsense", first]}
        lists = await serving.listed(**wanted)
        assert ids([lists], "scheduled") == [[first, second]]
        assert ids([lists], "finalised") == [[ended]]
        assert "next_batch" not in lists
        lists = await serving.listed(status="finalised", delay_id=[first])
        assert lists == {"finalised": []}
        for status in ("sent", "", "Scheduled", "all"):
            answer = await serving.client.get(STABLE, params={"status": status}, headers=ANN)
            assert (answer.status_code, answer.json()["errcode"]) == (400, "M_UNKNOWN")
        for token in (
            "",
            "x",
            "a.b",
            "-.-",
            "....",
            "AAAA.AAAA",
            "é",
            "z" * 300,
            "-.AAAA",
            "t1",
            "tx_y",
            "t_",
        ):
            answer = await serving.client.get(STABLE, params={"from": token}, headers=ANN)
            assert (answer.status_code, answer.json()["errcode"]) == (400, "M_INVALID_PARAM"), token
        answer = await serving.client.get(STABLE, params={"delay_id": ["x"] * 101}, headers=ANN)
        assert answer.status_code == 400
        assert (await serving.client.get(STABLE)).status_code == 401
        assert (await serving.listed(token="guest-token")) == {"scheduled": [], "finalised": []}


async def test_lists_are_limited_by_user(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", list_per_second=SELDOM) as serving:
        await serving.listed()
        answer = await serving.client.get(STABLE, headers=ANN)
        assert (answer.status_code, answer.json()["errcode"]) == (429, "M_LIMIT_EXCEEDED")
        assert answer.json()["retry_after_ms"] > 0
        await serving.listed(token="bob-token")


async def test_one_event_as_merged(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", **NO_LIMITS) as serving:
        delay_id = await serving.schedule()
        own = {"delay_id": delay_id, "room_id": ROOM, "type": "m.room.message", "content": {"body": "t1"}}
        of_state = await serving.schedule("t2", state_key="a key")
        for root in (STABLE, UNSTABLE):
            shown = (await serving.client.get(f"{root}/{delay_id}", headers=ANN)).json()
            assert shown.pop("delayed_since_ts") > 0
            assert shown == {"delay_ms": 60_000, **own}
            shown = (await serving.client.get(f"{root}/{of_state}", headers=ANN)).json()
            assert shown["state_key"] == "a key"
        await serving.act(delay_id, "send")
        finalised = (await serving.client.get(f"{STABLE}/{delay_id}", headers=ANN)).json()["finalised"]
        assert finalised.pop("event_id").startswith("$event")
        assert list(finalised) == ["finalised_ts"]
        other = await serving.schedule("other")
        await serving.act(other, "cancel")
        finalised = (await serving.client.get(f"{STABLE}/{other}", headers=ANN)).json()["finalised"]
        assert list(finalised) == ["finalised_ts"]
        for token, id_ in (("bob-token", delay_id), ("ann-token", "0" * 32)):
            answer = await serving.client.get(f"{STABLE}/{id_}", headers=bearer(token))
            assert (answer.status_code, answer.json()["errcode"]) == (404, "M_NOT_FOUND")


async def test_the_list_of_msc4486(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", **NO_LIMITS) as serving:
        waiting = [await serving.schedule(f"w{number}", delay=60_000 + number * 1000) for number in range(12)]
        other = await serving.schedule("other", delay=90_000, room="!other:example.org")
        sent, cancelled = await serving.schedule("s", delay=80_000), await serving.schedule("c", delay=81_000)
        await serving.act(sent, "send")
        await serving.act(cancelled, "cancel")
        everything = [*waiting, sent, cancelled, other]
        pages = await walk(serving, FILTERED)
        assert ids(pages, "delayed_events") == [everything[:10], everything[10:]]
        pages = await walk(serving, FILTERED, dir="b")
        assert ids(pages, "delayed_events") == [everything[:4:-1], everything[4::-1]]
        # The stable path serves both lists: what only this one has makes it this one.
        assert ids([await serving.listed(dir="f")], "delayed_events") == [everything[:10]]
        assert ids([await serving.listed(room_id="!other:example.org")], "delayed_events") == [[other]]
        assert ids([await serving.listed(type="m.none")], "delayed_events") == [[]]
        for status, expected in (("sent", [sent]), ("cancelled", [cancelled]), ("failed", []), ("sent,cancelled", [sent, cancelled])):  # fmt: skip
            page = await serving.listed(root=FILTERED, status=status)
            assert ids([page], "delayed_events") == [expected]
        starts = (await serving.listed(root=FILTERED))["delayed_events"]
        third = starts[3]["delayed_since_ts"] + starts[3]["delay_ms"]
        page = await serving.listed(from_ts=third, to_ts=third)
        assert ids([page], "delayed_events") == [[waiting[3]]]
        for name, value in (
            ("dir", "x"),
            ("from_ts", "-1"),
            ("to_ts", "soon"),
            ("status", "gone"),
            ("from", "x"),
        ):
            answer = await serving.client.get(FILTERED, params={name: value}, headers=ANN)
            assert (answer.status_code, answer.json()["errcode"]) == (400, "M_INVALID_PARAM"), name


async def test_an_administrator_lists_and_cancels_by_user_and_by_room(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        ann = await serving.schedule("a")
        bob = await serving.schedule("b", token="bob-token", room="!other:example.org")
        for query, expected in (
            ({"owner": "@ann:example.org"}, ann),
            ({"key": "!other:example.org"}, bob),
            ({"namespace": "matrix/events", "owner": "@bob:example.org"}, bob),
        ):
            page = (await serving.native.get("/v1/messages", params=query)).json()
            assert [one["id"] for one in page["messages"]] == [expected]
        assert (await serving.native.delete(f"/v1/messages/{bob}")).status_code == 200
        assert (await serving.act(bob, "restart")).status_code == 404
        await until(lambda: serving.engine.pending_of("@bob:example.org", "matrix/events") == 0)
