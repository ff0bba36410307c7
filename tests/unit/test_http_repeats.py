"""Repeats over the native API, its client and the command line."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app
from tarry.client import AsyncClient
from tarry.client.shapes import Received
from tarry.core.errors import Conflict, Invalid, NotFound
from tests.serving import Serving, serving

PATH = "/v1/repeats/public/default/tick"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as served:
        yield served


async def test_a_repeat_is_set_shown_paused_resumed_and_removed(served: Serving) -> None:
    asked = {
        "destination": "orders",
        "payload_json": {"a": 1},
        "cron": "30 8 * * *",
        "zone": "Europe/Berlin",
        "count": 3,
    }
    answer = await served.client.put(PATH, json=asked)
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["name"], shown["namespace"], shown["state"], shown["made"]) == (
        "tick",
        "public/default",
        "active",
        0,
    )
    assert (shown["cron"], shown["zone"], shown["every_ms"], shown["missed"]) == (
        "30 8 * * *",
        "Europe/Berlin",
        None,
        "latest",
    )
    assert json.loads(shown["payload"]) == {"a": 1}
    assert shown["headers"] == {"content-type": "application/json"}
    assert len(shown["next_due_at"]) == 3
    assert shown["next_due_at_ms"][1] - shown["next_due_at_ms"][0] in (
        23 * 3_600_000,
        24 * 3_600_000,
        25 * 3_600_000,
    )
    # The same again changes nothing, which is why a client may repeat it.
    assert (await served.client.put(PATH, json=asked)).json() == shown
    assert (await served.client.get(PATH)).json() == shown
    assert (await served.client.post(PATH + "/pause")).json()["state"] == "paused"
    assert (await served.client.post(PATH + "/resume")).json()["state"] == "active"
    assert (await served.client.delete(PATH)).status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")):
        assert (await served.client.request(method, PATH + path)).status_code == 404


async def test_every_form_of_a_time(served: Serving) -> None:
    asked = {
        "destination": "orders", "every": "1h30m", "jitter": "2s", "start_at": "2031-05-04T09:30:00Z",
        "end_at": "2031-05-05T09:30:00Z",
    }  # fmt: skip
    shown = (await served.client.put(PATH, json=asked)).json()
    assert (shown["every_ms"], shown["jitter_ms"], shown["zone"]) == (5_400_000, 2_000, None)
    assert shown["next_due_at"][0].startswith("2031-05-04T09:30:0")
    in_ms = {
        "destination": "orders", "every_ms": 5_400_000, "jitter_ms": 2_000, "start_at_ms": shown["start_at_ms"],
        "end_at_ms": shown["end_at_ms"],
    }  # fmt: skip
    assert (await served.client.put(PATH, json=in_ms)).json() == shown


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"every": None}, 400, "give an interval or cron"),
        ({"every": "0s"}, 400, "not between"),
        ({"every_ms": 1}, 400, "not both"),
        ({"every": "soon"}, 400, "is not a duration"),
        ({"cron": "* * * *", "every": None}, 400, "30 8 * * mon-fri"),
        ({"cron": "* * * * *", "every": None, "zone": "Europe/Berlinn"}, 400, "did you mean Europe/Berlin?"),
        ({"missed": "some"}, 400, "missed"),
        ({"colour": 1}, 400, "colour"),
        ({"payload": "x" * 70_000}, 413, "payload"),
        ({"destination": "https:/x"}, 400, "destination"),
    ],
)
async def test_bad_requests_name_the_field(
    served: Serving, change: dict[str, Any], status: int, words: str
) -> None:
    asked = {"destination": "orders", "every": "1h"} | change
    answer = await served.client.put(
        PATH, json={name: value for name, value in asked.items() if value is not None}
    )
    assert (answer.status_code, words in answer.text) == (status, True), answer.text


async def test_the_client_has_it_all(served: Serving) -> None:
    async with AsyncClient(served.url) as client:
        made = await client.set_repeat(
            "tick", "orders", b"\xff", every=timedelta(milliseconds=200), count=3, headers={"a": "b"}
        )
        assert (made.every_ms, made.payload, made.state) == (200, b"\xff", "active")
        entries: list[Received] = []
        await client.subscribe("orders", "sub", start="earliest")
        while len(entries) < 3:
            entries += await client.receive("orders", "sub", wait_ms=5_000)
        instants = [datetime.fromisoformat(one.headers["tarry-occurrence"]) for one in entries]
        assert [(later - earlier).total_seconds() for earlier, later in pairwise(instants)] == [0.2, 0.2]
        assert all(
            one.published_at_ms >= at.timestamp() * 1000 for one, at in zip(entries, instants, strict=True)
        )
        assert (await client.get_repeat("tick")).state == "over"
        with pytest.raises(Conflict):
            await client.pause_repeat("tick")
        later = await client.set_repeat(
            "later",
            "orders",
            cron="@daily",
            start_at=datetime(2031, 1, 1, tzinfo=UTC),
            namespace="public/default",
        )
        assert later.start_at_ms == later.next_due_at_ms[0] == 1_924_992_000_000
        page = await client.repeats_page(namespace="public/default", limit=1)
        rest = await client.repeats_page(namespace="public/default", page=page.next_page)
        assert [one.name for one in (*page.repeats, *rest.repeats)] == ["later", "tick"]
        assert page.repeats[0].payload == b""
        assert (await client.pause_repeat("later")).state == "paused"
        assert (await client.resume_repeat("later")).state == "active"
        await client.remove_repeat("later")
        with pytest.raises(NotFound):
            await client.get_repeat("later")
        with pytest.raises(Invalid, match="zone"):
            await client.set_repeat("naive", "orders", every="1h", start_at=datetime(2031, 1, 1))  # noqa: DTZ001 - naive on purpose


async def test_a_payload_that_is_no_text_is_shown_in_base64(served: Serving) -> None:
    asked = {"destination": "orders", "payload_base64": base64.b64encode(b"\xff").decode(), "every": "1h"}
    assert (await served.client.put(PATH, json=asked)).json()["payload_base64"] == "/w=="


async def test_the_command_line(served: Serving) -> None:
    def run(*args: str) -> str:
        result = CliRunner().invoke(app, ["repeat", *args, "--url", served.url])
        assert result.exit_code == 0, result.output
        return result.stdout

    async def tarry(*args: str) -> str:
        return await asyncio.to_thread(run, *args)

    none = await asyncio.to_thread(CliRunner().invoke, app, ["repeat", "list", "--url", served.url])
    assert (none.stdout, none.stderr) == ("", "no repeats\n")
    said = await tarry(
        "set", "standup", "hello", "good morning", "--cron", "30 8 * * mon-fri", "--zone", "Europe/Berlin"
    )
    assert "30 8 * * mon-fri Europe/Berlin  active" in said
    assert said.count("\n") == 8
    # As the clocks of its zone show them.
    assert len(re.findall(r"T08:30:00\+0[12]:00  in ", said)) == 5
    await tarry(
        "set",
        "often",
        "hello",
        "--every",
        "90s",
        "--end",
        "2099-01-01T00:00:00Z",
        "--count",
        "5",
        "--jitter",
        "1s",
    )
    listed = await tarry("list")
    assert "standup" in listed
    assert "every 1 min 30 s" in listed
    assert json.loads((await tarry("list", "--json")).splitlines()[0])["name"] == "often"
    assert "paused" in await tarry("pause", "often")
    assert "active" in await tarry("resume", "often")
    assert json.loads(await tarry("show", "often", "--json"))["count"] == 5
    await tarry("remove", "often")
    refused = await asyncio.to_thread(
        CliRunner().invoke, app, ["repeat", "set", "x", "hello", "--url", served.url]
    )
    assert refused.exit_code == 2
    assert "--every" in refused.output
