"""Scheduling through the Matrix door: every way to ask for it, what is refused, and that nothing is sent at once."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tarry.outlets.matrix.destination import parse
from tests.unit.matrix_kit import ROOM, SELDOM, STABLE, UNSTABLE, MatrixServing, bearer, matrix_serving

ANN = bearer("ann-token")
OWN = f"/_matrix/client/v3/rooms/{ROOM}/delayed_event"
UNSTABLE_OWN = f"/_matrix/client/unstable/org.matrix.msc4140/rooms/{ROOM}/delayed_event"
SEND = f"/_matrix/client/v3/rooms/{ROOM}/send"
WEEK_MS = 7 * 86_400_000


async def put(
    serving: MatrixServing, path: str, body: Any = None, raw: bytes | None = None, headers: Any = ANN
) -> httpx.Response:
    content = {"content": raw} if raw is not None else {"json": {} if body is None else body}
    return await serving.client.put(path, headers=headers, **content)


def said(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("errcode", "")


WAYS: Final[list[tuple[str, Any, str, str | None]]] = [
        (f"{OWN}/m.room.message/1", {"delay": 60_000, "content": {"a": 1}}, "m.room.message", None),
        (f"{OWN}/m.room.message/2", {"delay_ms": 60_000, "content": {"a": 1}}, "m.room.message", None),
        (f"{UNSTABLE_OWN}/m.x/3", {"delay_ms": 60_000, "delay": 60_000, "content": {"a": 1}}, "m.x", None),
        (f"{OWN}/m.rtc.member/4", {"delay": 60_000, "state_key": "a/b🦉", "content": {"a": 1}}, "m.rtc.member", "a/b🦉"),
        (f"{OWN}/m.rtc.member/5", {"delay": 60_000, "state_key": "", "content": {"a": 1}}, "m.rtc.member", ""),
        (f"{SEND}/m.x/6?org.matrix.msc4140.delay=60000", {"a": 1}, "m.x", None),
        (f"{SEND}/m.x/7?delay=60000", {"a": 1}, "m.x", None),
        (f"{SEND}/m.x/8?org%2Ematrix%2Emsc4140%2Edelay=60000", {"a": 1}, "m.x", None),
        *(
            (
                f"/_matrix/client/{version}/rooms/{ROOM}/state/m.s/{key}?org.matrix.msc4140.delay=60000",
                {"a": 1},
                "m.s",
                state_key,
            )
            for version, key, state_key in (
                ("v3", "", ""),
                ("r0", "plain", "plain"),
                ("v1", quote("a/b🦉%", safe=""), "a/b🦉%"),
            )
        ),
        (f"/_matrix/client/v3/rooms/{ROOM}/state/m.s?delay=60000", {"a": 1}, "m.s", ""),
]  # fmt: skip


async def test_each_way_to_schedule_sends_that_event_later(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for count, (path, body, type_, state_key) in enumerate(WAYS):
            answer = await put(serving, path, body)
            assert answer.status_code == 200, (path, answer.text)
            assert list(answer.json()) == ["delay_id"]
            assert len(serving.homeserver.events) == count, path
            assert (await serving.act(answer.json()["delay_id"], "send")).status_code == 200
            sent = (await serving.arrived(count + 1))[count]
            kind = "send" if state_key is None else "state"
            last = "" if state_key is None else quote(state_key, safe="")
            expected = f"/_matrix/client/v3/rooms/{quote(ROOM, safe='')}/{kind}/{type_}/{last}"
            assert sent.raw_path.startswith(expected), path
            assert sent.json == {"a": 1}, path


async def test_the_content_is_sent_as_it_was_given(tmp_path: Path) -> None:
    content = b'{ "b":1,  "a" : "\\u00e9\xc3\xa9", "big": 12345678901234567890 }'
    async with matrix_serving(tmp_path / "data") as serving:
        await put(serving, f"{OWN}/m.x/1", raw=b'{"delay": 20, "content": ' + content + b" }")
        await put(serving, f"{SEND}/m.x/2?delay=20", raw=content)
        sent = await serving.arrived(2)
        assert [one.body for one in sent] == [content, content]


async def test_a_redaction_is_delayed_and_sent_in_the_way_that_works_in_every_room(tmp_path: Path) -> None:
    redact = f"/_matrix/client/v3/rooms/{ROOM}/redact/{quote('$ev/1', safe='')}"
    async with matrix_serving(tmp_path / "data") as serving:
        answers = [
            await put(serving, f"{redact}/t?org.matrix.msc4140.delay=20", {"reason": "spam"}),
            await serving.client.post(f"{redact}?delay=20", headers=ANN),
            await put(serving, f"{OWN}/m.room.redaction/x", {"delay": 20, "content": {"redacts": "$ev/1"}}),
            await put(serving, f"{SEND}/m.room.redaction/y?delay=20", {"redacts": "$ev/1"}),
        ]
        assert [answer.status_code for answer in answers] == [200] * 4
        sent = await serving.arrived(4)
        assert all("/redact/%24ev%2F1/tarry-" in one.raw_path for one in sent)
        assert len({one.path for one in sent}) == 4
        assert {"reason": "spam", "redacts": "$ev/1"} in [one.json for one in sent]


REFUSED: Final = [
    (f"{SEND}/m.x/1?delay=x", "PUT"),
    (f"{SEND}/m.x/1?delay=5&delay=6", "PUT"),
    (f"{SEND}/m.x?delay=0", "POST"),
    (f"{SEND}/m.x/1?future_timeout=10", "PUT"),
    (f"{SEND}/m.x/1?future_group_id=a", "PUT"),
    (f"{SEND}/m.x/1?%66uture_timeout=10", "PUT"),
    (f"/_matrix/client/r0/rooms/{ROOM}/state/m.x/?future_timeout=", "PUT"),
    (f"/_matrix/client/v3/rooms/{ROOM}/redact/$e/1?future_timeout=10", "PUT"),
    (f"/_matrix/client/v3/rooms/{ROOM}/redact/$e/1?delay=-1", "PUT"),
    (f"/_matrix/client/api/v1/rooms/{ROOM}/send/m.x/1?delay=", "PUT"),
    # Not quite our paths, but a lenient homeserver might take them for its own.
    (f"/_matrix/client/v3/rooms/{ROOM}/%73end/m.x/1?delay=50", "PUT"),
    (f"/_matrix/client/v3/rooms/{ROOM}/send/m.x/1/?delay=50", "PUT"),
    (f"/_matrix/client/v3//rooms/{ROOM}/send/m.x/1?org.matrix.msc4140.delay=50", "PUT"),
    (f"/_matrix/client/v9/rooms/{ROOM}/send/m.x/1?future_timeout=50", "PUT"),
    (f"/_matrix/client/v3/rooms/{ROOM}/send/m.x/1/2?delay=50", "POST"),
    (f"{SEND}/m.x/1?a=%ff&delay=50", "PUT"),
    (f"{SEND}/m.x/1?a=1;delay=50", "PUT"),
]


async def test_what_asks_for_a_delay_is_never_passed_on(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for path, method in REFUSED:
            answer = await serving.client.request(method, path, headers=ANN, content=b"not even JSON")
            assert 400 <= answer.status_code < 500, path
            assert answer.json()["errcode"].startswith("M_"), path
            assert not serving.homeserver.got, path


BAD_BODIES: Final = [
    (b"", 400, "M_NOT_JSON"),
    (b"{", 400, "M_NOT_JSON"),
    (b"\xff\xfe", 400, "M_NOT_JSON"),
    (b"[]", 400, "M_BAD_JSON"),
    (b"7", 400, "M_BAD_JSON"),
    (b"{}", 400, "M_MISSING_PARAM"),
    (b'{"delay": 5}', 400, "M_MISSING_PARAM"),
    (b'{"content": {}}', 400, "M_MISSING_PARAM"),
    (b'{"delay": 5, "content": []}', 400, "M_BAD_JSON"),
    (b'{"delay": 5, "content": "x"}', 400, "M_BAD_JSON"),
    (b'{"delay": 5, "content": {"a": "\xff"}}', 400, "M_NOT_JSON"),
    (b'{"delay": 0, "content": {}}', 400, "M_INVALID_PARAM"),
    (b'{"delay": -1, "content": {}}', 400, "M_INVALID_PARAM"),
    (b'{"delay": 1.5, "content": {}}', 400, "M_BAD_JSON"),
    (b'{"delay": "10", "content": {}}', 400, "M_BAD_JSON"),
    (b'{"delay": true, "content": {}}', 400, "M_BAD_JSON"),
    (b'{"delay": 9223372036854775808, "content": {}}', 400, "M_MAX_DELAY_EXCEEDED"),
    (b'{"delay": 99999999999999999999999999999, "content": {}}', 400, "M_MAX_DELAY_EXCEEDED"),
    (b'{"delay_ms": 9223372036854775808, "content": {}}', 400, "M_DELAY_TOO_LARGE"),
    (b'{"delay": 5, "delay_ms": 6, "content": {}}', 400, "M_INVALID_PARAM"),
    (b'{"delay": 5, "state_key": 1, "content": {}}', 400, "M_BAD_JSON"),
    (b'{"delay": 5, "state_key": "\\ud800", "content": {}}', 400, "M_NOT_JSON"),
    (b'{"delay": 5, "state_key": "' + b"x" * 256 + b'", "content": {}}', 400, "M_INVALID_PARAM"),
    (b'{"delay": 5, "content": {"a": "' + b"x" * 65_536 + b'"}}', 413, "M_TOO_LARGE"),
    (b'{"delay": 5, "content": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}", 400, "M_NOT_JSON"),
    (b"x" * (1 << 21), 413, "M_TOO_LARGE"),
]


async def test_bad_bodies_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for raw, status, errcode in BAD_BODIES:
            for _ in range(2):
                # The first time the homeserver is asked whose token it is.
                answer = await put(serving, f"{OWN}/m.x/1", raw=raw)
                assert said(answer) == (status, errcode), raw[:80]
                assert answer.headers["access-control-allow-origin"] == "*"
            assert serving.engine.pending_of("@ann:example.org", "matrix/events") == 0, raw[:80]
        assert not serving.homeserver.got


async def test_content_that_is_long_only_as_it_is_written_fits(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        spread = b'{"delay": 99, "content": {' + b" " * 70_000 + b'"a": "' + b"x" * 60_000 + b'"}}'
        assert (await put(serving, f"{OWN}/m.x/1", raw=spread)).status_code == 200


BAD_PATHS: Final = [
    ("/_matrix/client/v3/rooms/room/delayed_event/m.x/1", "M_INVALID_PARAM"),
    ("/_matrix/client/v3/rooms//delayed_event/m.x/1", "M_INVALID_PARAM"),
    ("/_matrix/client/v3/rooms/!/delayed_event/m.x/1", "M_INVALID_PARAM"),
    (f"/_matrix/client/v3/rooms/!{'r' * 300}/delayed_event/m.x/1", "M_INVALID_PARAM"),
    (f"{OWN}/{'t' * 300}/1", "M_INVALID_PARAM"),
    (f"{OWN}//1", "M_INVALID_PARAM"),
    (f"{OWN}/%ff/1", "M_INVALID_PARAM"),
    ("/_matrix/client/v3/rooms/{}/delayed_event/{}/{}", "M_INVALID_PARAM"),
    ("/_matrix/client/v3/rooms/%7B%7D/delayed_event/m.x/1", "M_INVALID_PARAM"),
]


async def test_bad_paths_are_refused(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for path, errcode in BAD_PATHS:
            answer = await put(serving, path, {"delay": 5, "content": {}})
            assert said(answer) == (400, errcode), path
        assert not serving.homeserver.got


async def test_an_unknown_room_is_for_the_homeserver_to_refuse(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await serving.schedule(room="!nobody-knows-it:elsewhere", delay=60_000)


async def test_a_delay_that_is_too_long_is_told_in_each_dialect(tmp_path: Path) -> None:
    text = "The requested delay exceeds the allowed maximum."
    delay = {"delay": WEEK_MS + 1, "content": {}}
    delay_ms = {"delay_ms": WEEK_MS + 1, "content": {}}
    seed = {"errcode": "M_MAX_DELAY_EXCEEDED", "error": text, "max_delay": WEEK_MS}
    unstable = {
        "errcode": "M_UNKNOWN", "error": text,
        "org.matrix.msc4140.errcode": "M_MAX_DELAY_EXCEEDED", "org.matrix.msc4140.max_delay": WEEK_MS,
    }  # fmt: skip
    async with matrix_serving(tmp_path / "data") as serving:
        for path, body, expected in (
            (f"{OWN}/m.x/1", delay, seed),
            (f"{UNSTABLE_OWN}/m.x/1", delay, unstable),
            (f"{SEND}/m.x/1?org.matrix.msc4140.delay={WEEK_MS + 1}", {}, unstable),
            (f"{SEND}/m.x/1?delay={WEEK_MS + 1}", {}, seed),
            (f"{OWN}/m.x/1", delay_ms, {"errcode": "M_DELAY_TOO_LARGE", "error": text}),
            (f"{UNSTABLE_OWN}/m.x/1", delay_ms, {"errcode": "ORG.MATRIX.MSC4140_DELAY_TOO_LARGE", "error": text}),
        ):  # fmt: skip
            answer = await put(serving, path, body)
            assert (answer.status_code, answer.json()) == (400, expected), path


async def test_too_many_pending_events_are_told_in_each_dialect(tmp_path: Path) -> None:
    text = "The maximum number of delayed events has been reached."
    async with matrix_serving(tmp_path / "data", max_pending_per_user=2) as serving:
        await serving.schedule("a", delay=50_000)
        first = await serving.schedule("b", delay=40_000)
        answer = await put(serving, f"{OWN}/m.x/1", {"delay": 5, "content": {}})
        assert (answer.status_code, answer.json()) == (
            400,
            {"errcode": "M_MAX_DELAYED_EVENTS_EXCEEDED", "error": text},
        )
        answer = await put(serving, f"{SEND}/m.x/1?org.matrix.msc4140.delay=5", {})
        assert (answer.status_code, answer.json()) == (
            400,
            {"errcode": "M_UNKNOWN", "error": text, "org.matrix.msc4140.errcode": "M_MAX_DELAYED_EVENTS_EXCEEDED"},
        )  # fmt: skip
        answer = await put(serving, f"{OWN}/m.x/1", {"delay_ms": 5, "content": {}})
        assert said(answer) == (429, "M_LIMIT_EXCEEDED")
        # That of the next event that is due, rounded up.
        assert 1 <= int(answer.headers["retry-after"]) <= 40
        # Another user is not concerned, and there is room again when one has gone.
        await serving.schedule("c", token="bob-token")
        assert (await serving.act(first, "cancel")).status_code == 200
        await serving.schedule("d")


async def test_a_transaction_that_is_repeated_gets_the_same_answer(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        first = await serving.schedule("same")
        assert await serving.schedule("same", delay=70_000) == first
        assert await serving.schedule("other") != first
        assert await serving.schedule("same", token="bob-token") != first
        assert await serving.schedule("same", room="!elsewhere:example.org") != first
        again = await put(serving, f"{SEND}/m.room.message/same?delay=60000", {})
        assert again.json()["delay_id"] != first
        assert (await put(serving, f"{SEND}/m.room.message/same?delay=60000", {})).json() == again.json()
        # State has no transactions: each is an event of its own.
        state = f"/_matrix/client/v3/rooms/{ROOM}/state/m.s/k?delay=60000"
        assert (await put(serving, state)).json() != (await put(serving, state)).json()
        # One that was cancelled is not scheduled again by a late repetition.
        await serving.act(first, "cancel")
        assert await serving.schedule("same") == first
        assert first not in [
            one["delay_id"] for one in (await serving.listed(status="scheduled"))["scheduled"]
        ]


async def test_scheduling_needs_a_token_of_the_homeserver(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        body = {"delay": 60_000, "content": {}}
        assert said(await put(serving, f"{OWN}/m.x/1", body, headers={})) == (401, "M_MISSING_TOKEN")
        answer = await put(serving, f"{OWN}/m.x/1", body, headers=bearer("nobody"))
        assert said(answer) == (401, "M_UNKNOWN_TOKEN")
        assert answer.json()["soft_logout"] is False
        assert said(await put(serving, f"{OWN}/m.x/1", body, headers=bearer("a\tb"))) == (
            401,
            "M_UNKNOWN_TOKEN",
        )
        assert (
            await put(serving, f"{OWN}/m.x/1?access_token=ann-token", body, headers={})
        ).status_code == 200
        assert (await put(serving, f"{OWN}/m.x/2", body, headers=bearer("guest-token"))).status_code == 200


async def test_the_homeserver_is_asked_once_for_a_while_and_not_at_all_when_it_is_down(
    tmp_path: Path,
) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for txn in "abc":
            await serving.schedule(txn)
        assert serving.homeserver.whoami_asked == 1
        await serving.homeserver.stop()
        await serving.schedule("d")
        assert len((await serving.listed())["scheduled"]) == 4
        body = {"delay": 60_000, "content": {}}
        assert said(await put(serving, f"{OWN}/m.x/1", body, headers=bearer("bob-token"))) == (
            503,
            "M_UNKNOWN",
        )


async def test_a_token_that_was_logged_out_is_forgotten(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        body = {"delay": 60_000, "content": {}}
        # With a query it is asked about by itself.
        asked = [f"{OWN}/m.x/{number}{query}" for number, query in enumerate(("", "?device_id=ANN"))]
        for path in asked:
            assert (await put(serving, path, body)).status_code == 200
        del serving.homeserver.users["ann-token"]
        assert (await serving.client.post("/_matrix/client/v3/logout", headers=ANN)).status_code == 200
        for path in asked:
            assert said(await put(serving, path, body)) == (401, "M_UNKNOWN_TOKEN")


async def test_what_is_remembered_of_one_request_is_not_taken_for_another(tmp_path: Path) -> None:
    """All but the transaction and the content of a /send is read once; whatever differs is another one."""
    other = "!other:example.org"
    ways = [
        (room, type_, name, delay)
        for room in (ROOM, other)
        for type_ in ("m.x", "m.y")
        for name, delay in (("delay", 60_000), ("delay", 70_000), ("org.matrix.msc4140.delay", 60_000))
    ]
    async with matrix_serving(tmp_path / "data", schedule_per_second=0) as serving:
        asked = []
        for count in range(3):
            for number, (room, type_, name, delay) in enumerate(ways):
                path = f"/_matrix/client/v3/rooms/{quote(room)}/send/{type_}/t{count}-{number}?{name}={delay}"
                content = b'{"count":%d,"number":%d}' % (count, number)
                delay_id = (await put(serving, path, raw=content)).json()["delay_id"]
                asked.append((delay_id, (room, type_, None), delay, content))
        # Without a delay it is the homeserver's, and with a future's parameter it is a future.
        assert "event_id" in (await put(serving, f"{SEND}/m.x/u1")).json()
        assert "event_id" in (await put(serving, f"{SEND}/m.x/u2?other=60000")).json()
        assert "send_token" in (await put(serving, f"{SEND}/m.x/u3?future_timeout=60000")).json()
        for both in ("delay=60000", "future_timeout=60000"):
            refused = await put(serving, f"{SEND}/m.x/u4?delay=60000&{both}")
            assert said(refused) == (400, "M_INVALID_PARAM")
        assert said(await put(serving, f"{SEND}/m.x/u5?delay=60000", raw=b"[]")) == (400, "M_BAD_JSON")
        views = [await serving.engine.get(delay_id) for delay_id, *_ in asked]
        assert [(view.id, parse(view.destination), view.delay_ms, view.payload) for view in views] == asked


async def test_a_token_that_was_logged_out_is_refused_where_its_head_was_known(tmp_path: Path) -> None:
    """On one connection, with requests that differ in nothing but their transactions: the short way must ask each time."""
    async with matrix_serving(tmp_path / "data") as serving:
        for txn in range(3):
            assert (await put(serving, f"{SEND}/m.x/{txn}?delay=60000")).status_code == 200
        assert serving.homeserver.whoami_asked == 1
        assert (await serving.client.post("/_matrix/client/v3/logout", headers=ANN)).status_code == 200
        del serving.homeserver.users["ann-token"]
        assert said(await put(serving, f"{SEND}/m.x/3?delay=60000")) == (401, "M_UNKNOWN_TOKEN")


async def test_scheduling_is_limited_by_user(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", schedule_per_second=SELDOM) as serving:
        await serving.schedule("a")
        answer = await put(serving, f"{OWN}/m.x/1", {"delay": 60_000, "content": {}})
        assert said(answer) == (429, "M_LIMIT_EXCEEDED")
        retry_after_ms = answer.json()["retry_after_ms"]
        assert 0 < retry_after_ms <= 50_000
        assert int(answer.headers["retry-after"]) == -(-retry_after_ms // 1000)
        await serving.schedule("c", token="bob-token")


OWN_PATHS: Final = [
    f"{OWN}/m.x/1", f"{UNSTABLE_OWN}/m.x/1", f"{STABLE}/x/send", STABLE, f"{UNSTABLE}/x", UNSTABLE,
    "/_matrix/client/versions", "/_matrix/client/v3/capabilities", f"{SEND}/m.x/1?delay=5",
    "/_matrix/client/unstable/org.matrix.msc4486/delayed_events", "/_matrix/app/v1/transactions/1",
]  # fmt: skip


async def test_every_path_of_ours_answers_browsers_and_refuses_other_methods(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for path in OWN_PATHS:
            answer = await serving.client.options(path)
            assert answer.status_code == 204, path
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "Authorization" in answer.headers["access-control-allow-headers"]
            answer = await serving.client.delete(path)
            assert said(answer) == (405, "M_UNRECOGNIZED"), path
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "DELETE" not in answer.headers["allow"]
        assert not serving.homeserver.got


async def test_clients_are_told_what_is_served(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", stable=False) as serving:
        features = (await serving.client.get("/_matrix/client/versions")).json()["unstable_features"]
        assert features == {"org.example": True, "org.matrix.msc4140": True, "org.matrix.msc4486": True}
    async with matrix_serving(tmp_path / "data2") as serving:
        answer = (await serving.client.get("/_matrix/client/versions")).json()
        assert answer["versions"] == ["v1.11"]
        assert answer["unstable_features"]["org.matrix.msc4140.stable"] is True
        told = (await serving.client.get("/_matrix/client/v3/capabilities", headers=ANN)).json()[
            "capabilities"
        ]
        limits = {"max_delay_ms": WEEK_MS, "max_scheduled": 100}
        assert told["m.delayed_events"] == told["org.matrix.msc4140.delayed_events"] == limits
        assert told["m.change_password"] == {"enabled": True}


AGAIN: Final = [
    f"{SEND}/m.x/again?org.matrix.msc4140.delay=60000",
    f"{OWN}/m.x/again",
    f"{UNSTABLE_OWN}/m.x/again2",
    f"/_matrix/client/v3/rooms/{ROOM}/redact/$e/again?delay=60000",
]


async def test_a_repeated_transaction_is_answered_whatever_its_body(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", schedule_per_second=0.0) as serving:
        for path in AGAIN:
            body = {} if "delay=" in path else {"delay": 60_000, "content": {}}
            first = await put(serving, path, body)
            assert first.status_code == 200, path
            for raw in (b"", b"{", b'{"delay": 1, "content": {"another": true}}', b"[]"):
                again = await put(serving, path, raw=raw)
                if "/redact/" in path and raw in (b"{", b"[]"):
                    # It is read with the path, before anything is asked for.
                    assert again.status_code == 400
                else:
                    assert (again.status_code, again.json()) == (200, first.json()), (path, raw)
            # For one that is new, or of another device, that is still no event.
            fresh = path.replace("again", "fresh")
            if "/redact/" not in path:
                assert said(await put(serving, fresh, raw=b"")) == (400, "M_NOT_JSON"), path
                stranger = await put(serving, path, raw=b"", headers=bearer("bob-token"))
                assert said(stranger) == (400, "M_NOT_JSON"), path
        assert len((await serving.listed())["scheduled"]) == len(AGAIN)


async def test_a_repeated_future_is_answered_whatever_its_body(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        path = f"/_matrix/client/v3/rooms/{ROOM}/send_future/m.x/t?future_timeout=60000"
        first = await put(serving, path, {})
        again = await put(serving, path, raw=b"")
        assert (again.status_code, again.json()) == (200, first.json())
        assert said(await put(serving, path.replace("/t?", "/u?"), raw=b"")) == (400, "M_NOT_JSON")


@pytest.mark.parametrize("delay", [WEEK_MS + 1, 100 * 366 * 86_400_000 + 1, 10**19 - 1])
async def test_a_delay_that_is_too_long_is_told_the_longest_one(tmp_path: Path, delay: int) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        own = await put(serving, f"{OWN}/m.x/1", {"delay": delay, "content": {}})
        assert said(own) == (400, "M_MAX_DELAY_EXCEEDED")
        assert own.json()["max_delay"] == WEEK_MS
        query = await put(serving, f"{SEND}/m.x/2?org.matrix.msc4140.delay={delay}")
        assert query.json()["org.matrix.msc4140.max_delay"] == WEEK_MS
        future = f"/_matrix/client/v3/rooms/{ROOM}/send_future/m.x/t?future_timeout={delay}"
        assert str(WEEK_MS) in (await put(serving, future)).json()["error"]


# Who asks


async def test_an_application_service_speaks_for_the_user_it_names(tmp_path: Path) -> None:
    """Another service than ours, with one token for all of its users: whose event it is says `user_id`."""
    async with matrix_serving(tmp_path / "data") as serving:
        users = ["@bridge_a:example.org", "@bridge_b:example.org"]
        serving.homeserver.masquerades["bridge-token"] = {*users}
        headers = bearer("bridge-token")
        ids = {}
        for user in users:
            who = {"user_id": user, "org.matrix.msc4140.delay": "60000"}
            answers = [
                await serving.client.put(f"{SEND}/m.x/same", params=who, json={}, headers=headers)
                for _ in range(2)
            ]
            # The second one is answered from what is remembered.
            assert [answer.status_code for answer in answers] == [200, 200]
            assert answers[0].json() == answers[1].json()
            ids[user] = answers[0].json()["delay_id"]
        assert len(set(ids.values())) == 2
        for user in users:
            listed = await serving.client.get(STABLE, params={"user_id": user}, headers=headers)
            assert [one["delay_id"] for one in listed.json()["scheduled"]] == [ids[user]]
            assert (await serving.engine.get(ids[user])).owner == user
        stranger = {"user_id": "@stranger:example.org"}
        refused = await serving.client.get(STABLE, params=stranger, headers=headers)
        assert said(refused) == (403, "M_FORBIDDEN")
        assert (await serving.act(ids[users[0]], "send")).status_code == 200
        (sent,) = serving.homeserver.events
        assert sent.query["user_id"] == users[0]


async def test_a_transaction_id_belongs_to_a_device(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        serving.homeserver.users["ann-tablet"] = ("@ann:example.org", "ANNSTABLET")
        for path, body in (
            (f"{SEND}/m.x/same?delay=60000", {}),
            (f"{OWN}/m.x/same", {"delay": 60_000, "content": {}}),
        ):
            phone = [(await put(serving, path, body)).json()["delay_id"] for _ in range(2)]
            tablet = (await put(serving, path, body, headers=bearer("ann-tablet"))).json()["delay_id"]
            assert phone[0] == phone[1] != tablet
        assert len((await serving.listed())["scheduled"]) == 4
