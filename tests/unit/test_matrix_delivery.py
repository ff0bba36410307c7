"""Delivery to the homeserver: as whom, in which order, and what each answer of it leads to."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Delivered, Delivery, Refused, Retry
from tarry.core.time.clock import SystemClock
from tarry.outlets.matrix import Homeserver, HomeserverSettings, MatrixOutlet
from tarry.outlets.matrix.destination import Destination, parse
from tarry.outlets.matrix.lines import LineAnswer
from tarry.outlets.matrix.outlet import transaction_of
from tarry.outlets.matrix.verdict import LONGEST_WAIT_MS, of_answer, wait_ms
from tests.unit.matrix_kit import AS_TOKEN, ROOM, Sent, bearer, error, matrix_serving, until_state
from tests.waiting import until

ANN = bearer("ann-token")


@pytest.mark.parametrize(
    "destination",
    [
        Destination("!r:x", "m.t"),
        Destination("!r:x", "m.t", ""),
        Destination("!r:x", "m.t", "a/b%2F🦉 \n?#"),
        Destination("!" + "ü" * 100, "t/t"),
    ],
)
def test_a_destination_is_read_back_as_it_was(destination: Destination) -> None:
    assert parse(str(destination)) == destination
    assert str(destination).isascii()


@pytest.mark.parametrize("text", ["matrix://", "matrix://!r", "matrix:///t", "matrix://r/t", "matrix://!r/", "matrix://!r/t/k/x", "http://!r/t", "matrix://%ff/t"])  # fmt: skip
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse(text)


NOW_MS = 784_111_777_000  # Sun, 06 Nov 1994 08:49:37 GMT


def answer(
    status: int, body: bytes = b'{"errcode": "M_X", "error": "no"}', retry_after: str | None = None
) -> Any:
    return of_answer(LineAnswer(status, body, retry_after), attempt=1, now_ms=NOW_MS)


def test_what_an_answer_means() -> None:
    assert answer(200, b'{"event_id": "$e"}') == Delivered("$e")
    assert answer(200, b"oddly nothing") == Delivered(None)
    for status in (400, 403, 404, 413):
        verdict = answer(status)
        assert isinstance(verdict, Refused)
        assert verdict.error == f'{{"status":{status},"body":{{"errcode":"M_X","error":"no"}}}}'
    # The homeserver is away: that never makes an event fail. An error of its own may, in the end.
    for status, counted in ((401, False), (502, False), (503, False), (504, False), (500, True)):
        verdict = answer(status)
        assert isinstance(verdict, Retry)
        assert (verdict.counted, verdict.error) == (counted, None)
    limited = answer(429, b'{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1234}')
    assert (limited.after_ms, limited.counted) == (1234, False)
    assert limited.error is not None
    assert answer(429, b"{}").after_ms == wait_ms(1)
    assert "M_UNKNOWN" in answer(403, b"<html>").error
    assert "secret" not in answer(403, b'{"errcode": "M_X", "error": "' + b"secret" * 1000 + b'"}').error
    assert [wait_ms(attempt) for attempt in (1, 2, 3, 4, 40)] == [250, 500, 1000, 2000, LONGEST_WAIT_MS]


@pytest.mark.parametrize(
    ("status", "uncertain"), [(429, False), (503, False), (401, False), (500, True), (502, True), (504, True)]
)
def test_what_may_have_been_sent_is_uncertain(status: int, uncertain: bool) -> None:
    """Then nobody can promise that it was cancelled (R11)."""
    assert answer(status).uncertain is uncertain
    repeated = of_answer(LineAnswer(status, b"{}", asked_before=True), attempt=1, now_ms=NOW_MS)
    assert isinstance(repeated, Retry)
    assert repeated.uncertain


LIMITED = b'{"errcode": "M_LIMIT_EXCEEDED", "error": "slowly"}'


@pytest.mark.parametrize(
    ("body", "header", "after_ms"),
    [
        (LIMITED, "7", 7_000),
        (LIMITED, "Sun, 06 Nov 1994 08:49:47 GMT", 10_000),
        (b"<html>", "7", 7_000),
        # The body says it to the millisecond.
        (b'{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 1234}', "2", 1234),
        (b'{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 86400000}', "2", 3_600_000),
        (LIMITED, "99999999", 3_600_000),
        (LIMITED, "0", wait_ms(1)),
        (LIMITED, "soon", wait_ms(1)),
    ],
)
def test_a_homeserver_that_limits_says_when_to_come_again_in_its_body_or_its_header(
    body: bytes, header: str, after_ms: int
) -> None:
    limited = answer(429, body, header)
    assert limited.after_ms == after_ms
    told = msgspec.json.decode(limited.error)["body"]
    assert told.get("retry_after_ms") == (None if after_ms == wait_ms(1) else after_ms)


async def test_a_limit_in_a_header_alone_is_obeyed_and_told(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        limits = [
            web.json_response({"errcode": "M_LIMIT_EXCEEDED"}, status=429, headers={"Retry-After": "1"})
        ]
        serving.homeserver.answers.append(
            lambda sent: limits.pop() if limits and "/send/" in sent.path else None
        )
        delay_id = await serving.schedule()
        told = await serving.act(delay_id, "send")
        assert (told.status_code, told.json()["retry_after_ms"]) == (429, 1000)
        assert told.headers["retry-after"] == "1"
        first, second = await serving.arrived(2)
        assert second.at - first.at >= 1.0
        await until_state(serving, delay_id, "sent")


async def test_only_the_matrix_door_sends_as_a_user(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        forged = {
            "destination": f"matrix://{ROOM}/m.x",
            "payload": "{}",
            "owner": "@ann:example.org",
            "delay_ms": 1,
        }
        accepted = await serving.native.post("/v1/messages", json=forged)
        assert accepted.status_code == 201
        await until_state(serving, accepted.json()["id"], "failed")
        assert not serving.homeserver.got


async def test_the_device_is_named_until_it_is_gone_and_a_deactivated_user_sends_nothing(
    tmp_path: Path,
) -> None:
    async with matrix_serving(tmp_path / "data") as serving:

        def unknown(sent: Sent) -> Any:
            return error(400, "M_UNKNOWN_DEVICE") if "device_id" in sent.query else None

        serving.homeserver.answers.append(unknown)
        first = await serving.schedule("a", delay=1)
        await until_state(serving, first, "sent")
        one, two = serving.homeserver.events
        assert one.query["device_id"] == "ANNSPHONE"
        assert "device_id" not in two.query
        assert one.path == two.path
        serving.homeserver.deactivated.add("@ann:example.org")
        second = await serving.schedule("b", delay=1)
        await until_state(serving, second, "failed")
        assert len(serving.homeserver.events) == 3
        (ended, _) = (await serving.listed(status="finalised"))["finalised"]
        assert ended["error"]["errcode"] == "M_USER_DEACTIVATED"


async def test_sticky_events_stay_sticky(tmp_path: Path) -> None:
    name = "org.matrix.msc4354.sticky_duration_ms"
    async with matrix_serving(tmp_path / "data") as serving:
        path = f"/_matrix/client/v3/rooms/{ROOM}/send/m.x/1?org.matrix.msc4140.delay=1&{name}=3600000"
        await serving.client.put(path, json={}, headers=ANN)
        path = f"/_matrix/client/v3/rooms/{ROOM}/delayed_event/m.x/2"
        await serving.client.put(path, json={"delay": 1, "content": {}, name: 7}, headers=ANN)
        await serving.client.put(f"{path}3?{name}=8", json={"delay": 1, "content": {}}, headers=ANN)
        sent = await serving.arrived(3)
        assert [one.query[name] for one in sent] == ["3600000", "7", "8"]


async def test_in_order_within_a_room_and_side_by_side_between_rooms(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", send_per_second=0.0, schedule_per_second=0.0) as serving:
        under_way: dict[str, int] = {}
        most: dict[str, int] = {}
        together = 0
        opened = asyncio.Event()

        async def slowly(request: web.Request) -> web.StreamResponse:
            nonlocal together
            if request.method != "PUT":
                return await serve(request)
            room = request.path.split("/")[5]
            under_way[room] = under_way.get(room, 0) + 1
            most[room] = max(most.get(room, 0), under_way[room])
            together = max(together, sum(under_way.values()))
            await opened.wait()
            under_way[room] -= 1
            return await serve(request)

        serve = serving.homeserver._serve
        serving.homeserver.serve = slowly
        for number in range(24):
            await serving.schedule(f"{number:02}", delay=1, room=f"!room{number % 3}:example.org")
        # All are due by now, and one of each room is on its way.
        await until(lambda: together == 3 and serving.engine.stats().sending == 24)
        opened.set()
        sent = await serving.arrived(24)
        assert most == {f"!room{number}:example.org": 1 for number in range(3)}
        assert together == 3
        for room in most:
            bodies = [one.json["body"] for one in sent if room in one.path]
            assert bodies == sorted(bodies)


async def test_while_the_homeserver_is_down_events_wait_and_then_go_out_once(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await serving.listed()
        await serving.homeserver.stop()
        ids = [await serving.schedule(txn, delay=1) for txn in "ab"]
        await until(lambda: serving.engine.stats().counters.get("retried", 0) >= 1)
        await serving.homeserver.start()
        for delay_id in ids:
            await until_state(serving, delay_id, "sent")
        assert [one.json["body"] for one in serving.homeserver.events] == ["a", "b"]


async def test_a_limit_at_the_due_time_means_later(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", send_per_second=20.0, schedule_per_second=0.0) as serving:
        for number in range(30):
            await serving.schedule(f"{number}", delay=1, room=f"!{number}:example.org")
        sent = await serving.arrived(30)
        assert sent[-1].at - sent[0].at > 0.3


async def test_a_lost_answer_is_asked_for_again_under_the_same_transaction(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        lost = [True]

        def drop(sent: Sent) -> Any:
            if lost and "/send/" in sent.path:
                lost.clear()
                raise ConnectionResetError
            return None

        serving.homeserver.answers.append(drop)
        delay_id = await serving.schedule(delay=1)
        await until_state(serving, delay_id, "sent")
        one, two = serving.homeserver.events
        assert one.path == two.path
        assert one.path.endswith(transaction_of(delay_id))


async def test_secrets_are_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with matrix_serving(tmp_path / "data") as serving:
        ids = [
            await serving.schedule(txn, delay=delay)
            for txn, delay in (("a", 1), ("b", 60_000), ("c", 60_000))
        ]
        await serving.act(ids[1], "send")
        await serving.homeserver.stop()
        await serving.act(ids[2], "send")
        await serving.client.get("/_matrix/client/v3/sync?access_token=ann-token")
        await until(lambda: serving.engine.stats().counters.get("retried", 0) >= 1)
    # The test's own client says what it asks for.
    said = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    assert said
    for secret in ("ann-token", AS_TOKEN, *ids):
        assert not [line for line in said if secret in line]


async def test_no_token_is_kept_anywhere(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await serving.schedule("a", delay=1)
        await serving.schedule("b")
        await serving.arrived()
    for file in (tmp_path / "data").rglob("*"):
        if file.is_file():
            kept = file.read_bytes()
            assert b"ann-token" not in kept, file
            assert AS_TOKEN.encode() not in kept, file


async def test_a_homeserver_that_never_answers_is_given_up_and_asked_again() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass
        writer.close()
        await writer.wait_closed()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    homeserver = Homeserver(HomeserverSettings(url=f"http://127.0.0.1:{port}", as_token="x", timeout_ms=100))
    delivery = Delivery("id", f"matrix://{ROOM}/m.x", b"{}", {}, ROOM, "@ann:example.org", 1, 1, 1, "matrix")
    try:
        verdict = await MatrixOutlet(homeserver, SystemClock()).send(delivery)
        assert isinstance(verdict, Retry)
        assert verdict.uncertain
        assert not verdict.counted
    finally:
        await homeserver.close()
        await asyncio.wait_for(left.wait(), 20)
        server.close()
    verdict = await MatrixOutlet(homeserver, SystemClock()).send(delivery)
    assert isinstance(verdict, Retry)


async def test_what_is_due_soon_finds_its_connections_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.serve.composition.matrix.SOON_MS", 120_000)
    async with matrix_serving(tmp_path / "data", schedule_per_second=0) as serving:
        for n in range(20):
            await serving.schedule(f"t{n}", delay=60_000, room=f"!r{n}:example.org")
        # Nothing was sent, and there is a connection for each.
        await until(lambda: serving.homeserver.connections >= 20)
        assert not serving.homeserver.events


async def test_an_event_that_was_taken_before_the_connection_ended_cannot_be_cancelled(
    tmp_path: Path,
) -> None:
    """The homeserver has the event, dies before it says so, and is away when the same is asked again at once."""
    async with matrix_serving(tmp_path / "data") as serving:
        # A connection that is kept.
        assert (await serving.act(await serving.schedule("first"), "send")).status_code == 200
        serve = serving.homeserver.serve
        taken = asyncio.Event()

        async def die(request: web.Request) -> web.StreamResponse:
            answer = await serve(request)
            if "/send/" not in request.path:
                return answer
            if taken.is_set():
                return error(429, "M_LIMIT_EXCEEDED", retry_after_ms=60_000)
            taken.set()
            assert request.transport is not None
            request.transport.abort()
            return answer

        serving.homeserver.serve = die
        delay_id = await serving.schedule("second")
        assert (await serving.act(delay_id, "send")).status_code == 429
        assert len(serving.homeserver.events) == 3
        assert (await serving.act(delay_id, "cancel")).status_code == 404
        assert (await serving.engine.get(delay_id)).state == "scheduled"
