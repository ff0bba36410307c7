"""Repeats, names and pauses under SIGKILL, and an audit of what came; of the audit, that each of its rules can fail."""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from tarry.client import Received
from tests.crash.campaign import run
from tests.crash.native import (
    FROZEN,
    NAMED,
    OWNED,
    OWNER,
    PAUSED,
    REPEATED,
    NativeBooks,
    NativeCampaign,
    Span,
    Told,
    offenders,
)

AT_LEAST: Final = 3
AT_MOST: Final = 8
WITHIN_S: Final = 12.0


@pytest.mark.crash
def test_each_occurrence_once_one_message_for_a_name_and_nothing_that_is_paused(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    said: list[str] = []
    began = time.monotonic()

    campaign = NativeCampaign(tmp_path, seed)

    def go_on(crashes: int) -> bool:
        enough = len(campaign.books.told) > 30 and time.monotonic() - began > WITHIN_S
        return crashes < AT_LEAST or (crashes < AT_MOST and not enough)

    found = run(campaign, go_on, said.append)
    assert not found, "\n".join([f"seed {seed}", said[-1], *found])
    books = campaign.books
    # It is about something.
    assert sum(map(len, books.occurrences.values())) > 10, said[-1]
    assert {told.fate for told in books.told.values()} >= {"comes", "never"}, said[-1]
    assert {PAUSED, OWNER} <= books.pauses.keys(), said[-1]


def entry(payload: str, at_ms: int = 1_000, due_at_ms: int = 1_000, **headers: str) -> Received:
    return Received(
        entry_id=0, published_at_ms=at_ms, due_at_ms=due_at_ms, payload_text=payload,
        headers={f"tarry-{name}": value for name, value in headers.items()},
    )  # fmt: skip


def once(at_ms: int = 1_000, due_at_ms: int = 1_000) -> Received:
    return entry("r", at_ms, due_at_ms, repeat="r", occurrence="1970-01-01T00:00:01.000Z")


@pytest.mark.parametrize(
    ("topic", "entries", "told"),
    [
        (REPEATED, [once()], None),
        (REPEATED, [], "occurrence 1000 of r is missing"),
        (REPEATED, [once(), once()], "occurrence 1000 of r came 2 times"),
        (REPEATED, [once(), entry("r", repeat="r", occurrence="1970-01-01T00:00:02Z")], "occurrence 2000 of r came 1"),
        (REPEATED, [once(2_500)], None),
        (REPEATED, [once(2_500, 2_100)], "while r was paused"),
        (NAMED, [entry("a")], None),
        (NAMED, [], "message a is missing"),
        (NAMED, [entry("a"), entry("a")], "message a came 2 times"),
        (NAMED, [entry("a"), entry("b")], "message b came 1 times, and it is one that never"),
        (NAMED, [entry("a"), entry("c"), entry("c")], "message c came 2 times"),
        (NAMED, [entry("a"), entry("z")], "nobody has asked for z"),
        (NAMED, [entry("a", 999)], "came into"),
        (FROZEN, [entry("f", 2_500)], "while f was paused"),
        (FROZEN, [entry("f", 3_400)], "before its delay was over"),
        (FROZEN, [entry("f", 3_500)], None),
        (PAUSED, [entry("p", 2_500)], f"while {PAUSED} was paused"),
        (OWNED, [entry("p", 2_500)], f"while {OWNER} was paused"),
        (OWNED, [entry("p", 3_000)], None),
    ],
)  # fmt: skip
def test_the_audit_notices(topic: str, entries: list[Received], told: str | None) -> None:
    books = NativeBooks()
    books.entries_of[topic] = entries
    if topic == REPEATED:
        books.occurrences["r"] = [1_000]
    elif topic == NAMED:
        books.told = {"a": Told(), "b": Told(fate="never"), "c": Told(fate="either")}
    else:
        books.told["f" if topic == FROZEN else "p"] = Told()
    for what in (PAUSED, OWNER, "r"):
        books.pauses[what].append(Span(2_000, 3_000))
    books.pauses["f"].append(Span(2_000, 3_000, left_ms=500))
    found = offenders(books)
    assert [told in one for one in found] == [True] if told else found == [], found
