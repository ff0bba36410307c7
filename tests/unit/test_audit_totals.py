"""Counts of the audit where the beginning of the ledger, or of the history, is gone. No Spark."""

from typing import Any

import pytest

from tarry.index.kept import HistoryState
from tarry.pipeline.audit.acks import early_in_topic
from tarry.pipeline.audit.audit import Books, missing_in, totals

SUMS = {
    "accepted": 2, "adopted": 0, "scheduled": 3, "sent": 4, "cancelled": 1, "failed": 0, "by_command": 0, "entries": 0,
}  # fmt: skip


def books(first_seq: int, accepted: int | None, kept: HistoryState | None = None) -> Books:
    frame: Any = None
    return Books(frame, frame, frame, first_seq, 100, accepted, kept or HistoryState())


def test_the_whole_ledger_is_counted_from_its_records() -> None:
    counts, notes = totals(books(1, 99), SUMS | {"accepted": 8}, 0)
    assert (counts["accepted"], counts["finalised"], notes) == (8, 5, [])


@pytest.mark.parametrize(("accepted", "missing"), [(6, 0), (7, 1), (5, -1)])
def test_what_was_reclaimed_is_counted_by_the_index_stream(accepted: int, missing: int) -> None:
    given = books(50, accepted)
    counts, notes = totals(given, SUMS, 0)
    assert (counts["accepted"], missing_in(given, counts)) == (accepted + 2, missing)
    assert "below seq 50 were reclaimed" in notes[0]


def test_without_a_count_nothing_is_proved_and_that_is_said() -> None:
    given = books(50, None)
    counts, notes = totals(given, SUMS, 0)
    assert missing_in(given, counts) == 0
    assert "not proved" in notes[1]


def test_history_that_was_let_go_is_counted() -> None:
    given = books(50, 16, HistoryState(10, 0, "2026-01-01"))
    counts, notes = totals(given, SUMS, 0)
    assert missing_in(given, counts) == 0
    assert "before 2026-01-01 was let go: 10 messages" in notes[1]
    assert missing_in(books(50, 17, HistoryState(10, 0, "2026-01-01")), counts | {"accepted": 19}) == 1
    # Of a batch some had rows of their own, too.
    assert missing_in(books(50, 16, HistoryState(12, 1, "2026-01-01")), counts) == 0
    assert missing_in(books(50, 16, HistoryState(12, 0, "2026-01-01")), counts) == -2


def fact(kind: str, seq: int, **told: Any) -> dict[str, Any]:
    names = ("subscription", "entry_id", "fire_at_ms", "at_ms", "outcome", "below", "entries")
    return {"fact": kind, "seq": seq, "topic": "t"} | dict.fromkeys(names) | told


def test_acknowledgements_before_the_due_instant_are_told_apart() -> None:
    facts = [
        fact("subscribe", 1, subscription="fifo", outcome="exclusive"),
        fact("subscribe", 2, subscription="both", outcome="shared"),
        fact("entry", 3, entry_id=0, fire_at_ms=1_000),
        fact("entry", 4, entry_id=1, fire_at_ms=2_000),
        fact("ack", 5, subscription="fifo", below=2, entries=[], at_ms=1_500),
        fact("ack", 6, subscription="both", below=0, entries=[0], at_ms=1_500),
        fact("ack", 7, subscription="both", below=0, entries=[1], at_ms=1_500),
        fact("ack", 8, subscription="gone", below=0, entries=[1], at_ms=None),
        fact("ack", 9, subscription="old", below=0, entries=[0, 5], at_ms=900),
    ]
    assert [(one["subscription"], one["type"], one["entry_id"], one["single"]) for one in early_in_topic(facts)] == [
        ("fifo", "exclusive", 1, False), ("both", "shared", 1, True), ("old", "unknown", 0, True),
    ]  # fmt: skip


def test_a_cancelled_entry_is_nobodys_to_wait_for_and_a_rescheduled_one_is() -> None:
    facts = [
        fact("subscribe", 1, subscription="both", outcome="shared"),
        *(fact("entry", 2 + number, entry_id=number, fire_at_ms=5000) for number in range(3)),
        fact("entry", 5, entry_id=0, fire_at_ms=0, outcome="cancelled"),
        fact("entry", 6, entry_id=1, fire_at_ms=9000),
        # Carried forward when it was ready: that it was acknowledged before stays an offence.
        fact("ack", 7, subscription="both", at_ms=6000, below=0, entries=[0, 1, 2]),
        fact("ack", 8, subscription="both", at_ms=4000, below=0, entries=[2]),
        fact("entry", 9, entry_id=2, fire_at_ms=0),
    ]
    assert [(one["entry_id"], one["seq"]) for one in early_in_topic(facts)] == [(1, 7), (2, 8)]
