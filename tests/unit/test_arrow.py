"""Scheduling from Arrow: every column rule, every bad row, and the same results as one message at a time."""

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from tarry.core import limits
from tarry.core.errors import (
    DelayTooLong,
    Invalid,
    RateLimited,
    TarryError,
    TooLarge,
    TooManyPending,
    Unavailable,
)
from tarry.core.messages.message import Message, MessageView, Scheduled
from tarry.core.rules.policy import Policy
from tarry.engine.admission.columns import ColumnsScheduled
from tarry.engine.admission.planner import UNIT_ROWS
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, schedule_arrow

STRINGS = pa.map_(pa.string(), pa.string())


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=16 << 20))


def schedule(bench: Bench, columns: dict[str, Any], **defaults: Any) -> ColumnsScheduled:
    defaults = {"destination": "orders", **defaults}
    return bench.ask(schedule_arrow(bench.engine, pa.record_batch(columns), Message(**defaults)))


def ids(done: ColumnsScheduled) -> list[str]:
    return [id_.decode() for id_ in done.ids.tolist()]


def errors(done: ColumnsScheduled) -> dict[int, tuple[str, str]]:
    """Row -> the kind of error and its field."""
    return {row: (type(error).__name__, getattr(error, "field", "")) for row, error in done.errors.items()}


def same(one: MessageView, two: MessageView) -> None:
    """Check that two messages are equal but for their ids."""
    for name in one.__struct_fields__:
        if name != "id":
            assert getattr(one, name) == getattr(two, name), name


# The same as one at a time

ROWS: list[dict[str, Any]] = [
    {"destination": "orders", "payload": b"plain", "delay_ms": 1000},
    {"destination": "acme/eu/bills", "payload": b"", "due_at_ms": 1_700_000_005_000, "key": "k"},
    {"destination": FOREIGN, "payload": bytes(range(256)), "delay_ms": 0, "owner": "ann"},
    {"destination": "orders", "payload": b"past", "due_at_ms": 5},
    {"destination": "orders", "payload": b"h", "delay_ms": 1, "headers": {"a": "b", "é": "ü"}, "ttl_ms": 99},
    {"destination": "ticking", "payload": b"t", "delay_ms": 1},
    {"destination": "ticking", "payload": b"t", "due_at_ms": 1_700_000_000_001},
    {"destination": "eager", "payload": b"now", "delay_ms": 100_000},
    {"destination": "orders", "payload": b"far", "delay_ms": limits.MAX_DELAY_MS, "owner": "é" * 100, "key": "é" * 500},
    # And what is refused.
    {"destination": "orders", "delay_ms": -1},
    {"destination": "orders", "due_at_ms": -1},
    {"destination": "orders", "delay_ms": 1, "due_at_ms": 1},
    {"destination": "orders"},
    {"destination": "a/b", "delay_ms": 1},
    {"destination": "http://host/", "delay_ms": 1},
    {"destination": "orders", "delay_ms": limits.MAX_DELAY_MS + 1},
    {"destination": "orders", "due_at_ms": 1 << 62},
    {"destination": "orders", "delay_ms": (1 << 63) - 1},
    {"destination": "near", "delay_ms": 5001},
    {"destination": "orders", "delay_ms": 1, "ttl_ms": 0},
    {"destination": "orders", "delay_ms": 1, "ttl_ms": limits.MAX_DELAY_MS + 1},
    {"destination": "orders", "delay_ms": 1, "key": "é" * 513},
    {"destination": "orders", "delay_ms": 1, "owner": "é" * 128},
    {"destination": "orders", "delay_ms": 1, "payload": bytes(limits.MAX_PAYLOAD_BYTES + 1)},
    {"destination": "orders", "delay_ms": 1, "headers": {"": "x"}},
    {"destination": "orders", "delay_ms": 1, "headers": {"x": "y" * limits.MAX_HEADERS_BYTES}},
    {"destination": "orders", "delay_ms": 1, "headers": {str(n): "" for n in range(65)}},
    {"destination": "d" * 2049, "delay_ms": 1},
    {"destination": "", "delay_ms": 1},
]  # fmt: skip


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    headers = [None if "headers" not in row else list(row["headers"].items()) for row in rows]
    return pa.record_batch(
        {
            "destination": pa.array([row["destination"] for row in rows]),
            "payload": pa.array([row.get("payload") for row in rows], pa.binary()),
            "due_at_ms": pa.array([row.get("due_at_ms") for row in rows], pa.int64()),
            "delay_ms": pa.array([row.get("delay_ms") for row in rows], pa.int64()),
            "key": pa.array([row.get("key") for row in rows], pa.string()),
            "owner": pa.array([row.get("owner") for row in rows], pa.string()),
            "ttl_ms": pa.array([row.get("ttl_ms") for row in rows], pa.int64()),
            "headers": pa.array(headers, STRINGS),
        }
    )


