"""The comparison of an audit's counts with the books can fail, and knows what nobody can know."""

from collections.abc import Callable

import pytest

from tests.crash.books import Books, Message
from tests.crash.tally import disagreements
from tests.crash.test_audit import TOPIC, entry, right_books

UPTO_MS = 2_000
COUNTS = {"sent": 6, "cancelled": 3, "scheduled": 1, "failed": 0, "finalised": 9, "accepted": 10}
"""The messages of the right books: sent, restarted, first, before, member and the hook; cancelled, second and ended; far."""


def test_right_counts_agree_with_right_books() -> None:
    assert disagreements(right_books(), COUNTS, UPTO_MS) == []


@pytest.mark.parametrize("fate", ["sent", "cancelled", "scheduled"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_wrong_count_is_found(fate: str, off: int) -> None:
    if (fate, off) == ("scheduled", 1):
        # The one that was never answered may wait.
        off = 2
    (line,) = disagreements(right_books(), COUNTS | {fate: COUNTS[fate] + off, "accepted": 10 + off,
                            "finalised": 9 + (off if fate != "scheduled" else 0)}, UPTO_MS)  # fmt: skip
    assert line.startswith(f"the audit counts {COUNTS[fate] + off} messages as {fate}")


def test_counts_that_do_not_add_up_and_failures_are_found() -> None:
    said = disagreements(right_books(), COUNTS | {"accepted": 11, "failed": 1}, UPTO_MS)
    assert [line.split(";")[0].split(":")[0] for line in said] == [
        "the audit counts 1 messages as failed",
        "the audit's counts do not add up",
    ]


def later(books: Books) -> None:
    books.messages.append(Message("later", "topic", TOPIC, 2_100, id="l"))
    books.entries.append(entry("later", 6, UPTO_MS + 100))


def unanswered(books: Books) -> None:
    books.messages.append(Message("perhaps", "topic", TOPIC, 10_000, far=True))


def of_an_open_group(books: Books) -> None:
    books.messages.append(Message("open", "topic", TOPIC, 10_000, far=True, group="h", id="o"))


@pytest.mark.parametrize(
    ("happen", "allowed"),
    [
        (later, [{"scheduled": 2}]),
        (unanswered, [{}, {"scheduled": 2}]),
        (of_an_open_group, [{"scheduled": 2}, {"cancelled": 4}]),
    ],
    ids=["what went out after the audit waited then", "what has no answer", "a group that is not over"],
)
def test_what_is_not_certain_may_be_either(
    happen: Callable[[Books], None], allowed: list[dict[str, int]]
) -> None:
    books = right_books()
    happen(books)
    for counts in allowed:
        told = COUNTS | counts
        told["finalised"] = told["sent"] + told["cancelled"]
        told["accepted"] = told["finalised"] + told["scheduled"]
        assert disagreements(books, told, UPTO_MS) == []
