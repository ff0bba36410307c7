"""Waits before further attempts: they double, end at the longest, and are spread over their upper half."""

from itertools import islice

from tarry.core.backoff import after_attempts, doubling, spread


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
