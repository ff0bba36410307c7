"""Messages as CloudEvents, decoded by hand from the rules of the HTTP binding and the JSON format."""

import base64
import json
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.limits import NEVER_MS
from tarry.core.messages.delivery import Delivery
from tarry.core.time.times import format_instant
from tarry.outlets.webhook.event import Unsendable, encode, percent_encode
from tarry.outlets.webhook.settings import WebhookSettings

NOW_MS = 1_700_000_000_123


def delivery(
    headers: dict[str, str] | None = None,
    payload: bytes = b"hi",
    key: str | None = None,
    due_at_ms: int = 1_600_000_000_005,
) -> Delivery:
    return Delivery(
        id="m-1_A",
        destination="https://a.example/",
        payload=payload,
        headers=headers or {},
        key=key,
        owner="owner",
        due_at_ms=due_at_ms,
        scheduled_at_ms=1_500_000_000_000,
        attempt=3,
    )


def structured(**kwargs: object) -> dict[str, object]:
    request = encode(delivery(**kwargs), WebhookSettings(mode="structured"), NOW_MS)  # type: ignore[arg-type]
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert not [name for name in request.headers if name.startswith("ce-")]
    document = json.loads(request.body)
    assert isinstance(document, dict)
    return document


def test_binary_mode() -> None:
    request = encode(delivery({"Content-Type": "text/plain"}, key="k 1"), WebhookSettings(), NOW_MS)
    assert request.body == b"hi"
    assert request.headers == {
        "user-agent": "Tarry",
        "accept-encoding": "identity",
        "content-type": "text/plain",
        "ce-specversion": "1.0",
        "ce-id": "m-1_A",
        "ce-source": "/tarry",
        "ce-type": "tarry.message.due",
        "ce-time": "2020-09-13T12:26:40.005Z",
        "ce-tarryscheduledat": "2017-07-14T02:40:00.000Z",
        "ce-tarryattempt": "3",
        "ce-partitionkey": "k%201",
    }


def test_defaults_come_from_the_settings() -> None:
    settings = WebhookSettings(event_source="urn:x", event_type="x.due", user_agent="X/1")
    headers = encode(delivery(), settings, NOW_MS).headers
    assert headers["ce-source"] == "urn:x"
    assert headers["ce-type"] == "x.due"
    assert headers["user-agent"] == "X/1"
    assert headers["content-type"] == "application/octet-stream"
    assert "ce-partitionkey" not in headers


def test_the_message_sets_attributes() -> None:
    headers = encode(
        delivery(
            {"CE-Type": "order.late", "ce-source": "/shop", "ce-subject": "Ä 5%", "ce-myext1": "1"}, key="k"
        ),
        WebhookSettings(),
        NOW_MS,
    ).headers
    assert headers["ce-type"] == "order.late"
    assert headers["ce-source"] == "/shop"
    assert headers["ce-subject"] == "%C3%84%205%25"
    assert headers["ce-myext1"] == "1"
    assert headers["ce-partitionkey"] == "k"


def test_the_message_cannot_set_what_is_tarrys() -> None:
    plain = encode(delivery(), WebhookSettings(), NOW_MS)
    forged = {
        "ce-id": "x",
        "CE-SpecVersion": "0.3",
        "ce-time": "x",
        "ce-datacontenttype": "x",
        "ce-data": "x",
        "ce-tarryattempt": "99",
        "ce-tarryother": "x",
        "Webhook-Id": "x",
        "webhook-signature": "v1,x",
        "webhook-anything": "x",
        "Host": "evil.example",
        "Content-Length": "0",
        "Transfer-Encoding": "chunked",
        "Connection": "keep-alive",
        "Expect": "100-continue",
        "Upgrade": "h2c",
        "TE": "trailers",
        "Proxy-Authorization": "Basic x",
        "Accept-Encoding": "gzip",
    }
    assert encode(delivery(forged), WebhookSettings(), NOW_MS) == plain


def test_an_empty_attribute_counts_as_absent() -> None:
    assert encode(delivery({"ce-type": "", "ce-subject": ""}), WebhookSettings(), NOW_MS) == encode(
        delivery(), WebhookSettings(), NOW_MS
    )


