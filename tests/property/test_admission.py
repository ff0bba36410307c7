"""Admission: what becomes of a message depends neither on the way it came nor on the messages beside it.

Rows are accepted by every way in, among more or fewer others, under the same policies: each is refused for the same reason,
or becomes the same version.
"""

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tarry.core import limits
from tarry.core.errors import DelayTooLong, TarryError
from tarry.core.messages.line_keys import LineKeys
from tarry.core.messages.message import Message, Scheduled
from tarry.core.rules import admission
from tarry.core.rules.admission import MANY, Rule, Timings
from tarry.core.rules.policy import Effective, Policy, effective
from tarry.core.tenants.access import Access
from tarry.doors.dapr import columns as dapr
from tarry.doors.http.bodies import decode, message_of
from tarry.doors.http.gate import sender
from tarry.doors.http.messages.arrow import defaults_message
from tarry.doors.http.messages.ndjson import as_columns, read_lines
from tarry.doors.http.shapes import BatchDefaults, BatchLine
from tarry.engine.admission.columns import ColumnsScheduled, columns_of
from tarry.engine.answer import Answer, failed
from tarry.index import incoming
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Put
from tarry.testing.world import World

NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 1 << 18
LONG = limits.MAX_DELAY_MS
JSON_INT = 2**53 - 1
FILLER = Message(destination="beside/me/topic", payload=b"beside", owner="beside", delay_ms=10)

Outcome = Put | tuple[Any, ...]


# The rules: an expression over numbers is the same over an array of them

numbers = st.integers(-(1 << 40), 1 << 42) | st.sampled_from([0, 1, LONG, LONG + 1, limits.NEVER_MS])
timings = st.builds(
    lambda **fields: effective(Policy(**fields)),
    delayed_delivery=st.booleans(),
    tick_ms=st.sampled_from([1, 7, 1000, limits.DAY_MS]),
    max_delay_ms=st.sampled_from([0, 1, 5000, LONG]),
)


@given(st.lists(st.tuples(numbers, timings), min_size=1, max_size=6), numbers, numbers)
def test_instants_of_a_row_are_those_of_a_message(
    rows: list[tuple[int, Effective]], now_ms: int, floor_ms: int
) -> None:
    dues = np.array([due for due, _ in rows], np.int64)
    policies = Timings.of([policy for _, policy in rows], np.arange(len(rows), dtype=np.int32))
    kept, fire = admission.instants(dues, now_ms, floor_ms, policies, MANY)
    for row, (due, policy) in enumerate(rows):
        assert admission.instants(due, now_ms, floor_ms, policy) == (kept[row], fire[row])
        assert fire[row] >= max(now_ms, floor_ms)
        if policy.delayed_delivery:
            assert 0 <= fire[row] - max(due, now_ms, floor_ms) < policy.tick_ms
        else:
            assert fire[row] == max(now_ms, floor_ms)


@given(st.lists(st.tuples(numbers, timings), min_size=1, max_size=6))
def test_a_delay_is_too_long_for_a_row_if_it_is_for_a_message(rows: list[tuple[int, Effective]]) -> None:
    errors: admission.Errors = {}
    policies = Timings.of([policy for _, policy in rows], np.arange(len(rows), dtype=np.int32))
    admission.mark_delays(errors, np.array([delay for delay, _ in rows], np.int64), policies)
    for row, (delay, policy) in enumerate(rows):
        if row not in errors:
            admission.check_delay(delay, policy, lambda _: "")
            continue
        with pytest.raises(DelayTooLong) as refused:
            admission.check_delay(delay, policy, lambda _: "")
        assert str(refused.value) == str(errors[row])


RULES = {name: rule for name, rule in vars(admission).items() if isinstance(rule, Rule)}


@pytest.mark.parametrize("name", sorted(RULES))
@given(st.lists(numbers, min_size=1, max_size=6))
def test_a_rule_is_broken_by_a_row_if_it_is_by_a_message(name: str, values: list[int]) -> None:
    rule = RULES[name]
    errors: admission.Errors = {}
    rule.mark(errors, np.array(values, np.int64))
    for row, value in enumerate(values):
        assert rule.broken(value) == (row in errors)
        if row in errors:
            assert str(rule.error()) == str(errors[row])