def test_every_row_is_taken_or_refused_as_if_it_came_alone() -> None:
    worlds = [Bench(ledger_settings=LedgerSettings(segment_bytes=32 << 20)) for _ in range(2)]
    for bench in worlds:
        for topic, policy in (
            ("ticking", Policy(tick_ms=1000)),
            ("eager", Policy(delayed_delivery=False, tick_ms=1000)),
            ("near", Policy(max_delay_ms=5000)),
        ):
            bench.ask(bench.engine.set_policy("topic", topic, policy))
    singles, arrow = worlds
    # Nothing moves before all are accepted, so that both worlds see the same instant.
    answers = [singles.engine.schedule(Message(**{"payload": b"", **row})) for row in ROWS]
    many = schedule_arrow(arrow.engine, batch(ROWS), Message(destination=""))
    while singles.ledger.commit() + arrow.ledger.commit():
        pass
    done = many.value()
    for row, answer in enumerate(answers):
        error = answer.error()
        if error is not None:
            assert row in done.errors, ROWS[row]
            assert type(done.errors[row]) is type(error), ROWS[row]
            assert getattr(done.errors[row], "field", None) == getattr(error, "field", None), ROWS[row]
            assert done.ids[row] == b""
            continue
        assert row not in done.errors, (ROWS[row], done.errors[row])
        single = answer.value()
        assert done.due_at_ms[row] == single.due_at_ms
        one = singles.engine.get(single.id).value()
        two = arrow.engine.get(done.ids[row].decode()).value()
        same(one, two)
    assert singles.engine.stats().pending == arrow.engine.stats().pending
    assert singles.engine.stats().counters == arrow.engine.stats().counters
    # And what becomes of them is the same.
    for bench in worlds:
        bench.run(10_000)
    assert singles.engine.stats().counters == arrow.engine.stats().counters
    for topic in ("orders", "ticking", "eager", "acme/eu/bills"):
        assert sorted(singles.drain(topic).payloads) == sorted(arrow.drain(topic).payloads)
    assert singles.arrived() == arrow.arrived()


def test_rows_survive_a_crash(bench: Bench) -> None:
    done = schedule(bench, {"payload": pa.array([b"a", b"b"]), "delay_ms": pa.array([10, 20])})
    bench.crash()
    bench.start()
    assert [bench.view(id_).payload for id_ in ids(done)] == [b"a", b"b"]
    bench.wait(20)
    assert bench.drain("orders").payloads == [b"a", b"b"]


# Defaults


def test_columns_that_are_missing_come_from_the_defaults(bench: Bench) -> None:
    done = schedule(
        bench, {"payload": pa.array([b"x"])}, destination="bills", delay_ms=7, owner="ann", key="k", ttl_ms=5,
        headers={"a": "b"}, door="pulsar",
    )  # fmt: skip
    view = bench.view(ids(done)[0])
    assert (view.payload, view.destination, view.owner, view.key) == (
        b"x", "persistent://public/default/bills", "ann", "k",
    )  # fmt: skip
    assert (view.ttl_ms, view.headers, view.door, view.delay_ms) == (5, {"a": "b"}, "pulsar", 7)


def test_nulls_come_from_the_defaults_too(bench: Bench) -> None:
    nulls = {
        "destination": pa.array([None, "bills"]),
        "payload": pa.array([None, b"p"], pa.binary()),
        "delay_ms": pa.array([None, 9]),
        "key": pa.array([None, "own"]),
        "owner": pa.array([None, "bob"]),
        "ttl_ms": pa.array([None, 6]),
        "headers": pa.array([None, [("c", "d")]], STRINGS),
    }
    done = schedule(
        bench, nulls, delay_ms=7, owner="ann", key="k", ttl_ms=5, headers={"a": "b"}, payload=b"default"
    )
    first, second = (bench.view(id_) for id_ in ids(done))
    assert (first.payload, first.owner, first.key, first.ttl_ms, first.headers, first.delay_ms) == (
        b"default", "ann", "k", 5, {"a": "b"}, 7,
    )  # fmt: skip
    assert (second.payload, second.owner, second.key, second.ttl_ms, second.headers, second.delay_ms) == (
        b"p", "bob", "own", 6, {"c": "d"}, 9,
    )  # fmt: skip


