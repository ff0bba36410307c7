"""Reading of requests for futures."""

import json
from typing import Any

import pytest

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.futures_asked import MAX_GROUP_ID_BYTES, AskedFuture, read_batch, read_query
from tarry.doors.matrix.wire import Query
from tarry.outlets.matrix.template import filled, mentions

REDACTION = {"type": "m.room.redaction", "content": {"redacts": "$m.send_now.event_id"}}
MESSAGE = {"type": "m.room.message", "content": {"body": "hi", "msgtype": "m.text"}}


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ([("future_timeout", "10")], AskedFuture(10, None)),
        ([("future_timeout", "10"), ("future_group_id", '"groupA"')], AskedFuture(10, '"groupA"')),
        ([("future_group_id", "groupA")], AskedFuture(None, "groupA")),
        ([("io.element.msc3140.future_timeout", "10")], AskedFuture(10, None)),
        ([("io.element.msc4140.future_group_id", "g"), ("other", "1")], AskedFuture(None, "g")),
        ([("timeout", "600"), ("future_group_id", "XYZ")], AskedFuture(600, "XYZ")),
    ],
)
def test_the_parameters(query: Query, asked: AskedFuture) -> None:
    assert read_query(query, own=True) == asked


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ([], "M_MISSING_PARAM"),
        ([("future_timeout", "")], "M_INVALID_PARAM"),
        ([("future_timeout", "0")], "M_INVALID_PARAM"),
        ([("future_timeout", "-1")], "M_INVALID_PARAM"),
        ([("future_timeout", "1.5")], "M_INVALID_PARAM"),
        ([("future_timeout", '"10"')], "M_INVALID_PARAM"),
        ([("future_timeout", "٣")], "M_INVALID_PARAM"),
        ([("future_timeout", "9" * 30)], "M_INVALID_PARAM"),
        ([("future_timeout", "1"), ("future_timeout", "2")], "M_INVALID_PARAM"),
        ([("future_timeout", "1"), ("timeout", "2")], "M_INVALID_PARAM"),
        ([("future_group_id", "")], "M_INVALID_PARAM"),
        ([("future_group_id", "é" * (MAX_GROUP_ID_BYTES // 2 + 1))], "M_INVALID_PARAM"),
    ],
)
def test_parameters_that_cannot_be(query: Query, code: str) -> None:
    with pytest.raises(MatrixError) as refused:
        read_query(query, own=True)
    assert (refused.value.status, refused.value.body["errcode"]) == (400, code)


def test_timeout_is_a_parameter_of_the_drafts_own_endpoints_only() -> None:
    with pytest.raises(MatrixError):
        read_query([("timeout", "10")], own=False)


# A batch


@pytest.mark.parametrize(
    "prefix", ["", "m.", "io.element.msc3140.", "io.element.msc4140.", "org.matrix.msc4140."]
)
def test_a_batch_with_and_without_a_prefix(prefix: str) -> None:
    body = {
        f"{prefix}timeout": 10,
        f"{prefix}send_on_timeout": REDACTION,
        f"{prefix}send_on_action": {"one": MESSAGE, "two": {**MESSAGE, "state_key": ""}},
        f"{prefix}send_now": MESSAGE,
        "other": 1,
    }
    batch = read_batch(json.dumps(body).encode())
    assert (batch.timeout_ms, batch.on_timeout.type) == (10, "m.room.redaction")
    assert batch.on_action is not None
    assert {name: sent.state_key for name, sent in batch.on_action.items()} == {"one": None, "two": ""}
    assert batch.now is not None
    assert json.loads(bytes(batch.now.content)) == MESSAGE["content"]


def test_all_but_the_timeout_is_optional() -> None:
    batch = read_batch(json.dumps({"timeout": 10, "send_on_timeout": MESSAGE}).encode())
    assert (batch.on_action, batch.now) == (None, None)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "M_NOT_JSON", ""),
        (b"[]", "M_BAD_JSON", ""),
        ({}, "M_MISSING_PARAM", "timeout"),
        ({"timeout": 10}, "M_MISSING_PARAM", "send_on_timeout"),
        ({"send_on_timeout": MESSAGE}, "M_MISSING_PARAM", "timeout"),
        ({"timeout": 0, "send_on_timeout": MESSAGE}, "M_INVALID_PARAM", "timeout"),
        ({"timeout": 1.5, "send_on_timeout": MESSAGE}, "M_BAD_JSON", "timeout"),
        ({"timeout": "10", "send_on_timeout": MESSAGE}, "M_BAD_JSON", "timeout"),
        ({"timeout": 10, "m.timeout": 10, "send_on_timeout": MESSAGE}, "M_INVALID_PARAM", "more than once"),
        ({"timeout": 10, "send_on_timeout": {"content": {}}}, "M_MISSING_PARAM", "send_on_timeout"),
        (
            {"timeout": 10, "send_on_timeout": MESSAGE, "send_now": {"body": "hi"}},
            "M_MISSING_PARAM",
            "send_now",
        ),
        (
            {"timeout": 10, "send_on_timeout": MESSAGE, "send_on_action": [MESSAGE]},
            "M_BAD_JSON",
            "send_on_action",
        ),
        ({"timeout": 10, "send_on_timeout": REDACTION}, "M_INVALID_PARAM", "send_now"),
        (
            {
                "timeout": 10,
                "send_on_timeout": MESSAGE,
                "send_on_action": {str(n): MESSAGE for n in range(100)},
            },
            "M_INVALID_PARAM",
            "actions",
        ),
    ],
)
def test_a_batch_that_cannot_be(body: Any, code: str, says: str) -> None:
    with pytest.raises(MatrixError) as refused:
        read_batch(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert (refused.value.status, refused.value.body["errcode"]) == (400, code)
    assert says in refused.value.body["error"]


# The template variable


def test_the_variable_is_filled_wherever_it_stands() -> None:
    content = {
        "redacts": "$m.send_now.event_id",
        "m.relates_to": {"event_id": "$io.element.msc3140.send_now.event_id", "n": [1, 2.5, None, True]},
        "body": "see $m.send_now.event_id and $m.send_now.event_id",
        "$m.send_now.event_id": "a name is no place for it",
    }
    given = json.dumps(content).encode()
    assert mentions(given)
    assert json.loads(filled(given, "$abc")) == {
        "redacts": "$abc",
        "m.relates_to": {"event_id": "$abc", "n": [1, 2.5, None, True]},
        "body": "see $abc and $abc",
        "$m.send_now.event_id": "a name is no place for it",
    }


def test_it_may_be_written_with_escapes() -> None:
    assert filled(rb'{"redacts":"\u0024m.send\u005fnow.event_id"}', "$abc") == b'{"redacts":"$abc"}'


@pytest.mark.parametrize(
    "content", [b'{ "a" : "send_now" }', b'{"a":"\\n"}', b"[", b"{}", b'{"a":' * 5000 + b"1"]
)
def test_any_other_content_stays_as_it_is(content: bytes) -> None:
    assert filled(content, "$abc") is content
    assert not mentions(content)