# Every way in

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
times = st.sampled_from([0, 1, 4999, 5000, 5001, 60_000, LONG - 1, LONG, LONG + 1, JSON_INT])
asked: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.fixed_dictionaries({"delay_ms": times}),
    st.fixed_dictionaries({"due_at_ms": st.sampled_from([0, 5, NOW_MS - 1, NOW_MS, JSON_INT])}),
    st.fixed_dictionaries({"due_at_ms": times.map(lambda ms: min(NOW_MS + ms, JSON_INT))}),
    st.just({}),
    st.just({"delay_ms": 1, "due_at_ms": NOW_MS}),
)
rows = st.builds(
    lambda rest, time: {**rest, **time},
    st.fixed_dictionaries(
        {"destination": st.sampled_from(["orders"] * 6 + ["shop/eu/bills", "sim://shop/in", "", "a/b", "no://x", "x" * 2049])},
        optional={
            "payload": texts | st.sampled_from([100_000, 200_000, 229_000, 250_000, 262_000]),
            "key": texts | st.just("é" * 513),
            "owner": st.sampled_from(["ann", "bob", "é" * 128]),
            "ttl_ms": st.sampled_from([1, LONG, LONG + 1]),
            "headers": st.dictionaries(texts, texts, max_size=2)
            | st.sampled_from([{str(n): "" for n in range(65)}, {"a": "x" * 16_400}]),
        },
    ),
    asked,
)  # fmt: skip
policies = st.builds(
    Policy,
    delayed_delivery=st.none() | st.booleans(),
    tick_ms=st.sampled_from([None, 7, 1000]),
    max_delay_ms=st.sampled_from([None, 0, 5000, LONG]),
    max_pending_per_owner=st.sampled_from([None, 1, 2]),
    accept_per_second=st.sampled_from([None, 1.0, 2.0]),
)


def payload(row: dict[str, Any]) -> str:
    """The payload of a row; a long one stands there as its length."""
    said = row.get("payload", "")
    return "x" * said if isinstance(said, int) else said


def message(row: dict[str, Any]) -> Message:
    return Message(**{**row, "payload": payload(row).encode()})


def line(row: dict[str, Any]) -> bytes:
    return json.dumps({**row, "payload": payload(row)}).encode()


def line_keys(asked: list[dict[str, Any]]) -> LineKeys:
    """Keys of rows, which do not follow from their places: others may be before them. Those with a long number are too long."""
    numbers: dict[str, int] = {}
    for at, row in enumerate(asked):
        said = f"{asked[:at].count(row)} {row!r}"
        number = int.from_bytes(blake2b(said.encode(), digest_size=3).digest(), "big") % 10_000 + 10_000
        numbers[said] = number if row.get("ttl_ms") != LONG else number * 10_000
    assert len(set(numbers.values())) == len(numbers) == len(asked)
    return LineKeys("é" * 124 + "r", np.array(list(numbers.values()), np.int64))


def keyed(asked: list[dict[str, Any]]) -> list[Message]:
    """Rows as messages with idempotency keys."""
    return [
        structs.replace(
            message({name: value for name, value in row.items() if value is not None}), idempotency_key=key
        )
        for row, key in zip(asked, line_keys(asked).texts(), strict=True)
    ]


FILLER_ROW = {"destination": FILLER.destination, "payload": "beside", "owner": "beside", "delay_ms": 10}


