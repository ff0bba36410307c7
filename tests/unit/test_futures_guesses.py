"""Wrong tokens in a row: so many, then a pause, by source."""

import pytest

from tarry.doors.matrix import futures_guesses
from tarry.doors.matrix.futures_guesses import Guesses

T = 1_700_000_000_000


def guess(guesses: Guesses, source: str, times: int, now_ms: int = T) -> None:
    for _ in range(times):
        assert guesses.wait_ms(source, now_ms) == 0
        guesses.wrong(source, now_ms)


def test_after_so_many_wrong_tokens_in_a_row_there_is_a_pause() -> None:
    guesses = Guesses(5, 10_000)
    guess(guesses, "1.2.3.4", 5)
    assert guesses.wait_ms("1.2.3.4", T) == 10_000
    assert guesses.wait_ms("1.2.3.4", T + 9_999) == 1
    assert guesses.wait_ms("1.2.3.5", T) == 0
    # Then it begins again.
    guess(guesses, "1.2.3.4", 5, T + 10_000)
    assert guesses.wait_ms("1.2.3.4", T + 10_000) == 10_000


def test_a_valid_token_begins_the_count_again() -> None:
    guesses = Guesses(5, 10_000)
    for _ in range(3):
        guess(guesses, "1.2.3.4", 4)
        guesses.right("1.2.3.4")
    assert len(guesses) == 0


def test_none_at_all_means_no_limit() -> None:
    guess(Guesses(0, 10_000), "1.2.3.4", 100)


def test_a_clock_that_is_set_back_does_not_make_the_pause_longer() -> None:
    guesses = Guesses(1, 10_000)
    guess(guesses, "1.2.3.4", 1)
    assert guesses.wait_ms("1.2.3.4", T - 3_600_000) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("not an address", "not an address", True),
        ("x" * 1000 + "1", "x" * 1000 + "2", True),
    ],
)
def test_which_sources_are_one(one: str, other: str, same: bool) -> None:
    guesses = Guesses(1, 10_000)
    guess(guesses, one, 1)
    assert (guesses.wait_ms(other, T) > 0) is same


def test_memory_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures_guesses, "MAX_SOURCES", 3)
    guesses = Guesses(2, 10_000)
    for last in (1, 2, 3, 1, 4):
        guesses.wrong(f"10.0.0.{last}", T)
    assert len(guesses) == 3
    assert guesses.wait_ms("10.0.0.1", T) > 0
    guesses.wrong("10.0.0.2", T)
    assert guesses.wait_ms("10.0.0.2", T) == 0
