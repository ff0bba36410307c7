"""Versions encoded as columns: the same bytes as field by field, and the same versions as one by one."""

import struct
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.messages.message import Message
from tarry.core.names import parse_destination
from tarry.engine.admission.columns import Plan, columns_of
from tarry.engine.admission.destinations import Destinations, OwnerLimits
from tarry.engine.admission.planner import Planner
from tarry.engine.records.changes import changes_of
from tarry.ledger.frame import Unit, unit_of
from tarry.ledger.record import Put, decode_put, encode
from tarry.testing.world import World

NOW_MS = 1_700_000_000_000
DELAY_MS = 77
DEFAULTS = Message(destination="orders", owner="bob", delay_ms=DELAY_MS, door="http")

texts = st.text(st.characters(codec="utf-8"), max_size=40)
rows = st.fixed_dictionaries(
    {
        "destination": st.sampled_from([None, "orders", "bills", "persistent://a/b/c"]),
        "owner": st.none() | st.sampled_from(["", "ann"]) | texts,
        "key": st.none() | texts,
        "payload": st.none() | st.binary(max_size=300),
        "delay_ms": st.none() | st.integers(0, 1 << 40),
        "ttl_ms": st.none() | st.integers(1, 1 << 40),
        "headers": st.none()
        | st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), texts),
    }
)
TYPES = {
    "destination": pa.string(),
    "owner": pa.string(),
    "key": pa.string(),
    "payload": pa.binary(),
    "delay_ms": pa.int64(),
    "ttl_ms": pa.int64(),
    "headers": pa.map_(pa.string(), pa.string()),
}  # fmt: skip


WORLD = World()
PLANNER = Planner(
    WORLD.journal, WORLD.engine_state, Destinations(WORLD.engine_state, {}), OwnerLimits(WORLD.pending)
)


def planned(asked: list[dict[str, Any]], columns: set[str]) -> Plan:
    batch = pa.record_batch(
        {
            name: pa.array([list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in asked], type_)
            for name, type_ in TYPES.items()
            if name in columns
        }
        # A batch without a column has no rows.
        | {"due_at_ms": pa.nulls(len(asked), pa.int64())}
    )  # fmt: skip
    (plan,), errors = PLANNER.plan(columns_of(batch, DEFAULTS), DEFAULTS, NOW_MS)
    assert not errors
    return plan


def put_of(row: dict[str, Any]) -> Put:
    """The version that one message makes."""
    topic = parse_destination(row["destination"] or DEFAULTS.destination)
    delay_ms = DELAY_MS if row["delay_ms"] is None else row["delay_ms"]
    due_at_ms = NOW_MS + delay_ms
    owner = DEFAULTS.owner if row["owner"] is None else row["owner"]
    return Put(
        due_at_ms, due_at_ms, NOW_MS, topic.namespace_name, topic.full, row["key"], owner, "http", None, row["ttl_ms"], None, 0,
        False, row["payload"] or b"", row["headers"] or {}, NOW_MS, delay_ms,
    )  # fmt: skip


def body_of(put: Put) -> bytes:
    """Its body, field by field, with the longest form of what this encoder writes in that form."""
    plain = msgspec.msgpack.encode
    number = struct.Struct(">BQ").pack
    key = b"\xc0" if put.key is None else struct.pack(">BI", 0xDB, len(put.key.encode())) + put.key.encode()
    return b"".join(
        [
            b"\xdc\x00\x12\x01",
            *(number(0xCF, value or 0) for value in (put.fire_at_ms, put.due_at_ms, put.accepted_at_ms)),
            *map(plain, (put.namespace, put.destination)),
            key,
            *map(plain, (put.owner, put.door, None)),
            b"\xc0" if put.ttl_ms is None else number(0xCF, put.ttl_ms),
            *map(plain, (None, 0, False)),
            struct.pack(">BI", 0xC6, len(put.payload)) + put.payload,
            plain(put.headers),
            *(number(0xCF, value or 0) for value in (put.delayed_since_ms, put.delay_ms)),
        ]
    )


def expected_unit(puts: list[Put]) -> Unit:
    encoded = []
    for put in puts:
        body = body_of(put)
        assert decode_put(body) == put
        encoded.append(encode(put)._replace(body=body, crc=google_crc32c.value(body)))
    return unit_of(encoded)


# No deadline: the first call loads what Arrow needs.
@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=12), st.sets(st.sampled_from(sorted(TYPES))))
def test_columns_encode_to_what_rows_do(asked: list[dict[str, Any]], columns: set[str]) -> None:
    asked = [{name: value if name in columns else None for name, value in row.items()} for row in asked]
    puts = [put_of(row) for row in asked]
    plan = planned(asked, columns)
    assert plan.written.unit == expected_unit(puts)
    # What rides along with columns is what is read out of their records.
    assert plan.written.changes == changes_of(puts)


@pytest.mark.parametrize("keys", [["", None], ["", ""], ["ab", "cd"], ["ab", "é"], ["ab", None]], ids=str)
@pytest.mark.parametrize("payloads", [[b"", b""], [b"one", b"two"], [b"one", b"three"]], ids=str)
def test_texts_that_are_all_as_long_are_as_any_others(keys: list[str | None], payloads: list[bytes]) -> None:
    nothing = dict.fromkeys(TYPES)
    asked = [nothing | {"key": key, "payload": it} for key, it in zip(keys, payloads, strict=True)]
    assert planned(asked, {"key", "payload"}).written.unit == expected_unit([put_of(row) for row in asked])