class Way:
    """A world in which rows are accepted in one way."""

    def __init__(self, policy: Policy, name: str) -> None:
        self.world = World(ledger_settings=LedgerSettings(segment_bytes=SEGMENT_BYTES))
        self.world.clock.set(NOW_MS)
        self.world.settle(self.world.engine.set_policy("namespace", "public/default", policy))
        self.engine = self.world.engine
        self.accept: Callable[[list[dict[str, Any]]], list[Outcome]] = getattr(self, name)

    def outcome(self, found: Scheduled | TarryError | str) -> Outcome:
        """Why a row is not taken, or its version."""
        if isinstance(found, TarryError):
            about = [
                getattr(found, name, None) for name in ("field", "limit", "max_delay_ms", "state", "wait_ms")
            ]
            return (type(found), *about)
        key = self.world.ids.read(found if isinstance(found, str) else found.id)
        assert key is not None
        put = self.world.bodies.version(key[0])
        assert put.fire_at_ms == key[1]
        if isinstance(found, Scheduled):
            assert found.due_at_ms == put.due_at_ms
        return put

    def commit(self) -> None:
        while self.world.commit():
            pass

    def of(self, answers: Sequence[Answer[Scheduled]]) -> list[Outcome]:
        self.commit()
        return [self.outcome(error if (error := one.error()) else one.value()) for one in answers]  # type: ignore[arg-type]

    def of_columns(self, answer: Answer[ColumnsScheduled]) -> list[Outcome]:
        self.commit()
        done = answer.value()
        found = [
            self.outcome(done.errors.get(row) or id_.decode()) for row, id_ in enumerate(done.ids.tolist())
        ]
        for row, put in enumerate(found):
            if isinstance(put, Put):
                assert done.due_at_ms[row] == put.due_at_ms
        return found

    # The ways

    def single(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        return self.of([self.engine.schedule(message(row)) for row in asked])

    def many(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        answer = self.engine.schedule_many([message(row) for row in asked])
        self.commit()
        return [self.outcome(one) for one in answer.value()]

    def arrow(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        columns = {
            "payload": pa.array([payload(row).encode() for row in asked], pa.binary()),
            "headers": pa.array(
                [None if "headers" not in row else list(row["headers"].items()) for row in asked],
                pa.map_(pa.string(), pa.string()),
            ),
            **{name: pa.array([row.get(name) for row in asked], pa.string()) for name in ("destination", "key", "owner")},
            **{name: pa.array([row.get(name) for row in asked], pa.int64()) for name in ("due_at_ms", "delay_ms", "ttl_ms")},
        }  # fmt: skip
        defaults = Message(destination="")
        return self.of_columns(
            self.engine.schedule_columns(columns_of(pa.record_batch(columns), defaults), defaults)
        )

    def http(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        decoder, answers = msgspec.json.Decoder(BatchLine), []
        for row in asked:
            try:
                answers.append(self.engine.schedule(message_of(decode(decoder, line(row)))))
            except TarryError as error:
                answers.append(failed(error))
        return self.of(answers)

    def ndjson(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        caller, defaults = sender(Access.open(), None), BatchDefaults()
        pieces = [line(row) for row in asked]
        read = read_lines(pieces, defaults, caller)
        refused = {at: one for at, one in enumerate(read.lines) if isinstance(one, TarryError)}
        columns = as_columns(read, defaults)
        assert columns is not None
        found = iter(self.of_columns(self.engine.schedule_columns(columns, defaults_message(defaults))))
        return [self.outcome(refused[at]) if at in refused else next(found) for at in range(len(pieces))]

    def keyed(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        """Each by itself, with an idempotency key."""
        return self.of([self.engine.schedule(one) for one in keyed(asked)])

    def keyed_columns(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        """As columns, with the keys of lines."""
        messages, keys, nothing = keyed(asked), line_keys(asked), Message(destination="")
        columns = structs.replace(dapr.columns_of(messages), line_keys=keys)
        assert not self.engine.any_repeated(columns, nothing)
        found = self.of_columns(self.engine.schedule_columns(columns, nothing))
        accepted = [one for one, put in zip(messages, found, strict=True) if isinstance(put, Put)]
        again = [self.engine.schedule(one) for one in accepted]
        assert all(one.value().repeated for one in again)
        assert self.of(again) == [put for put in found if isinstance(put, Put)]
        for row, put in enumerate(found):
            lone = dapr.columns_of(messages[row : row + 1])
            lone = structs.replace(lone, line_keys=keys.at(np.array([row])))
            assert self.engine.any_repeated(lone, nothing) == isinstance(put, Put)
        return found

    def bulk(self, asked: list[dict[str, Any]]) -> list[Outcome]:
        """As Dapr's bulk publish does: every message has a due instant."""
        messages = [message(row) for row in asked]
        return self.of_columns(self.engine.schedule_columns(dapr.columns_of(messages), messages[0]))


WAYS = [
    ("single", "many"),
    ("single", "arrow"),
    ("http", "ndjson"),
    ("single", "bulk"),
    ("keyed", "keyed_columns"),
]
beside = st.tuples(st.sampled_from([0, 1, 60]), st.sampled_from([0, 1, 60]))

# What depended on the path before there was one admission, or was told in another order.
FAR = {"destination": "orders", "due_at_ms": NOW_MS + LONG + 1}
TWICE = [
    {"destination": "orders", "delay_ms": 1, "owner": "ann"},
    {"destination": "orders", "delay_ms": LONG + 1, "owner": "ann"},
]


@pytest.mark.parametrize("ways", WAYS, ids="-".join)
@settings(deadline=None, max_examples=40)
@example([FAR], Policy(delayed_delivery=False), (0, 60))
@example(TWICE, Policy(max_pending_per_owner=1), (0, 60))
@example(
    [{"destination": "orders", "due_at_ms": NOW_MS + 5}], Policy(delayed_delivery=False, tick_ms=1000), (0, 0)
)
@example([{"destination": "x" * 2049, "delay_ms": 1, "key": "é" * 513}], Policy(), (0, 0))
@given(st.lists(rows, min_size=1, max_size=5), policies, beside)
def test_a_row_has_one_outcome_by_whatever_way_it_comes(
    ways: tuple[str, str], asked: list[dict[str, Any]], policy: Policy, beside: tuple[int, int]
) -> None:
    with_due = bool({"bulk", "keyed"} & set(ways))
    if with_due:
        asked = [{**row, "due_at_ms": row.get("due_at_ms", NOW_MS + 1)} for row in asked]
        asked = [{name: value for name, value in row.items() if name != "delay_ms"} for row in asked]
    before, after = (
        [FILLER_ROW if not with_due else {**FILLER_ROW, "delay_ms": None, "due_at_ms": NOW_MS + 9}] * n
        for n in beside
    )
    one, other = (Way(policy, name) for name in ways)
    expected = one.accept(asked)
    found = other.accept([*before, *asked, *after])
    assert found[len(before) : len(before) + len(asked)] == expected
    assert all(isinstance(found[at], Put) for at in range(len(before)))


@settings(deadline=None, max_examples=40)
@example([FAR], Policy(delayed_delivery=False))
@example([{"destination": "orders", "delay_ms": 1}], Policy(tick_ms=1000))
@given(st.lists(rows, min_size=1, max_size=5), policies)
def test_a_row_that_is_staged_has_the_outcome_of_one_that_is_sent(
    asked: list[dict[str, Any]], policy: Policy
) -> None:
    """Limits of owners apart, which are asked at the adoption, and counted for the batch as a whole."""
    policy = msgspec.structs.replace(policy, max_pending_per_owner=None, accept_per_second=None)
    way = Way(policy, "single")
    place = way.engine.batches.place("nowhere", lambda _: True)
    for row in asked:
        for name in ("due_at_ms", "delay_ms"):
            if name not in row or len({"due_at_ms", "delay_ms"} & row.keys()) > 1:
                continue
            (expected,) = way.accept([row])
            assert staged(row, name, place) == _as_staged(expected)


def staged(row: dict[str, Any], time: str, place: Any) -> Outcome:
    columns = {
        "due" if time == "due_at_ms" else time: pa.array([row[time]], pa.int64()),
        "payload": pa.array([payload(row).encode()], pa.binary()),
        "destination": pa.array([row["destination"]]),
        "key": pa.array([row.get("key")], pa.string()),
        "owner": pa.array([row.get("owner")], pa.string()),
        "ttl_ms": pa.array([row.get("ttl_ms")], pa.int64()),
        "headers": pa.array([list(row.get("headers", {}).items())], pa.map_(pa.string(), pa.string())),
    }
    found = incoming.read(pa.record_batch(columns), incoming.Mapping(), place)
    if found.errors:
        return _told(found.errors[0])
    return found.fire_at_ms[0], found.due_at_ms[0], found.delay_ms[0], *found.places[0]


def _told(error: TarryError) -> tuple[Any, ...]:
    # The column is called `due` there.
    field = getattr(error, "field", None)
    return type(error), "due_at_ms" if field == "due" else field, getattr(error, "max_delay_ms", None)


def _as_staged(expected: Outcome) -> tuple[Any, ...]:
    if isinstance(expected, Put):
        return (
            expected.fire_at_ms,
            expected.due_at_ms,
            expected.delay_ms,
            expected.destination,
            expected.namespace,
        )
    kind, field, _, max_delay_ms, *_ = expected
    return kind, field, max_delay_ms
