"""The Matrix door from end to end, with a tiny homeserver behind it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tarry.serve.composition import configuration
from tarry.serve.transport.callers import caller
from tests.unit.matrix_kit import STABLE, bearer, matrix_serving
from tests.unit.test_engine_traces import PARENT, Accepting, Told
from tests.waiting import until


async def test_an_event_is_scheduled_and_sent_as_its_user(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule(delay=100)
        (sent,) = await serving.arrived()
        assert sent.path.startswith("/_matrix/client/v3/rooms/!room:example.org/send/m.room.message/")
        assert sent.json == {"body": "t1"}
        assert sent.query["user_id"] == "@ann:example.org"
        assert sent.query["device_id"] == "ANNSPHONE"
        assert delay_id not in sent.raw_path
        listed = await serving.listed(status="finalised")
        assert [one["outcome"] for one in listed["finalised"]] == ["send"]


async def test_what_is_not_ours_is_passed_on(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await serving.client.get("/_matrix/client/v3/sync?since=a%2Fb&filter=%7B%7D", headers=bearer("x"))
        (passed,) = serving.homeserver.got
        assert passed.raw_path == "/_matrix/client/v3/sync?since=a%2Fb&filter=%7B%7D"
        assert passed.headers["X-Forwarded-For"] == "127.0.0.1"
        answer = await serving.client.get("/admin")
        assert (answer.status_code, answer.json()["errcode"]) == (404, "M_UNRECOGNIZED")


async def test_a_delay_id_is_all_that_management_needs(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        delay_id = await serving.schedule()
        for action in ("restart", "refresh", "send", "send"):
            answer = await serving.act(delay_id, action)
            assert (answer.status_code, answer.json()) == (200, {}), action
        assert len(serving.homeserver.events) == 1
        assert (await serving.client.post(f"{STABLE}/{'0' * 32}/send")).status_code == 404


class TracedFlow(Told):
    """Keeps, beside what it is told, the trace of the request in which something is accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: list[str | None] = []

    def accept(self, operation: str, door: str, messages: int, callers: Sequence[str]) -> Accepting:
        self.parents.append(caller())
        return super().accept(operation, door, messages, callers)

    def close(self) -> None:
        """Close the tracer, which sends nothing."""


async def test_what_is_accepted_and_sent_is_told_with_the_trace_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = TracedFlow()
    monkeypatch.setattr(configuration, "tracer_of", lambda _: told)
    async with matrix_serving(tmp_path / "data") as serving:
        serving.client.headers["traceparent"] = PARENT
        delay_id = await serving.schedule(delay=60_000)
        del serving.client.headers["traceparent"]
        # A command is no acceptance.
        await serving.act(delay_id, "send")
        await serving.schedule("t2", delay=10)
        sent = await serving.arrived(2)
        assert not any("traceparent" in {name.lower() for name in one.headers} for one in sent)
        await until(lambda: len(told.sends) == 2)
    assert told.accepts == [("schedule", "matrix", 1, [], None)] * 2
    assert told.parents == [PARENT, None]
    assert [(context, facts["door"], facts["outlet"], outcome) for context, facts, outcome in told.sends] == [
        (b"context 0", "matrix", "matrix", "sent"),
        (b"context 1", "matrix", "matrix", "sent"),
    ]