def test_a_default_due_instant_stands_in_for_neither(bench: Bench) -> None:
    columns = {"due_at_ms": pa.array([None, bench.now_ms + 50, None]), "delay_ms": pa.array([None, None, 70])}
    done = schedule(bench, columns, due_at_ms=bench.now_ms + 99)
    assert (done.due_at_ms - bench.now_ms).tolist() == [99, 50, 70]
    assert not done.errors


def test_no_rows_and_no_columns(bench: Bench) -> None:
    done = schedule(bench, {"payload": pa.array([], pa.binary())}, delay_ms=1)
    assert (len(done.ids), done.errors) == (0, {})


def test_all_rows_bad(bench: Bench) -> None:
    before = bench.engine.stats().pending
    done = schedule(bench, {"delay_ms": pa.array([-1, -2])})
    assert errors(done) == {0: ("Invalid", "delay_ms"), 1: ("Invalid", "delay_ms")}
    assert bench.engine.stats().pending == before


# Types of columns


@pytest.mark.parametrize(
    "payload",
    [
        pa.array(["text", "é"], pa.string()),
        pa.array(["text", "é"], pa.large_string()),
        pa.array([b"text", "é".encode()], pa.binary()),
        pa.array([b"text", "é".encode()], pa.large_binary()),
        pa.array([b"text", b"\xc3\xa9..."], pa.binary()).cast(pa.large_binary()),
    ],
)
def test_payloads_may_be_text_or_bytes(bench: Bench, payload: pa.Array) -> None:
    done = schedule(bench, {"payload": payload}, delay_ms=1)
    assert bench.view(ids(done)[0]).payload == b"text"


@pytest.mark.parametrize(
    "destination",
    [
        pa.array(["t", "u", "t"]),
        pa.array(["t", "u", "t"], pa.large_string()),
        pa.array(["t", "u", "t"]).dictionary_encode(),
    ],
)
def test_text_may_be_large_or_coded(bench: Bench, destination: pa.Array) -> None:
    done = schedule(bench, {"destination": destination, "owner": destination, "key": destination}, delay_ms=1)
    views = [bench.view(id_) for id_ in ids(done)]
    assert [view.owner for view in views] == ["t", "u", "t"]
    assert [view.key for view in views] == ["t", "u", "t"]
    assert [view.destination[-2:] for view in views] == ["/t", "/u", "/t"]


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
def test_numbers_of_every_width(bench: Bench, type_: pa.DataType) -> None:
    done = schedule(
        bench, {"delay_ms": pa.array([7, None], type_), "ttl_ms": pa.array([9, 9], type_)}, delay_ms=3
    )
    assert (done.due_at_ms - bench.now_ms).tolist() == [7, 3]


@pytest.mark.parametrize(
    ("unit", "value", "due_at_ms"),
    [
        ("s", 1_700_000_010, 1_700_000_010_000),
        ("ms", 1_700_000_010_001, 1_700_000_010_001),
        ("us", 1_700_000_010_001_000, 1_700_000_010_001),
        ("us", 1_700_000_010_001_001, 1_700_000_010_002),
        ("ns", 1_700_000_010_001_000_001, 1_700_000_010_002),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_timestamps_are_rounded_up_never_down(
    bench: Bench, unit: str, value: int, due_at_ms: int, zone: str | None
) -> None:
    done = schedule(bench, {"due_at_ms": pa.array([value], pa.timestamp(unit, zone))})
    assert done.due_at_ms.tolist() == [due_at_ms]


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"what": pa.array([1])}, "what"),
        ({"payload": pa.array([1])}, "payload"),
        ({"delay_ms": pa.array([1.5])}, "delay_ms"),
        ({"delay_ms": pa.array(["5"])}, "delay_ms"),
        ({"due_at_ms": pa.array([True])}, "due_at_ms"),
        ({"key": pa.array([b"k"])}, "key"),
        ({"owner": pa.array([5])}, "owner"),
        ({"headers": pa.array(["a"])}, "headers"),
        (
            {"headers": pa.array([[("a", {"x": 1})]], pa.map_(pa.string(), pa.struct([("x", pa.int8())])))},
            "headers",
        ),
    ],
)
def test_columns_of_another_type_are_refused_as_a_whole(
    bench: Bench, columns: dict[str, Any], field: str
) -> None:
    answer = schedule_arrow(bench.engine, pa.record_batch(columns), Message(destination="orders", delay_ms=1))
    assert bench.refused(answer, Invalid).field == field
    assert bench.engine.stats().pending == 0


