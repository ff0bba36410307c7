"""Answers: they come once, and what is made of them keeps the error."""

import pytest

from tarry.core.errors import Conflict, NotFound
from tarry.engine.answer import Answer, all_of, failed, settled


def test_all_of_them_comes_with_the_last() -> None:
    answers: list[Answer[int]] = [Answer(), Answer(), settled(3)]
    came = all_of(answers)
    answers[1].fail(NotFound("gone"))
    before = came.settled
    answers[0].settle(1)
    assert (before, came.settled) == (False, True)
    assert [one.value() for one in came.value() if one.error() is None] == [1, 3]


def test_all_of_none_is_there_at_once() -> None:
    assert list(all_of([]).value()) == []


def test_what_is_made_of_a_value() -> None:
    first: Answer[int] = Answer()
    made = first.map(lambda number: str(number + 1))
    assert not made.settled
    first.settle(1)
    assert made.value() == "2"


def test_a_refusal_while_it_is_made_is_the_answer_and_anything_else_is_a_fault() -> None:
    def refuse(_: int) -> int:
        raise Conflict("no", "so")

    assert isinstance(settled(1).map(refuse).error(), Conflict)
    with pytest.raises(ZeroDivisionError):
        _ = settled(0).map(lambda number: 1 // number)


def test_an_answer_leads_to_another() -> None:
    second: Answer[str] = Answer()
    asked: list[int] = []

    def ask(number: int) -> Answer[str]:
        asked.append(number)
        return second

    both = settled(1).and_then(ask)
    assert asked == [1]
    assert not both.settled
    second.settle("two")
    assert both.value() == "two"


def test_nothing_follows_an_error() -> None:
    error = NotFound("gone")

    def never(_: object) -> Answer[int]:
        raise AssertionError("there is no value")

    assert failed(error).and_then(never).error() is error
    assert failed(error).map(never).error() is error


def test_who_hears_of_an_error_makes_nothing() -> None:
    answer: Answer[int] = Answer()
    error = NotFound("gone")
    answer.completer(lambda: 1)(error)
    assert answer.error() is error
