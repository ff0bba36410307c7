"""Names of messages over HTTP, from the client and on the command line, through a real server."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest

from tarry import Client, Conflict, Invalid, Message, NotFound, Scheduled
from tarry.doors.http.messages.arrow import chunks_of, read_batches
from tests.processes import ServerProcess, running
from tests.serving import Serving, serving
from tests.unit.cli_kit import Shell

HOUR = {"destination": "orders", "delay": "1h", "name": "trial-42"}
ONE = "/v1/names/public/default/trial-42"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as server:
        yield server


async def post(served: Serving, **fields: Any) -> httpx.Response:
    return await served.client.post("/v1/messages", json={**HOUR, **fields})


async def test_schedule_keep_replace_and_fail(served: Serving) -> None:
    first = await post(served)
    assert first.status_code == 201
    assert {"name": "trial-42", "kept": False, "replaced": False}.items() <= first.json().items()
    kept = await post(served, on_conflict="keep", payload="other")
    assert (kept.status_code, kept.json()["id"], kept.json()["kept"]) == (200, first.json()["id"], True)
    refused = await post(served, on_conflict="fail")
    assert (refused.status_code, refused.json()["state"]) == (409, "named")
    assert "trial-42" in refused.json()["detail"]
    replaced = await post(served, on_conflict="replace", payload="new")
    assert (replaced.status_code, replaced.json()["replaced"]) == (201, True)
    shown = (await served.client.get(ONE)).json()
    assert (shown["id"], shown["payload"], shown["name"]) == (replaced.json()["id"], "new", "trial-42")
    old = (await served.client.get(f"/v1/messages/{first.json()['id']}")).json()
    assert (old["state"], old["name"]) == ("cancelled", None)


async def test_an_answer_without_a_name_is_as_it_was(served: Serving) -> None:
    answer = await served.client.post("/v1/messages", json={"destination": "orders", "delay": "1h"})
    assert {*answer.json()} == {"id", "due_at_ms", "due_at", "past_due"}


async def test_commands_by_name(served: Serving) -> None:
    id_ = (await post(served)).json()["id"]
    restarted = await served.client.post(ONE + "/restart", json={"delay": "2h"})
    assert (restarted.json()["id"], restarted.json()["delay_ms"]) == (id_, 7_200_000)
    cancelled = await served.client.post(ONE + "/cancel")
    assert (cancelled.json()["id"], cancelled.json()["state"]) == (id_, "cancelled")
    assert (await served.client.delete(ONE)).status_code == 409
    second = (await post(served)).json()
    sent = await served.client.post(ONE + "/send")
    assert (sent.status_code, sent.json()["id"]) == (200, second["id"])
    third = (await post(served, name="b")).json()
    gone = await served.client.delete("/v1/names/public/default/b")
    assert (gone.json()["id"], gone.json()["state"]) == (third["id"], "cancelled")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/names/public/default/nobody", 404),
        ("/v1/names/acme/shop/trial-42", 404),
        ("/v1/names/pub lic/default/trial-42", 400),
        ("/v1/names/public/default/a%0Ab", 400),
    ],
)
async def test_names_that_lead_nowhere(served: Serving, path: str, status: int) -> None:
    await post(served)
    assert (await served.client.get(path)).status_code == status


@pytest.mark.parametrize("name", ["a b", "ä?#%", "user:7@example.org", "..."])
async def test_names_with_characters_that_a_path_escapes(served: Serving, name: str) -> None:
    id_ = (await post(served, name=name)).json()["id"]
    found = await served.client.get(f"/v1/names/public/default/{quote(name, safe='')}")
    assert (found.json()["id"], found.json()["name"]) == (id_, name)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "é" * 128}, "name"),
        ({"name": None, "on_conflict": "keep"}, "on_conflict"),
        ({"on_conflict": "overwrite"}, "on_conflict"),
        ({"on_conflict": "replace", "group": "g"}, "on_conflict"),
    ],
)
async def test_bad_requests_name_their_field(served: Serving, fields: dict[str, Any], field: str) -> None:
    refused = await post(served, **fields)
    assert (refused.status_code, refused.json()["field"]) == (400, field)


async def test_a_name_is_no_credential(tmp_path: Path) -> None:
    tokens = [
        {"name": "shop", "token": "shop-token-16-bytes", "roles": ["produce"], "namespaces": ["acme/shop"]},
        {"name": "reader", "token": "read-token-16-bytes", "roles": ["consume"], "namespaces": ["acme/shop"]},
        {
            "name": "other",
            "token": "other-token-16-byte",
            "roles": ["produce", "consume"],
            "namespaces": ["acme/b"],
        },
    ]
    path = "/v1/names/acme/shop/trial-42"
    async with serving(tmp_path / "data", tokens=tokens) as served:

        def bearer(token: str) -> dict[str, str]:
            return {"authorization": f"Bearer {token}"}

        mine = {**HOUR, "destination": "acme/shop/orders"}
        shop = bearer("shop-token-16-bytes")
        assert (await served.client.post("/v1/messages", json=mine, headers=shop)).status_code == 201
        for token, status in (("shop", 200), ("read", 403), ("other", 403)):
            name = next(one["token"] for one in tokens if str(one["token"]).startswith(token))
            answer = await served.client.get(path, headers=bearer(str(name)))
            assert answer.status_code == status, token
            if status == 403:
                for act in ("/cancel", "/send", "/restart"):
                    assert (
                        await served.client.post(path + act, headers=bearer(str(name)))
                    ).status_code == 403
        # Neither may a stranger learn of it by taking its place.
        stranger = bearer("other-token-16-byte")
        taken = {**mine, "on_conflict": "keep"}
        assert (await served.client.post("/v1/messages", json=taken, headers=stranger)).status_code == 403
        line = json.dumps(taken)
        headers = {**stranger, "content-type": "application/x-ndjson"}
        answer = await served.client.post("/v1/messages/batch", content=line, headers=headers)
        assert answer.json()["error"]["status"] == 403


async def test_lines_have_names(served: Serving) -> None:
    lines = [
        {**HOUR, "payload": "1"},
        {"destination": "orders", "delay": "1h"},
        {**HOUR, "payload": "2", "on_conflict": "replace"},
        HOUR,
        {"destination": "orders", "delay": "1h", "on_conflict": "keep"},
    ]
    body = "\n".join(map(json.dumps, lines))
    headers = {"content-type": "application/x-ndjson"}
    answer = await served.client.post("/v1/messages/batch", content=body, headers=headers)
    first, plain, second, third, bad = map(json.loads, answer.text.splitlines())
    assert (first["name"], first["replaced"], second["replaced"]) == ("trial-42", False, True)
    assert "name" not in plain
    assert (third["error"]["state"], third["line"], bad["error"]["field"]) == ("named", 4, "on_conflict")
    assert (await served.client.get(ONE)).json()["payload"] == "2"


def stream(**columns: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


async def scheduled(served: Serving, body: bytes) -> list[dict[str, Any]]:
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    answer = await served.client.post(
        "/v1/messages/batch?destination=orders&owner=ann&delay_ms=3600000", content=body, headers=headers
    )
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    return rows


async def test_rows_of_arrow_have_names(served: Serving) -> None:
    body = stream(
        name=["trial-42", None, "trial-42", "trial-42", "trial-42", "a/b", None, "odd"],
        on_conflict=[None, None, "replace", "keep", "fail", None, "keep", "overwrite"],
        payload=[b"1", b"\xff", b"2", b"3", b"4", b"5", b"6", b"7"],
        delay_ms=[None, None, 7_200_000, None, None, None, None, None],
        key=["k", None, None, None, None, None, None, None],
        headers=pa.array([[("h", "v")], *[None] * 7], pa.map_(pa.string(), pa.string())),
    )
    first, plain, second, kept, refused, bad, lone, odd = await scheduled(served, body)
    assert kept["id"] == second["id"] != first["id"]
    problems = [json.loads(row["error"]) for row in (refused, bad, lone, odd)]
    assert [problem.get("state", problem.get("field")) for problem in problems] == [
        "named",
        "name",
        "on_conflict",
        "on_conflict",
    ]
    old = (await served.client.get(f"/v1/messages/{first['id']}")).json()
    assert (old["state"], old["owner"], old["key"]) == ("cancelled", "ann", "k")
    shown = (await served.client.get(ONE)).json()
    assert (shown["id"], shown["payload"], shown["delay_ms"]) == (second["id"], "2", 7_200_000)
    assert shown["due_at_ms"] == second["due_at_ms"]
    assert (await served.client.get(f"/v1/messages/{plain['id']}")).json()["payload_base64"] == "/w=="


async def test_a_stream_of_names_alone_is_taken_in_pieces_that_hold_nothing_up(served: Serving) -> None:
    body = stream(name=[f"n-{n}" for n in range(1_100)])
    assert [chunk.num_rows for chunk in chunks_of(read_batches(body))] == [1_024, 76]
    rows = await scheduled(served, body)
    assert [row["error"] for row in rows] == [None] * 1_100
    assert (await served.client.get("/v1/names/public/default/n-1099")).json()["id"] == rows[-1]["id"]


# The client, and the command line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("names") / "data") as started:
        yield started


def test_the_client_finds_and_commands_by_name(server: ServerProcess) -> None:
    with Client(server.url) as client:
        first = client.schedule("orders", "1", delay="1h", name="order:17")
        assert (first.name, first.kept, first.replaced, first.repeated) == ("order:17", False, False, False)
        kept = client.schedule("orders", "2", delay="1h", name="order:17", on_conflict="keep")
        assert (kept.id, kept.kept, kept.repeated) == (first.id, True, False)
        with pytest.raises(Conflict) as refused:
            client.schedule("orders", "2", delay="1h", name="order:17")
        assert refused.value.state == "named"
        second = client.schedule("orders", "2", delay="1h", name="order:17", on_conflict="replace")
        assert second.replaced
        assert client.get(name="order:17").payload == b"2"
        assert client.restart(name="order:17", namespace="public/default", delay="2h").delay_ms == 7_200_000
        assert client.send(name="order:17").id == second.id
        hook = client.schedule("acme/shop/orders", delay="1h", name="a b?")
        assert client.cancel(name="a b?", namespace="acme/shop").id == hook.id
        with pytest.raises(NotFound):
            client.get(name="a b?")
        many = [Message(destination="orders", delay="1h", name="m", on_conflict="replace") for _ in range(3)]
        outcomes = list(client.schedule_many(many))
        assert [one.replaced for one in outcomes if isinstance(one, Scheduled)] == [False, True, True]
        for bad in ({}, {"id": "x", "name": "y"}, {"id": "x", "namespace": "a/b"}):
            with pytest.raises(Invalid):
                client.get(**bad)


def test_the_command_line(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tarry = Shell(monkeypatch, capsys)
    tarry.set("TARRY_URL", server.url)
    id_ = tarry("schedule", "cli", "1", "--in", "1h", "--name", "n").out.strip()
    assert tarry("schedule", "cli", "2", "--in", "1h", "--name", "n").code == 4
    kept = tarry("schedule", "cli", "2", "--in", "1h", "--name", "n", "--on-conflict", "keep")
    assert (kept.out.strip(), "is scheduled already: nothing new" in kept.err) == (id_, True)
    replaced = tarry("schedule", "cli", "2", "--in", "1h", "--name", "n", "--on-conflict", "replace")
    assert "replaces the message of this name" in replaced.err
    (view,) = tarry("show", "--name", "n", "--json").json()
    assert (view["id"], view["payload"], view["name"]) == (replaced.out.strip(), "2", "n")
    assert tarry("restart", "--name", "n", "--in", "2h").code == 0
    assert tarry("cancel", "--name", "n", "--namespace", "public/default").out.split()[1] == "cancelled"
    assert tarry("show", "--name", "nobody").code == tarry("show", "0" * 32).code
    for wrong in (
        ("show",),
        ("cancel",),
        ("show", "x", "--name", "n"),
        ("cancel", "x", "--namespace", "a/b"),
    ):
        assert tarry(*wrong).code == 2
