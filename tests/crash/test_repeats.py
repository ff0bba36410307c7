"""Series of the Dapr door under SIGKILL: no occurrence is lost, none comes twice, and no series ends or begins anew.

The server is killed as soon as the first occurrences of an instant are seen, when the others of that instant are on
their way: some have their successor in the ledger and are not in the topic, some are in the topic and not finalised.
"""

import contextlib
import json
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tarry.client import Client
from tarry.core.errors import Conflict
from tests.processes import ServerProcess, free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.crash

TOPIC: Final = "persistent://public/default/t"
SERIES: Final = 40
TIMES: Final = 4
EVERY_SECOND: Final = 5


def publish(port: int, number: int, **metadata: str) -> None:
    query = "&".join(f"metadata.{name}={quote(value, safe='')}" for name, value in metadata.items())
    url = f"http://127.0.0.1:{port}/v1.0/publish/pubsub/t?{query}"
    request = Request(url, json.dumps(number).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=20) as answer:
        assert answer.status == 204


def wait_for_more(client: Client, count: int) -> None:
    """Until so many more entries are in the topic."""

    def entries() -> int:
        return int(client.topic_stats(TOPIC)["next_entry"])

    before = entries()
    wait_until(lambda: entries() >= before + count)


def end_all(client: Client) -> None:
    while waiting := client.list_page(owner="app").messages:
        for one in waiting:
            # One that is on its way out already has a successor.
            with contextlib.suppress(Conflict):
                client.cancel(one.id)


def the_rest(client: Client) -> list[Any]:
    """Entries of the topic that were not read yet."""
    found: list[Any] = []
    while some := client.receive(TOPIC, "reader", max=100, wait_ms=300):
        client.ack(TOPIC, "reader", [one.entry_id for one in some])
        found += some
    return found


def test_no_occurrence_is_lost_or_doubled(tmp_path: Path) -> None:
    port = free_port()
    config = (
        "[ledger]\nsegment_bytes = 1048576\n"
        f"[doors.dapr]\nenabled = true\nport = {port}\ngrpc_port = {free_port()}\n"
    )
    with ServerProcess(tmp_path / "data", config) as server:
        server.start()
        with Client(server.url) as client:
            client.create_topic(TOPIC)
        first = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
        for number in range(SERIES):
            publish(port, number, scheduledSendTime=first, scheduledRepeat=f"R{TIMES}/PT1S")
        for number in range(SERIES, SERIES + EVERY_SECOND):
            publish(port, number, scheduledRepeat="* * * * * *")
        for _ in range(3):
            with Client(server.url) as client:
                wait_for_more(client, 1)
            server.kill()
            server.start()
        started_ms = time.time() * 1000
        with Client(server.url) as client:
            wait_until(lambda: client.status()["engine"]["pending"] == EVERY_SECOND)
            client.subscribe(TOPIC, "reader", type="exclusive", start="earliest")
            found: list[Any] = []

            def all_go_on() -> bool:
                found.extend(the_rest(client))
                newest = {json.loads(one.payload)["data"] for one in found if one.due_at_ms > started_ms}
                return newest >= set(range(SERIES, SERIES + EVERY_SECOND))

            # What was due while the server was away is passed over; the series goes on.
            wait_until(all_go_on)
            end_all(client)
            found += the_rest(client)
    ids: dict[int, Counter[str]] = defaultdict(Counter)
    due_ms: dict[int, Counter[int]] = defaultdict(Counter)
    for one in found:
        event = json.loads(one.payload)
        ids[event["data"]][event["id"]] += 1
        due_ms[event["data"]][one.due_at_ms] += 1
    assert sorted(ids) == list(range(SERIES + EVERY_SECOND))
    for number, seen in ids.items():
        assert set(seen.values()) == set(due_ms[number].values()) == {1}, (seen, due_ms[number])
        if number < SERIES:
            assert len(seen) == TIMES
        else:
            assert all(due % 1000 == 0 for due in due_ms[number])
