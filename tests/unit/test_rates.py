"""Rate limits: the generic cell rate algorithm with time passed in."""

from itertools import pairwise

import pytest

from tarry.core.limits import DAY_MS, MAX_DELAY_MS
from tarry.core.tenants.rates import MAX_OWNERS, Rates

ANN, BOB = ("ns", "ann"), ("ns", "bob")


def test_a_second_of_burst_is_allowed_and_then_one_at_a_time() -> None:
    rates = Rates()
    assert [rates.wait_ms(ANN, 10.0, 1000) for _ in range(10)] == [0] * 10
    wait = rates.wait_ms(ANN, 10.0, 1000)
    assert 0 < wait <= 101
    # A refusal takes nothing: after the wait it is allowed.
    assert rates.wait_ms(ANN, 10.0, 1000) == wait
    assert rates.wait_ms(ANN, 10.0, 1000 + wait) == 0
    assert rates.wait_ms(ANN, 10.0, 1000 + wait) > 0


def test_owners_have_their_own_allowance() -> None:
    rates = Rates()
    while not rates.wait_ms(ANN, 5.0, 0):
        pass
    assert rates.wait_ms(BOB, 5.0, 0) == 0


@pytest.mark.parametrize("rate", [0.001, 0.5, 1.0, 7.3, 1000.0])
def test_over_a_long_time_the_rate_is_kept(rate: float) -> None:
    rates, taken, now_ms = Rates(), 0, 0
    end_ms = round(100_000 / rate)
    while now_ms < end_ms:
        wait = rates.wait_ms(ANN, rate, now_ms)
        taken += wait == 0
        now_ms += wait
    # A hundred by the rate, and the burst of a second at the beginning.
    assert 99 <= taken <= 101 + max(1.0, rate)


def test_the_slowest_rate_allows_one_at_once() -> None:
    assert Rates().wait_ms(ANN, 0.001, 5) == 0


def test_reservations_follow_one_another_at_the_rate() -> None:
    rates = Rates()
    at = [rates.reserve(ANN, 10.0, 1000) for _ in range(25)]
    assert at[:10] == [1000] * 10
    gaps = [b - a for a, b in pairwise(at[10:])]
    assert all(99 <= gap <= 101 for gap in gaps)
    assert at == sorted(at)


def test_what_was_not_used_fills_up_again_to_one_second() -> None:
    rates = Rates()
    for _ in range(10):
        rates.reserve(ANN, 10.0, 0)
    assert [rates.reserve(ANN, 10.0, 60_000) for _ in range(10)] == [60_000] * 10
    assert rates.reserve(ANN, 10.0, 60_000) > 60_000


def test_a_clock_that_is_set_back_does_not_lock_an_owner_out() -> None:
    rates = Rates()
    for _ in range(10):
        rates.wait_ms(ANN, 10.0, 1_000_000_000)
    wait = rates.wait_ms(ANN, 10.0, 1_000)
    assert wait <= 1_000


def test_a_clock_that_is_set_back_keeps_reservations_near() -> None:
    rates = Rates()
    for _ in range(20):
        rates.reserve(ANN, 10.0, 1_000_000_000)
    assert rates.reserve(ANN, 10.0, 1_000) <= 1_000 + 2_100


def test_the_number_of_owners_remembered_is_bounded() -> None:
    rates = Rates()
    for n in range(MAX_OWNERS + 10):
        rates.wait_ms(("ns", str(n)), 1000.0, n * 2)
    assert len(rates._full_at) <= MAX_OWNERS


@pytest.mark.parametrize("rate", [5e-324, 1e-320, 1e-300, 1e-9, 1e9, 1e300])
def test_no_rate_leads_to_an_instant_that_cannot_be(rate: float) -> None:
    """A rate that an older version took into its ledger is there at every start."""
    rates, now_ms = Rates(), 1_700_000_000_000
    at = [rates.reserve(ANN, rate, now_ms) for _ in range(5)]
    assert at[0] == now_ms
    assert all(now_ms <= one <= now_ms + 5 * DAY_MS for one in at)
    waits = [rates.wait_ms(BOB, rate, now_ms) for _ in range(5)]
    assert waits[0] == 0
    assert max(waits) <= DAY_MS


def test_what_is_reserved_lies_never_further_ahead_than_the_longest_delay() -> None:
    rates, now_ms = Rates(), 1_700_000_000_000
    at = [rates.reserve(ANN, 1 / 86_400, now_ms) for _ in range(40_000)]
    assert at == sorted(at)
    assert at[-1] <= now_ms + MAX_DELAY_MS
