"""Requests that are not about delayed events go to the homeserver and come back as they are; errors of the door's own have CORS."""

import asyncio
import os
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.conformance.matrix.conftest import Door
from tests.conformance.matrix.people import CLIENT, UNSTABLE, Person, fresh, schedule_path
from tests.conformance.matrix.synapse import Synapse

CORS = ("access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers")


async def test_proxy_media_goes_up_and_comes_down_byte_for_byte(alice: Person) -> None:
    data = os.urandom(3_000_000)
    headers = {"content-type": "application/octet-stream"}
    answer = await alice.done("POST", "/_matrix/media/v3/upload", content=data, headers=headers)
    server, _, media = answer["content_uri"].removeprefix("mxc://").partition("/")
    path = f"{CLIENT}/v1/media/download/{server}/{media}/a%20name.bin"
    response = await alice.ask("GET", path)
    assert (response.status_code, response.content) == (200, data)


async def test_proxy_an_upload_of_unknown_length_is_the_homeservers_to_judge(
    alice: Person, homeserver: Synapse
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 1000
            await asyncio.sleep(0.01)

    through = await alice.ask("POST", "/_matrix/media/v3/upload", content=chunks())
    direct = await alice.at(homeserver.url).ask("POST", "/_matrix/media/v3/upload", content=chunks())
    # Synapse wants a length, and it is Synapse that says so.
    assert (through.status_code, through.json()) == (direct.status_code, direct.json())


async def test_proxy_a_long_poll_waits_and_is_answered_when_something_comes(alice: Person, room: str) -> None:
    first = await alice.done("GET", f"{CLIENT}/v3/sync", params={"timeout": "0"})
    query = {"timeout": "20000", "since": first["next_batch"]}
    waiting = asyncio.create_task(alice.done("GET", f"{CLIENT}/v3/sync", params=query))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    began = time.monotonic()
    delay_id = await alice.delay(room)
    await alice.manage(delay_id, "send")
    answer = await waiting
    assert time.monotonic() - began < 15
    assert answer["rooms"]["join"][room]["timeline"]["events"]


async def test_proxy_answers_are_the_homeservers_own(alice: Person, homeserver: Synapse) -> None:
    for path in (
        f"{CLIENT}/v3/account/whoami",
        f"{CLIENT}/v3/profile/{alice.user_id}",
        f"{CLIENT}/v3/nothing/here",
        "/_matrix/media/v3/config",
        "/.well-known/matrix/client",
    ):
        ours, theirs = await alice.ask("GET", path), await alice.at(homeserver.url).ask("GET", path)
        assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content), path
        assert ours.headers.get("content-type") == theirs.headers.get("content-type")


async def test_proxy_serves_no_admin_api(alice: Person) -> None:
    for path in ("/_synapse/admin/v1/server_version", "/_synapse/metrics", "/"):
        assert (await alice.ask("GET", path)).status_code == 404


async def test_proxy_capabilities_are_the_homeservers_and_ours(alice: Person, homeserver: Synapse) -> None:
    ours = (await alice.done("GET", f"{CLIENT}/v3/capabilities"))["capabilities"]
    theirs = (await alice.at(homeserver.url).done("GET", f"{CLIENT}/v3/capabilities"))["capabilities"]
    own = {"m.delayed_events", "org.matrix.msc4140.delayed_events"}
    assert {name: ours[name] for name in theirs if name not in own} == {
        name: theirs[name] for name in theirs if name not in own
    }
    assert own <= set(ours)


@pytest.mark.parametrize(
    "path",
    [
        f"{CLIENT}/v3/rooms/!r:x/delayed_event/m.room.message/1",
        f"{UNSTABLE}/rooms/!r:x/delayed_event/m.room.message/1",
        f"{CLIENT}/v1/delayed_events",
        f"{CLIENT}/v1/delayed_events/x/send",
        f"{CLIENT}/v1/delayed_events/x",
        f"{UNSTABLE}/delayed_events",
        f"{UNSTABLE}/delayed_events/x",
        f"{UNSTABLE}/delayed_events/x/restart",
        f"{CLIENT}/v3/rooms/!r:x/send/m.room.message/1?org.matrix.msc4140.delay=1",
        f"{CLIENT}/v3/rooms/!r:x/state/m.room.message/1?org.matrix.msc4140.delay=1",
        f"{CLIENT}/versions",
    ],
)
async def test_proxy_preflights_and_errors_have_cors(door: Door, http: httpx.AsyncClient, path: str) -> None:
    preflight = await http.options(f"{door.url}{path}", headers={"origin": "https://app.example"})
    assert preflight.status_code in {200, 204}
    for name in CORS:
        assert preflight.headers[name]
    for method in ("PUT", "GET", "PATCH"):
        refused = await http.request(method, f"{door.url}{path}", headers={"origin": "https://app.example"})
        assert refused.headers["access-control-allow-origin"] == "*", (method, refused.status_code)
        if refused.status_code != 200:
            assert refused.json()["errcode"].startswith("M_")


