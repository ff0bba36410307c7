from typing import Any

import pytest

from tarry.core import limits
from tarry.core.errors import Invalid, TooLarge
from tarry.core.messages.message import Message
from tarry.core.quantities import size_in_words


def message(**fields: Any) -> Message:
    return Message(**{"destination": "orders", "delay_ms": 1, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"delay_ms": 0},
        {"delay_ms": None, "due_at_ms": 0},
        {"delay_ms": None, "group": "g"},
        {"payload": bytes(limits.MAX_PAYLOAD_BYTES)},
        {"headers": {str(n): "v" for n in range(limits.MAX_HEADERS)}},
        {"headers": {"n": "v" * (limits.MAX_HEADERS_BYTES - 1)}},
        {"key": "é" * (limits.MAX_KEY_BYTES // 2)},
        {"key": ""},
        {"owner": "o" * limits.MAX_OWNER_BYTES},
        {"group": "g" * limits.MAX_GROUP_BYTES},
        {"idempotency_key": "i" * limits.MAX_IDEMPOTENCY_KEY_BYTES},
        {"ttl_ms": 1},
        {"ttl_ms": limits.MAX_DELAY_MS},
        {"destination": "d" * limits.MAX_DESTINATION_BYTES},
    ],
)
def test_what_can_be_a_message(fields: dict[str, Any]) -> None:
    message(**fields).check()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"destination": ""}, "destination"),
        ({"destination": "\ud800"}, "destination"),
        ({"due_at_ms": 5}, "delay_ms"),
        ({"delay_ms": None}, "due_at_ms"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": None, "due_at_ms": -1}, "due_at_ms"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": -5}, "ttl_ms"),
        ({"ttl_ms": limits.MAX_DELAY_MS + 1}, "ttl_ms"),
        ({"group": ""}, "group"),
        ({"headers": {"": "v"}}, "headers"),
        ({"headers": {"n": "\udfff"}}, "headers"),
        ({"headers": {str(n): "v" for n in range(limits.MAX_HEADERS + 1)}}, "headers"),
        ({"key": "\ud800"}, "key"),
        ({"owner": "\ud800"}, "owner"),
        ({"group": "\ud800"}, "group"),
        ({"idempotency_key": "\ud800"}, "idempotency_key"),
    ],
)
def test_what_can_never_be_one_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        message(**fields).check()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"payload": bytes(limits.MAX_PAYLOAD_BYTES + 1)}, "payload"),
        ({"headers": {"n": "v" * limits.MAX_HEADERS_BYTES}}, "headers"),
        ({"headers": {"n": "é" * (limits.MAX_HEADERS_BYTES // 2)}}, "headers"),
        ({"key": "é" * (limits.MAX_KEY_BYTES // 2 + 1)}, "key"),
        ({"owner": "é" * 128}, "owner"),
        ({"group": "g" * 256}, "group"),
        ({"idempotency_key": "i" * 256}, "idempotency_key"),
        ({"destination": "d" * 2049}, "destination"),
    ],
)
def test_what_is_too_large_names_the_field_and_its_limit(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(TooLarge) as caught:
        message(**fields).check()
    assert caught.value.field == field
    assert size_in_words(caught.value.limit) in str(caught.value)
