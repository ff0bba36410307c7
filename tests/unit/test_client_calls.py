"""Requests of the client and its reading of answers, without a connection."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarry.client import batches, operations
from tarry.client.call import ClientCall, ServerAnswer, Unauthorized, Unreachable, error_of, topic_path
from tarry.client.consuming import MAX_IDS, Entry, Settlements, Told
from tarry.client.events import EventReader
from tarry.client.retries import waits
from tarry.client.server import ServerAddress
from tarry.client.shapes import Message, Received, Scheduled
from tarry.core import errors


def answered(body: object, status: int = 200, **headers: str) -> ServerAnswer:
    return ServerAnswer(status, headers, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("payload", "field", "value"),
    [
        (b"\xff\x00", "payload_base64", base64.b64encode(b"\xff\x00").decode()),
        ("größe", "payload", "größe"),
        ({"a": [1]}, "payload_json", {"a": [1]}),
        ([], "payload_json", []),
        (b"", "payload", ""),
        (b"text", "payload", "text"),
    ],
)
def test_a_payload_travels_in_the_field_that_keeps_it(payload: Any, field: Any, value: Any) -> None:
    body = json.loads(operations.schedule("d", payload, delay_ms=1).body)
    assert body[field] == value
    assert len([name for name in body if name.startswith("payload")]) == 1


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"delay": "1h30m"}, {"delay": "1h30m"}),
        ({"delay": timedelta(microseconds=1001)}, {"delay_ms": 2}),
        ({"delay_ms": 5}, {"delay_ms": 5}),
        ({"due_at_ms": 0}, {"due_at_ms": 0}),
        ({"due_at": datetime(2031, 1, 2, tzinfo=UTC)}, {"due_at": "2031-01-02T00:00:00+00:00"}),
        ({}, {}),
    ],
)
def test_a_time_is_sent_as_it_was_given_and_never_early(given: Any, sent: Any) -> None:
    body = json.loads(operations.schedule("d", **given).body)
    assert {
        name: value for name, value in body.items() if name.startswith(("d", "due")) and name != "destination"
    } == sent


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="due_at: has no time zone"):
        operations.schedule("d", due_at=datetime(2031, 1, 2))  # noqa: DTZ001 - that is the point


def test_a_schedule_brings_an_idempotency_key_of_its_own() -> None:
    first, second = operations.schedule("d"), operations.schedule("d")
    assert first.repeatable
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert operations.schedule("d", idempotency_key="k").headers["idempotency-key"] == "k"


def test_what_could_be_done_twice_is_not_repeatable() -> None:
    unsafe: list[ClientCall[Any]] = [
        operations.cancel("i"),
        operations.send("i"),
        operations.restart("i"),
        operations.publish("t"),
    ]
    assert not any(call.repeatable for call in unsafe)


def test_the_status_tells_a_repeated_schedule() -> None:
    call = operations.schedule("d")
    said = {"id": "i", "due_at_ms": 5, "due_at": "1970-01-01T00:00:00.005Z", "past_due": True}
    assert call.read(answered(said, 201)) == Scheduled(id="i", due_at_ms=5, past_due=True, repeated=False)
    assert call.read(answered(said, 200)).repeated


def test_paths_are_quoted() -> None:
    assert topic_path("persistent://a/b/c d%") == "/v1/topics/a/b/c%20d%25"
    assert topic_path("short") == "/v1/topics/public/default/short"
    assert topic_path("a/b/c", "subscriptions", "s/1") == "/v1/topics/a/b/c/subscriptions/s%2F1"
    assert operations.get("../x").path == "/v1/messages/..%2Fx"
    assert operations.list_page(owner="a&b").path == "/v1/messages?state=scheduled&owner=a%26b"
    assert operations.policy(topic="a/b/c").path == "/v1/policies/topics/a/b/c"
    assert (
        operations.policy(namespace="a/b", effective=True).path
        == "/v1/policies/namespaces/a/b?effective=true"
    )
    for bad in ("a/b", "/b/c", "a//c"):
        with pytest.raises(errors.Invalid):
            topic_path(bad)


@pytest.mark.parametrize(
    ("problem", "status", "kind", "text", "extra"),
    [
        (
            {"code": "invalid", "field": "delay_ms", "detail": "delay_ms: is negative"},
            400,
            errors.Invalid,
            "delay_ms: is negative",
            {"field": "delay_ms"},
        ),
        (
            {"code": "too-large", "field": "payload", "limit": 5, "detail": "big"},
            413,
            errors.TooLarge,
            "big",
            {"limit": 5},
        ),
        (
            {"code": "delay-too-long", "max_delay_ms": 7, "detail": "long"},
            400,
            errors.DelayTooLong,
            "long",
            {"max_delay_ms": 7},
        ),
        ({"code": "not-found", "detail": "none"}, 404, errors.NotFound, "none", {}),
        (
            {"code": "conflict", "state": "sent", "detail": "was sent"},
            409,
            errors.Conflict,
            "was sent",
            {"state": "sent"},
        ),
        (
            {"code": "too-many-pending", "limit": 3, "detail": "many"},
            429,
            errors.TooManyPending,
            "many",
            {"limit": 3},
        ),
        (
            {"code": "rate-limited", "retry_after_ms": 9, "detail": "fast"},
            429,
            errors.RateLimited,
            "fast",
            {"retry_after_ms": 9},
        ),
        ({"code": "forbidden", "detail": "no"}, 403, errors.Forbidden, "no", {}),
        ({"code": "unavailable", "detail": "later"}, 503, errors.Unavailable, "later", {}),
        ({"code": "bad-json", "detail": "not JSON"}, 400, errors.TarryError, "not JSON", {}),
    ],
)
def test_a_problem_becomes_the_error_that_the_server_raised(
    problem: Any, status: Any, kind: Any, text: Any, extra: Any
) -> None:
    error = error_of(answered(problem, status))
    assert type(error) is kind
    assert str(error) == text
    for name, value in extra.items():
        assert getattr(error, name) == value


def test_an_answer_that_is_no_problem_document_is_still_an_error() -> None:
    assert isinstance(error_of(ServerAnswer(502, {}, b"<html>")), errors.TarryError)
    assert isinstance(error_of(ServerAnswer(503, {}, b"")), errors.Unavailable)
    assert isinstance(error_of(ServerAnswer(404, {}, b"x")), errors.NotFound)
    limited = error_of(ServerAnswer(429, {"retry-after": "2"}, b""))
    assert isinstance(limited, errors.RateLimited)
    assert limited.retry_after_ms == 2000
    assert isinstance(error_of(ServerAnswer(401, {}, b"{}")), Unauthorized)
    with pytest.raises(Unreachable, match="not what this client expects"):
        operations.get("i").read(answered(b"<html>"))


def test_a_received_entry_has_its_bytes_back() -> None:
    call = operations.receive("t", "s")
    entries = call.read(
        answered({"messages": [{"entry_id": 1, "payload": "ä"}, {"entry_id": 2, "payload_base64": "/w=="}]})
    )
    assert [entry.payload for entry in entries] == ["ä".encode(), b"\xff"]
    assert call.wait_ms == 20_000


def test_a_message_shows_whether_its_body_was_kept() -> None:
    read = operations.get("i").read
    assert read(answered({"id": "i", "state": "scheduled", "destination": "d", "payload": ""})).has_payload
    assert not read(answered({"id": "i", "state": "sent", "destination": "d"})).has_payload


def test_batches_are_bounded_in_lines_and_bytes() -> None:
    cut = list(batches.cut((b"x" for _ in range(25)), chunk=10))
    assert [(count, body.count(b"\n")) for count, body in cut] == [(10, 10), (10, 10), (5, 5)]
    large = b"y" * (batches.CHUNK_BYTES // 2 + 1)
    assert [count for count, _ in batches.cut([large, large, b"z"])] == [1, 2]
    assert list(batches.cut([])) == []


def test_lines_of_a_batch_may_be_messages_objects_or_bytes() -> None:
    ((count, body),) = batches.cut(
        [Message(destination="d", payload="p", delay_ms=1), {"destination": "e"}, b'{"a":\n1}']
    )
    assert count == 3
    assert [json.loads(line) for line in body.splitlines()] == [
        {"destination": "d", "payload": "p", "delay_ms": 1},
        {"destination": "e"},
        {"a": 1},
    ]


def test_every_line_of_a_batch_has_its_outcome() -> None:
    call = batches.schedule_lines(2, b"", owner="o", delay_ms=None)
    assert call.path == "/v1/messages/batch?owner=o"
    assert not call.repeatable
    lines = b'{"id":"i","due_at_ms":3,"past_due":false}\n{"error":{"code":"invalid","field":"key","detail":"key: bad"},"line":2}\n'
    first, second = call.read(ServerAnswer(200, {}, lines))
    assert first == Scheduled(id="i", due_at_ms=3)
    assert isinstance(second, errors.Invalid)
    with pytest.raises(Unreachable, match="broke off after 1 of 2"):
        call.read(ServerAnswer(200, {}, lines.splitlines()[0]))
    with pytest.raises(errors.Unavailable):
        call.read(ServerAnswer(503, {}, b""))


def test_retries_double_and_end() -> None:
    assert list(waits(0.0)) == []
    assert list(waits(0.36)) == [0.05, 0.1, 0.2]
    found = list(waits(10))
    assert sum(found) <= 10
    assert max(found) == 1.0


def test_the_server_comes_from_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARRY_URL", raising=False)
    monkeypatch.delenv("TARRY_TOKEN", raising=False)
    assert ServerAddress(None, None, 1, 1).url == "http://127.0.0.1:8080"
    monkeypatch.setenv("TARRY_URL", "https://h/base/")
    monkeypatch.setenv("TARRY_TOKEN", "t")
    server = ServerAddress(None, None, 1, 1)
    assert (server.host, server.port, server.secure, server.prefix) == ("h", 443, True, "/base")
    lines = server.header_lines(operations.status())
    assert lines == b"host: h\r\nuser-agent: tarry-python\r\nauthorization: Bearer t\r\n"
    assert ServerAddress("http://[::1]:9", "u", 1, 1).host == "::1"
    for bad in ("127.0.0.1:8080", "ftp://x", "http://", "http://h:port"):
        with pytest.raises(errors.Invalid, match="is not like"):
            ServerAddress(bad, None, 1, 1)


def test_an_entry_is_settled_once_and_by_nothing_but_its_program() -> None:
    told: list[tuple[int, bool]] = []
    entries = [Entry(Received(entry_id=n), lambda *said: told.append(said)) for n in range(4)]
    assert told == []
    entries[0].ack()
    entries[0].nack()
    with entries[1]:
        entries[1].nack()
    with pytest.raises(KeyError), entries[2]:
        raise KeyError
    with entries[3]:
        pass
    assert told == [(0, True), (1, False), (2, False), (3, True)]


def test_settlements_go_in_bounded_lots() -> None:
    settlements = Settlements()
    for n in range(MAX_IDS + 5):
        settlements.add(n, True)
    settlements.add(7, False)
    first, second = settlements.take(), settlements.take()
    assert (len(first.acked), first.given_back) == (MAX_IDS, [7])
    assert second == Told(list(range(MAX_IDS, MAX_IDS + 5)), [])
    assert not settlements


def test_events_are_read_however_they_are_cut() -> None:
    stream = b': open\n\nid: 1\ndata: {"entry_id":1,"payload":"a"}\n\n: keep-alive\n\nid: 2\ndata: {"entry_id":2,"payload_base64":"/w=="}\n\n'
    for size in (1, 2, 7, len(stream)):
        reader = EventReader()
        found = [entry for at in range(0, len(stream), size) for entry in reader.feed(stream[at : at + size])]
        assert [(entry.entry_id, entry.payload) for entry in found] == [(1, b"a"), (2, b"\xff")]
    with pytest.raises(Unreachable, match="not what this client expects"):
        EventReader().feed(b"data: {}\n\n")
