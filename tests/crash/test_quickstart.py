"""The promise of the first page: schedule, SIGKILL, start again, and it arrives once, on time, not a millisecond early."""

import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.books import now_ms
from tests.processes import ServerProcess

TOPIC = "/v1/topics/public/default/hello"


def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request, as curl would make it."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None
    finally:
        connection.close()


def wait_until(at_ms: int) -> None:
    while (left_ms := at_ms - now_ms()) > 0:
        time.sleep(left_ms / 1000)


@pytest.mark.crash
@pytest.mark.parametrize("down", ["until it is overdue", "for a moment"])
def test_a_message_survives_a_kill_and_arrives_once_and_not_early(tmp_path: Path, down: str) -> None:
    with ServerProcess(tmp_path / "data") as server:
        server.start()
        delay = "1s" if down == "until it is overdue" else "8s"
        status, scheduled = ask(
            server.url, "POST", "/v1/messages",
            {"destination": "persistent://public/default/hello", "payload": "good morning", "delay": delay},
        )  # fmt: skip
        assert status == 201, scheduled
        due_at_ms = scheduled["due_at_ms"]
        server.kill()
        if down == "until it is overdue":
            wait_until(due_at_ms + 1)
        server.start()
        ready_at_ms = now_ms()

        status, _ = ask(server.url, "PUT", f"{TOPIC}/subscriptions/me", {"start": "earliest"})
        assert status == 200
        entries: list[Any] = []
        while not entries:
            asked = {"wait_ms": 10_000}
            status, received = ask(server.url, "POST", f"{TOPIC}/subscriptions/me/receive", asked)
            assert status == 200, received
            entries += received["messages"]
        received_at_ms = now_ms()
        assert [entry["payload"] for entry in entries] == ["good morning"]
        assert entries[0]["due_at_ms"] == due_at_ms
        assert entries[0]["published_at_ms"] >= due_at_ms
        assert received_at_ms >= due_at_ms
        # On time: as soon as it is due, or else as soon as there is a server. Generous, for a busy machine.
        assert entries[0]["published_at_ms"] <= max(due_at_ms, ready_at_ms) + 2_000

        # Once: it is acknowledged, nothing else comes, not even after another crash.
        answer = {"entry_ids": [entries[0]["entry_id"]]}
        assert ask(server.url, "POST", f"{TOPIC}/subscriptions/me/ack", answer)[0] == 204
        server.kill()
        server.start()
        status, again = ask(server.url, "POST", f"{TOPIC}/subscriptions/me/receive", {"wait_ms": 500})
        assert (status, again["messages"]) == (200, [])
        status, stats = ask(server.url, "GET", TOPIC)
        assert stats["next_entry"] == 1
        status, view = ask(server.url, "GET", f"/v1/messages/{scheduled['id']}")
        assert view["state"] == "sent"