def test_two_columns_of_one_name_are_refused(bench: Bench) -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["delay_ms", "delay_ms"])
    bench.refused(schedule_arrow(bench.engine, twice, Message(destination="orders")), Invalid)


def test_a_header_without_a_value_is_a_bad_row(bench: Bench) -> None:
    headers = pa.array([[("a", None)], [("a", "b")]], STRINGS)
    done = schedule(bench, {"headers": headers}, delay_ms=1)
    assert errors(done) == {0: ("Invalid", "headers")}
    assert bench.view(ids(done)[1]).headers == {"a": "b"}


def test_text_that_is_not_utf8_is_refused_and_never_stored(bench: Bench) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")]
    )
    for column in ("key", "owner", "destination"):
        answer = schedule_arrow(
            bench.engine, pa.record_batch({column: bad}), Message(destination="orders", delay_ms=1)
        )
        assert isinstance(bench.refused(answer, TarryError), Invalid)
    bench.wait(10)
    assert bench.engine.stats().pending == 0


# Limits and policies


def test_pending_limits_count_row_by_row(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(max_pending_per_owner=2)))
    bench.schedule(owner="ann", delay_ms=1000)
    owners = pa.array(["ann", "bob", "ann", "bob", "bob", "eve"])
    done = schedule(bench, {"owner": owners}, delay_ms=1000)
    assert {row: type(error) for row, error in done.errors.items()} == {2: TooManyPending, 4: TooManyPending}
    assert bench.engine.stats().pending == 5


def test_accepting_is_limited_row_by_row(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("topic", "slow", Policy(accept_per_second=2.0)))
    done = schedule(
        bench, {"destination": pa.array(["slow", "orders", "slow", "slow", "orders"])}, delay_ms=10
    )
    (row,) = done.errors
    error = done.errors[row]
    assert row == 3
    assert isinstance(error, RateLimited)
    assert error.retry_after_ms > 0


def test_a_bad_row_is_not_charged(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(accept_per_second=1.0, max_pending_per_owner=1)))
    done = schedule(bench, {"delay_ms": pa.array([-1, limits.MAX_DELAY_MS + 1, 5])})
    assert set(done.errors) == {0, 1}
    assert isinstance(done.errors[1], DelayTooLong)


def test_a_delay_that_is_too_long_is_told_the_longest_one_of_its_place(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("topic", "near", Policy(max_delay_ms=1000)))
    far = [1001, limits.MAX_DELAY_MS + 1, (1 << 63) - 1]
    done = schedule(bench, {"destination": pa.array(["near"] * 3), "delay_ms": pa.array(far)})
    assert [done.errors[row].max_delay_ms for row in range(3)] == [1000] * 3  # type: ignore[attr-defined]
    done = schedule(
        bench,
        {
            "destination": pa.array(["near"] * 3),
            "due_at_ms": pa.array([bench.now_ms + ms for ms in far[:2]] + far[2:]),
        },
    )
    assert [done.errors[row].max_delay_ms for row in range(3)] == [1000] * 3  # type: ignore[attr-defined]
    done = schedule(bench, {"destination": pa.array(["orders"]), "delay_ms": pa.array(far[2:])})
    assert done.errors[0].max_delay_ms == limits.MAX_DELAY_MS  # type: ignore[attr-defined]


# Many rows


def test_more_rows_than_a_frame_holds(bench: Bench) -> None:
    count = 2 * UNIT_ROWS + 17
    delays = pa.array([-1 if n % 1000 == 999 else 1 + n % 5 for n in range(count)])
    payloads = pa.array([b"%d" % n for n in range(count)], pa.binary())
    done = schedule(bench, {"payload": payloads, "delay_ms": delays})
    assert set(done.errors) == set(range(999, count, 1000))
    good = [n for n in range(count) if n % 1000 != 999]
    assert len(set(ids(done))) == len(good) + 1
    for row in (0, UNIT_ROWS, count - 1):
        assert bench.view(ids(done)[row]).payload == b"%d" % row
    bench.wait(5)
    assert sorted(int(payload) for payload in bench.drain("orders").payloads) == good


