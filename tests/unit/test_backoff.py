"""Waits before further attempts: they double, end at the longest, and are spread over their upper half."""

import ast
from itertools import islice
from pathlib import Path

from tarry.core.time.backoff import after_attempts, doubling, spread


def test_waits_double_up_to_the_longest() -> None:
    assert list(islice(doubling(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_wait_after_attempts_doubles_with_each_but_the_first() -> None:
    assert [after_attempts(attempts, 100, 1_000) for attempts in range(7)] == [
        100,
        100,
        200,
        400,
        800,
        1_000,
        1_000,
    ]


def test_any_number_of_attempts_has_a_wait() -> None:
    assert after_attempts(10**9, 1, 3_600_000) == 3_600_000


def test_a_wait_is_spread_over_its_upper_half() -> None:
    assert spread(8.0, lambda: 0.0) == 4.0
    assert spread(8.0, lambda: 0.5) == 6.0


def doubled_up_to_a_bound(source: str) -> list[int]:
    """Numbers of lines with `min(…, wait * 2)` or `min(…, first << attempts)`: a backoff by hand."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "min"
        for bound in node.args
        if isinstance(bound, ast.BinOp)
        and (
            (isinstance(bound.op, ast.LShift) and "attempt" in ast.unparse(bound.right))
            or (
                isinstance(bound.op, ast.Mult)
                and any(isinstance(one, ast.Constant) and one.value == 2 for one in (bound.left, bound.right))
            )
        )
    ]


def test_nobody_else_doubles_a_wait() -> None:
    assert doubled_up_to_a_bound("a = min(2 * a, b)\nb = min(c, d << attempts)\nf = min(g, 3 * h)") == [1, 2]
    package = Path(__file__).parent.parent.parent / "src" / "tarry"
    elsewhere = [
        f"{path.relative_to(package)}:{line}"
        for path in package.rglob("*.py")
        for line in doubled_up_to_a_bound(path.read_text("utf-8"))
    ]
    assert {place.partition(":")[0] for place in elsewhere} == {"core/time/backoff.py"}, elsewhere
