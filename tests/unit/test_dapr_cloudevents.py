"""The three kinds of payload as events, and what is read of an event again."""

import base64
import json
import re
from typing import Any

import pytest

from tarry.core.errors import Invalid
from tarry.doors.dapr.cloudevents import (
    EventOrigin,
    Trace,
    has_expired,
    make,
    of_raw,
    parent_in_binary,
    trace_of,
)

PLACE = EventOrigin("pubsub", "orders", "shop")
TRACE = Trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
NOW_MS = 1_700_000_000_500


def made(data: bytes, type_: str, metadata: dict[str, str] | None = None, expires: int | None = None) -> Any:
    return json.loads(make(data, type_, metadata or {}, PLACE, TRACE, NOW_MS, expires))


def test_data_become_an_event_with_every_field_that_dapr_sets() -> None:
    event = made(b'{"order": 66}', "application/json")
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", event.pop("id"))
    assert event == {
        "specversion": "1.0",
        "datacontenttype": "application/json",
        "source": "shop",
        "type": "com.dapr.event.sent",
        "topic": "orders",
        "pubsubname": "pubsub",
        "traceid": TRACE.parent,
        "traceparent": TRACE.parent,
        "tracestate": "vendor=1",
        "time": "2023-11-14T22:13:20Z",
        "data": {"order": 66},
    }


@pytest.mark.parametrize(
    ("data", "type_", "field", "value"),
    [
        (b'{"big": 12345678901234567890}', "application/json; charset=utf-8", "data", {"big": 12345678901234567890}),
        (b"[1, null]", "Application/JSON", "data", [1, None]),
        (b"{not json", "application/json", "data", "{not json"),
        (b'"\xff"', "application/json", "data", '"\ufffd"'),
        (b"", "application/json", "data", ""),
        (b'{"a":1}', "application/vnd.x+json", "data", '{"a":1}'),
        (b"hello", "", "data", "hello"),
        (b"<a/>", "application/xml", "data", "<a/>"),
        (b"\x00\xff", "application/octet-stream", "data_base64", base64.b64encode(b"\x00\xff").decode()),
        (b"\x01", "application/cloudevents+protobuf", "data_base64", "AQ=="),
    ],
)  # fmt: skip
def test_the_content_type_tells_how_data_are_carried(
    data: bytes, type_: str, field: str, value: object
) -> None:
    event = made(data, type_)
    assert event[field] == value
    assert ("data" in event) != ("data_base64" in event)
    assert event["datacontenttype"] == (type_ or "text/plain")


def test_metadata_replace_what_the_door_would_write() -> None:
    other = "00-11111111111111111111111111111111-2222222222222222-00"
    event = made(
        b"x",
        "text/plain",
        {
            "cloudevent.id": "i",
            "cloudevent.source": "s",
            "cloudevent.type": "t",
            "cloudevent.subject": "j",
            "cloudevent.traceparent": other,
            "cloudevent.tracestate": "w=2",
            "ttlInSeconds": "7",
        },
    )
    assert (event["id"], event["source"], event["type"], event["subject"]) == ("i", "s", "t", "j")
    assert event["traceid"] == event["traceparent"] == other
    assert event["tracestate"] == "w=2"
    assert made(b"x", "text/plain", {"cloudevent.traceid": other})["traceparent"] == other


def test_an_event_of_the_application_keeps_its_own_and_gets_the_rest() -> None:
    own = {"id": "7", "source": "mine", "type": "t.v1", "specversion": "1.0", "data": {"a": 1}, "topic": "lie",
           "pubsubname": "lie", "custom": [1, 2], "traceparent": "own", "time": "then"}  # fmt: skip
    event = made(json.dumps(own).encode(), "application/cloudevents+json; charset=utf-8")
    assert event["topic"] == "orders"
    assert event["pubsubname"] == "pubsub"
    assert event["traceparent"] == "own"
    assert event["traceid"] == TRACE.parent
    for name in ("id", "source", "type", "data", "custom", "time"):
        assert event[name] == own[name]


@pytest.mark.parametrize("given", ["{}", '{"id": null}', '{"id": "", "source": null, "type": ""}'])
def test_an_event_without_an_id_gets_one(given: str) -> None:
    event = made(given.encode(), "application/cloudevents+json")
    assert len(event["id"]) == 36
    # Its source is not known to be the application: it may hand on an event of somebody else's.
    assert event["source"] == "Dapr"
    assert event["time"] == made(b"x", "text/plain")["time"]
    assert event["type"] == "com.dapr.event.sent"
    assert event["specversion"] == "1.0"


@pytest.mark.parametrize(
    "given", [b"", b"[]", b'"x"', b"null", b"{", b'{"id": 7}', b'{"type": {}}', b'{"a":"\xff"}']
)
def test_what_is_no_event_is_refused(given: bytes) -> None:
    with pytest.raises(Invalid, match="not a CloudEvent"):
        make(given, "application/cloudevents+json", {}, PLACE, TRACE, NOW_MS, None)


def test_an_expiration_is_never_before_its_instant() -> None:
    event = made(b"x", "text/plain", expires=NOW_MS + 60_001)
    assert event["expiration"] == "2023-11-14T22:14:21Z"
    assert not has_expired(event, NOW_MS + 60_001)
    assert has_expired(event, NOW_MS + 62_000)
    own = made(b'{"id":"1"}', "application/cloudevents+json", expires=NOW_MS)
    assert has_expired(own, NOW_MS + 2_000)
    assert made(b"x", "text/plain", expires=1 << 60)["expiration"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("given", [None, "", "soon", 7, "2020-01-01T00:00:00", "2020-01-01"])
def test_an_expiration_that_cannot_be_read_is_none(given: object) -> None:
    assert not has_expired({} if given is None else {"expiration": given}, NOW_MS)


def test_a_raw_payload_becomes_an_event_for_its_subscriber() -> None:
    event = of_raw(b"\x00raw", "orders", "pubsub", {"traceparent": "tp", "other": "x"})
    assert base64.b64decode(event["data_base64"]) == b"\x00raw"
    assert event["datacontenttype"] == "application/octet-stream"
    assert (event["source"], event["topic"], event["pubsubname"]) == ("Dapr", "orders", "pubsub")
    assert event["traceparent"] == "tp"
    assert "other" not in event


def test_a_trace_context_is_taken_over_and_never_made_up() -> None:
    """One that is made here and not sampled would keep the application's own spans from being sampled."""
    assert trace_of(TRACE.parent, TRACE.state) == TRACE
    for bad in (None, "", "x", TRACE.parent.upper(), TRACE.parent + "0"):
        assert trace_of(bad, "a=1") == Trace("", "")


def test_a_trace_context_in_the_binary_form_of_grpc() -> None:
    whole = bytes.fromhex(
        "0000" + "0af7651916cd43dd8448eb211c80319c" + "01" + "b7ad6b7169203331" + "02" + "01"
    )
    assert parent_in_binary(whole) == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for bad in (b"", whole[:-1], b"\x01" + whole[1:], whole[:18] + b"\x09" + whole[19:], bytes(29)):
        assert parent_in_binary(bad) is None