def test_rows_that_are_larger_together_than_a_segment_are_several_units() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 18))
    payloads = [bytes([n]) * 30_000 for n in range(20)]
    done = schedule(bench, {"payload": pa.array(payloads, pa.binary()), "delay_ms": [1] * 20})
    messages = [Message(destination="orders", payload=payload, delay_ms=1) for payload in payloads]
    many = bench.ask(bench.engine.schedule_many(messages))
    assert not done.errors
    assert all(isinstance(one, Scheduled) for one in many)
    bench.wait(1)
    assert sorted(bench.drain("orders").payloads) == sorted(payloads * 2)


def test_a_number_beyond_64_bits_is_its_rows_own(bench: Bench) -> None:
    delays = pa.array([1, None, (1 << 64) - 1, 1 << 63, 2], pa.uint64())
    done = schedule(bench, {"delay_ms": delays})
    assert errors(done) == {1: ("Invalid", "due_at_ms"), 2: ("DelayTooLong", ""), 3: ("DelayTooLong", "")}
    assert bench.engine.stats().pending == 2


def test_a_sliced_batch_is_read_from_where_it_begins(bench: Bench) -> None:
    whole = pa.record_batch(
        {"payload": pa.array([b"%d" % n for n in range(10)]), "key": pa.array([str(n) for n in range(10)]),
         "headers": pa.array([[("n", str(n))] for n in range(10)], STRINGS), "delay_ms": pa.array(range(10))}
    )  # fmt: skip
    answer = schedule_arrow(bench.engine, whole.slice(4, 3), Message(destination="orders"))
    done = bench.ask(answer)
    views = [bench.ask(bench.engine.get(id_)) for id_ in ids(done)]
    assert (done.due_at_ms - bench.now_ms).tolist() == [4, 5, 6]
    assert [view.payload for view in views] == [b"4", b"5", b"6"]
    assert [view.key for view in views] == ["4", "5", "6"]
    assert [view.headers for view in views] == [{"n": "4"}, {"n": "5"}, {"n": "6"}]


def test_nothing_is_answered_before_it_is_durable(bench: Bench) -> None:
    answer = schedule_arrow(
        bench.engine, pa.record_batch({"delay_ms": pa.array([1, 2])}), Message(destination="orders")
    )
    before = answer.settled
    bench.commit()
    assert (before, answer.settled) == (False, True)


def test_with_a_full_disk_every_row_says_so() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    bench.disk.capacity_bytes = bench.disk._used_bytes()
    count = 2000
    done = schedule(bench, {"payload": pa.array([bytes(100)] * count)}, delay_ms=1)
    assert len(done.errors) + sum(map(bool, ids(done))) == count
    assert all(isinstance(error, Unavailable | TooLarge) for error in done.errors.values())
    assert done.errors


LIGHT = """
import sys
import pyarrow as pa
from tarry.core.messages.message import Message
from tarry.core.tenants.access import Access
from tarry.doors.http.gate import sender
from tarry.doors.http.messages.arrow import read_batches, write_answers
from tarry.doors.http.messages.ndjson import as_columns, read_lines, write_columns
from tarry.doors.http.shapes import BatchDefaults
from tarry.testing.world import World
from tests.unit.engine_kit import schedule_arrow

world, defaults = World(), Message(destination="orders")
line = b'{"destination":"orders","due_at_ms":2000000000000,"payload":"x"}'
columns = as_columns(read_lines([line, line], BatchDefaults(), sender(Access.open(), None)), BatchDefaults())
answers = [world.engine.schedule_columns(columns, defaults)]
answers += [schedule_arrow(world.engine, batch, defaults) for batch in read_batches(sys.stdin.buffer.read())]
world.commit()
lines, rows = (answer.value() for answer in answers)
write_columns(lines, 0, 1, {})
write_answers([rows])
assert not lines.errors and not rows.errors
assert "pandas" not in sys.modules
"""


def test_accepting_a_batch_does_not_load_pandas() -> None:
    """pyarrow would, on first use of some functions, and hold up everything for a third of a second."""
    plain = pa.record_batch({"payload": pa.array([b"a", b"b"]), "due_at_ms": pa.array([2 * 10**12] * 2)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as stream:
        stream.write_batch(plain)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", LIGHT], input=sink.getvalue().to_pybytes(), env=environment, check=True
    )