async def test_proxy_tells_the_homeserver_whose_request_it_is(
    alice: Person, switched_door: Door, homeserver: Synapse
) -> None:
    """The homeserver is told the address of the connection; another one only by a proxy that is trusted."""
    forged, forwarded = "198.51.100.6", "198.51.100.7"
    whoami = f"{CLIENT}/v3/account/whoami"
    await alice.done("GET", whoami, headers={"x-forwarded-for": forged})
    # This door trusts proxies at 127.0.0.1.
    told = {"x-forwarded-for": f"{forged}, {forwarded}"}
    await alice.at(switched_door.url).done("GET", whoami, headers=told)
    answer = await alice.done("GET", f"{CLIENT}/v3/admin/whois/{alice.user_id}")
    sessions = [session for device in answer["devices"].values() for session in device["sessions"]]
    seen = {connection["ip"] for session in sessions for connection in session["connections"]}
    assert {"127.0.0.1", forwarded} <= seen
    assert forged not in seen


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"nonsense", 400),
        (b"[]", 400),
        (b'"text"', 400),
        (b"\xff\xfe", 400),
        (b'{"delay": 1000, "content": {"body": "' + b"x" * 65_536 + b'"}}', 413),
        (b'{"delay": 1000, "content": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
    ],
)
async def test_bad_input_bodies(alice: Person, room: str, body: bytes, status: int) -> None:
    response = await alice.ask("PUT", schedule_path(room), content=body)
    assert response.status_code == status, response.text
    code = response.json()["errcode"]
    assert code == "M_TOO_LARGE" if status == 413 else code.startswith("M_")
    assert (await alice.listed())["scheduled"] == []


async def test_bad_input_names(alice: Person, room: str) -> None:
    body = {"delay": 60_000, "content": {}}
    for path in (
        schedule_path(room, "t" * 300),
        schedule_path("not a room"),
        schedule_path("!" + "r" * 300 + ":x"),
        schedule_path("%00"),
    ):
        response = await alice.ask("PUT", path, body)
        assert response.status_code == 400, (path, response.text)
    response = await alice.ask("PUT", schedule_path(room), {**body, "state_key": "k" * 300})
    assert response.status_code == 400
    assert (await alice.listed())["scheduled"] == []


async def test_bad_input_tokens(alice: Person, room: str) -> None:
    for token, errcode in ((None, "M_MISSING_TOKEN"), ("nobody", "M_UNKNOWN_TOKEN")):
        response = await alice.ask("PUT", schedule_path(room), {"delay": 1, "content": {}}, token=token)
        assert (response.status_code, response.json()["errcode"]) == (401, errcode)
    # As Matrix still allows it: in the query.
    path = f"{schedule_path(room)}?access_token={alice.token}"
    assert (await alice.ask("PUT", path, {"delay": 60_000, "content": {}}, token=None)).status_code == 200


async def test_bad_input_methods(alice: Person, room: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        response = await alice.ask(method, schedule_path(room), {"delay": 1, "content": {}})
        assert (response.status_code, response.json()["errcode"]) == (405, "M_UNRECOGNIZED")
    response = await alice.ask("PUT", f"{CLIENT}/v1/delayed_events", {})
    assert response.status_code == 405


async def test_secrets_are_in_no_log(alice: Person, room: str, door: Door, http: httpx.AsyncClient) -> None:
    """Neither users' tokens nor delay ids are said anywhere."""
    delay_id = await alice.delay(room, ms=50)
    await alice.finalised(delay_id)
    cancelled = await alice.delay(room)
    await alice.manage(cancelled, "cancel")
    await alice.ask("GET", f"{CLIENT}/v1/delayed_events/{fresh('guess')}/send?access_token={alice.token}")
    said = door.server.said()
    metrics = (await http.get(f"{door.server.url}/metrics")).text
    for secret in (alice.token, delay_id, cancelled):
        assert secret not in said
        assert secret not in metrics
