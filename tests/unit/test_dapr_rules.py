"""Routing rules: the part of CEL that is understood, and that the rest is refused when it is read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.errors import Invalid
from tarry.doors.dapr.rules import compile_rule, matches, searches

EVENT: dict[str, Any] = {
    "id": "7",
    "type": "order.v2",
    "source": "/shop/eu",
    "data": {"total": 120, "rate": 0.5, "tags": ["new", "paid"], "customer": {"name": "Ann"}, "odd key": 1,
             "vip": True, "none": None, "huge": 1e308, "long": "x" * 20_000, "odd": "\ud800", "many": 9 * 10**400,
             "large": "x" * 200_000},
}  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [
        'event.type == "order.v2"', "event.type == 'order.v2'", 'event.type != "x"', "event.data.total > 100",
        "event.data.total >= 120 && event.data.total <= 120", "event.data.total < 100 || event.data.vip",
        'event.data["odd key"] == 1', 'event["type"] == "order.v2"', "event.data.tags[1] == 'paid'",
        '"new" in event.data.tags', '!("old" in event.data.tags)', '"total" in event.data', "event.data.total in [1, 120]",
        'event.type.startsWith("order")', 'event.type.endsWith(".v2")', 'event.source.contains("shop")',
        r'event.type.matches("^order\\.v[0-9]+$")', r"event.type.matches(r'^order\.v\d$')",
        "has(event.data.total)", "!has(event.data.missing)", "!has(event.nothing.at.all)", "size(event.data.tags) == 2",
        "event.type.size() == 8", "event.data.total + 1 == 121", "event.data.total * 2 - 40 == 200",
        "event.data.total / 7 == 17", "-7 / 2 == -3", "-7 % 2 == -1", "7 % -2 == 1", "event.data.total % 50 == 20",
        "1.5 + 0.5 == 2.0", "0x10 == 16", "2u == 2", "1e3 == 1000.0", "event.data.vip ? true : false",
        "event.data.total > 1000 ? false : event.data.vip", "string(event.data.total) == '120'", "int('7') == 7",
        "double(1) == 1.0", "event.data.none == null", "!false", "true && !false || false", "(1 + 2) * 3 == 9",
        "event.data.missing == 1 || event.data.vip", "event.data.vip || event.data.missing == 1",
        "!(event.data.missing == 1 && false)", '"a" + "b" == "ab"', "[1] + [2] == [1, 2]", "'\\u0041' == 'A'",
        "1 < 2 == true", "'a' < 'b'", "true != 1",
    ],
)  # fmt: skip
def test_a_rule_fits(rule: str) -> None:
    assert matches(compile_rule(rule), EVENT)


@pytest.mark.parametrize(
    "rule",
    [
        'event.type == "order.v1"', "event.data.total > 200", "event.data.missing == 1", "event.data.missing != 1",
        "event.type > 7", "event.data.total", "'text'", "!event.data.total", "event.type.startsWith(7) || false",
        "event.data.total.startsWith('1')", "event.data.tags[9] == 1", "event.data.total.x == 1", "1 / 0 == 1",
        "event.data.missing == 1 && event.data.vip", "event.data.vip && event.data.missing == 1", "1 in 7",
        "size(7) == 1", "int('x') == 1", "-event.type == 1", "true + 1 == 2", "string(event.data) == ''",
        "event.type.matches('^v2')", "event.data.total.matches('1')", "event.data.missing.matches('1')",
        "event.data.huge % 0.01 == 0.0", "event.data.huge * 10.0 / 0.01 == 1.0", "event.data.long.matches('x')",
        "event.data.odd.matches('.')", "event.data.total ? true : true", "event == 1",
        "[1] in event.data", "event.data.huge * 10.0 / (event.data.huge * 10.0) % 2.0 == 1.0", "string(event.data.many) == ''",
        "event.data.many + 1 > 0", "9223372036854775807 * 9223372036854775807 > 0", "size(event.data.large + event.data.large) > 0",
    ],
)  # fmt: skip
def test_a_rule_does_not_fit(rule: str) -> None:
    assert not matches(compile_rule(rule), EVENT)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("", "is empty"), ("  ", "is empty"), ("event.", "expected a name"), ("event..type", "expected a name"),
        ("event.type ==", "ends too soon"), ("== 1", "did not expect '=='"), ("(event.type", r"expected '\)'"),
        ("event.type event.id", "did not expect"), ("type == 1", "type is not known"), ("event.a = 1", "cannot read"),
        ("event.tags.exists(t, t == 1)", "method exists"), ("event.tags.all(1)", "method all"), ("now() > 1", "function now"),
        ("size()", "takes one argument"), ("event.type.contains('a', 'b')", "takes one argument"), ("'open", "cannot read"),
        ("event.data[1", r"expected '\]'"), ("1 ? 2", "expected ':'"), ("has(1, 2)", "takes one argument"),
        ("(" * 100 + "1" + ")" * 100, "nested"), ("{'a': 1}", "cannot read"), ("'\\U00110000' == 'a'", "no character"),
        ("event.type.matches('(')", "the pattern cannot be read: missing"), ("event.type.matches(event.id)", "a pattern in quotes"),
        (r"event.type.matches(r'(a)\1')", "cannot be read: invalid escape"), ("event.type.matches('a', 'b')", r"expected '\)'"),
        ("event.type.matches('" + "a" * 501 + "')", "more than 500"), ("event.type.matches('(a{1000}){1000}')", "cannot be read"),
        ("!" * 3_000 + "true", "more than 500 operations"), ("1" + "+1" * 501, "more than 500"), ("event" + ".a" * 501, "more than 500"),
        ("event" + "[0]" * 501, "more than 500"), ("-" * 501 + "1", "more than 500"), ("true ? " * 501, "nested"),
        ("event.type.matches(", "a pattern in quotes"), ("event.data.total > 1 &", "cannot read"), ("[1, ,2]", "did not expect ','"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_when_it_is_read(rule: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        compile_rule(rule)


@given(st.text("event.data'\"()[]!&|=<>+-*/% 01abin\\", max_size=40))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = compile_rule(text)
    except Invalid:
        return
    matches(rule, EVENT)


def test_which_rules_search() -> None:
    assert searches("event.type == 'x' || event.id.matches('7')")
    assert not searches("event.type == 'matches' || event.id.contains('matches')")


def test_a_rule_as_large_as_may_be_is_evaluated() -> None:
    assert matches(compile_rule("1" + " + 1" * 499 + " == 500"), EVENT)


def test_values_too_deep_to_be_compared_fit_no_rule() -> None:
    def nested() -> Any:
        value: Any = 1
        for _ in range(5_000):
            value = [value]
        return value

    assert not matches(compile_rule("event.data.a == event.data.b"), {"data": {"a": nested(), "b": nested()}})