def test_other_headers_are_passed_on() -> None:
    headers = encode(
        delivery(
            {
                "X-Trace": " a\tb ",
                "Authorization": "Bearer t",
                "User-Agent": "mine",
                "X-Y": "ü",
            }
        ),
        WebhookSettings(),
        NOW_MS,
    ).headers
    assert headers["x-trace"] == "a\tb"
    assert headers["authorization"] == "Bearer t"
    assert headers["user-agent"] == "mine"
    assert headers["x-y"] == "ü"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x y", "1"),
        ("x:y", "1"),
        ("", "1"),
        ("ü", "1"),
        ("x\r\nevil", "1"),
        ("x", "1\r\nevil: 1"),
        ("x", "1\nevil: 1"),
        ("x", "\x00"),
        ("x", "\x7f"),
        ("x", "\ud800"),
        ("content-type", "text/plain\r\nevil: 1"),
        ("ce-my-ext", "1"),
        ("ce-my_ext", "1"),
        ("ce-", "1"),
        ("ce-subject", "\ud800"),
    ],
)
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_what_cannot_be_carried_is_refused(name: str, value: str, mode: str) -> None:
    settings = WebhookSettings(mode=mode)  # type: ignore[arg-type]
    with pytest.raises(Unsendable) as caught:
        encode(delivery({name: value}), settings, NOW_MS)
    assert "evil: 1" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_example_of_the_binding() -> None:
    assert percent_encode("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_percent_encoding_comes_back_in_one_round(value: str) -> None:
    encoded = percent_encode(value)
    assert all("\x21" <= character <= "\x7e" and character != '"' for character in encoded)
    assert urllib.parse.unquote(encoded, errors="strict") == value
    kept = [character for character in value if "\x21" <= character <= "\x7e" and character not in '"%']
    assert len(encoded) == len(kept) + 3 * (len(value.encode()) - len(kept))


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
        (NEVER_MS, "6429-10-17T02:45:55.327Z"),
    ],
)
def test_instants(at_ms: int, text: str) -> None:
    assert format_instant(at_ms) == text


def test_a_message_without_a_due_instant_happens_now() -> None:
    headers = encode(delivery(due_at_ms=NEVER_MS), WebhookSettings(), NOW_MS).headers
    assert headers["ce-time"] == "2023-11-14T22:13:20.123Z"


def test_structured_mode() -> None:
    document = structured(
        headers={"content-type": "application/json", "ce-subject": 'a "b" é', "x-other": "1"},
        payload=b'{"a": [1.50, "\xc3\xa9"]}',
        key="k",
    )
    assert document == {
        "specversion": "1.0",
        "id": "m-1_A",
        "source": "/tarry",
        "type": "tarry.message.due",
        "time": "2020-09-13T12:26:40.005Z",
        "tarryscheduledat": "2017-07-14T02:40:00.000Z",
        "tarryattempt": 3,
        "partitionkey": "k",
        "subject": 'a "b" é',
        "datacontenttype": "application/json",
        "data": {"a": [1.5, "é"]},
    }


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/JSON; charset=utf-8", "application/problem+json"]
)
def test_json_stands_in_the_document_as_it_was(content_type: str) -> None:
    request = encode(
        delivery({"content-type": content_type}, payload=b'{"a" : 12345678901234567890.10}'),
        WebhookSettings(mode="structured"),
        NOW_MS,
    )
    assert b'"data":{"a" : 12345678901234567890.10}' in request.body


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        ("application/json", b""),
        ("application/json", b"{"),
        ("application/json", b'"\xff"'),
        ("application/json", b'1,"id":"forged"'),
        ("application/json", b'{"a":NaN}'),
        ("application/json", b"[" * 50_000 + b"]" * 50_000),
        ("application/json", b"\xef\xbb\xbf{}"),
        ("application/jsonx", b"{}"),
        ("text/plain", b"{}"),
        ("", b"\x00\xff"),
    ],
)
def test_everything_else_is_base64(content_type: str, payload: bytes) -> None:
    document = structured(headers={"content-type": content_type}, payload=payload)
    assert "data" not in document
    assert base64.b64decode(str(document["data_base64"])) == payload
    assert document["id"] == "m-1_A"
    assert document["datacontenttype"] == (content_type or "application/octet-stream")
