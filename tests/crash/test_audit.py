"""The audit can fail: each rule finds its offender in books that are made up, and nothing in books that are right."""

from collections.abc import Callable

import pytest

from tests.crash.audit import audit, counted
from tests.crash.books import Acknowledged, Arrival, Batch, Books, Command, Message, Publication, Receipt

TOPIC = "persistent://public/default/t"


def entry(label: str | None, entry_id: int, published_at_ms: int, subscription: str = "all") -> Receipt:
    return Receipt(TOPIC, subscription, entry_id, label, 100, published_at_ms + 1, published_at_ms)


def right_books() -> Books:
    """A little of everything, as it should be."""
    books = Books(kills=[500, 501])
    sent = Message("sent", "topic", TOPIC, 200, id="a")
    cancelled = Message("cancelled", "topic", TOPIC, 900, id="b")
    cancelled.commands.append(Command("cancel", 300, answered_at_ms=310, done=True))
    hook = Message("hook", "webhook", "http://h", 400, id="c")
    restarted = Message("restarted", "topic", TOPIC, 210, id="d")
    restarted.commands.append(Command("restart", 205, 600, answered_at_ms=206, done=True))
    unknown = Message("unknown", "topic", TOPIC, 100)
    far = Message("far", "topic", TOPIC, 10_000, far=True, id="e")
    first = Message("first", "topic", TOPIC, 220, group="g", id="f")
    second = Message("second", "topic", TOPIC, 230, group="g", id="g")
    batch = Batch("batch", adopted=True, cancel_asked=True, cancelled_at_ms=300, cancelled=1)
    before = Message("before", "topic", TOPIC, 250, batch=batch)
    ended = Message("ended", "topic", TOPIC, 800, batch=batch)
    member = Message("member", "topic", TOPIC, 260, batch=Batch("another", adopted=True))
    books.messages += [sent, cancelled, hook, restarted, unknown, far, first, second, before, ended, member]
    books.publications.append(Publication("pub", TOPIC, 240, repeated=False, entry_id=3))
    books.arrivals += [Arrival("hook", "c", 410, accepted=False), Arrival("hook", "c", 450, accepted=True)]
    books.arrivals.append(Arrival("hook", "c", 520, accepted=True))  # again, because of the crash
    books.entries = [
        entry("sent", 0, 200),
        entry("restarted", 1, 600),
        entry("first", 2, 220),
        entry("pub", 3, 240),
        entry("before", 4, 250),
        entry("member", 5, 260),
    ]
    books.receipts = [entry(e.label, e.entry_id, max(e.published_at_ms, 240), "work") for e in books.entries]
    books.acknowledged.append(Acknowledged(TOPIC, "work", (0, 1), -1, 700))
    books.states = {
        "sent": "sent",
        "cancelled": "cancelled",
        "far": "scheduled",
        "second": "cancelled",
        "hook": "sent",
    }
    return books


def message(books: Books, label: str) -> Message:
    return next(one for one in books.messages if one.label == label)


def lose(books: Books) -> None:
    books.entries = [one for one in books.entries if one.label != "sent"]


def lose_publication(books: Books) -> None:
    books.entries = [one for one in books.entries if one.label != "pub"]


def lose_member(books: Books) -> None:
    books.entries.pop()


def lose_from_a_cancelled_batch(books: Books) -> None:
    del books.entries[4]


def after_the_cancel_of_a_batch(books: Books) -> None:
    books.entries[4] = entry("before", 4, 301)


def lose_hook(books: Books) -> None:
    books.arrivals = books.arrivals[:1]


def double(books: Books) -> None:
    books.entries.append(entry("sent", 8, 300))


def double_unanswered(books: Books) -> None:
    books.entries += [entry("unknown", 8, 300), entry("unknown", 9, 300)]


def double_hook(books: Books) -> None:
    books.arrivals.append(Arrival("hook", "c", 530, accepted=True))


def publish_early(books: Books) -> None:
    books.entries[0] = entry("sent", 0, 199)


def publish_before_the_restart(books: Books) -> None:
    books.entries[1] = entry("restarted", 1, 599)


def receive_early(books: Books) -> None:
    books.receipts[3] = Receipt(TOPIC, "work", 3, "pub", 100, 239, 150)


def hook_early(books: Books) -> None:
    books.arrivals[0] = Arrival("hook", "c", 399, accepted=False)


def send_cancelled(books: Books) -> None:
    books.entries.append(entry("cancelled", 8, 900))


def hook_after_cancel(books: Books) -> None:
    message(books, "hook").commands.append(Command("cancel", 505, answered_at_ms=510, done=True))


def two_of_a_group(books: Books) -> None:
    books.entries.append(entry("second", 8, 230))


def none_of_a_group(books: Books) -> None:
    del books.entries[2]


def other_id(books: Books) -> None:
    books.arrivals[1] = Arrival("hook", "x", 450, accepted=True)


def other_entry_id(books: Books) -> None:
    books.publications[0].entry_id = 4


def stranger(books: Books) -> None:
    books.entries.append(entry("who", 8, 300))


def changed_payload(books: Books) -> None:
    books.entries.append(entry(None, 8, 300))


def changed_entry(books: Books) -> None:
    books.receipts.append(entry("first", 0, 300, "work"))


def acknowledged_again(books: Books) -> None:
    books.receipts.append(Receipt(TOPIC, "work", 1, "restarted", 701, 702, 600))


def acknowledged_up_to(books: Books) -> None:
    books.acknowledged.append(Acknowledged(TOPIC, "work", (), 3, 800))
    books.receipts.append(Receipt(TOPIC, "work", 2, "first", 801, 802, 240))


def not_seen(books: Books) -> None:
    del books.receipts[2]


def wrong_state(books: Books) -> None:
    books.states["sent"] = "scheduled"


def lost_far(books: Books) -> None:
    books.states["far"] = "cancelled"


def complaint(books: Books) -> None:
    books.complaints.append("answered with 500")


OFFENCES: list[tuple[Callable[[Books], None], str]] = [
    (lose, "lost: sent"), (lose_publication, "lost: pub"), (lose_member, "lost: member"),
    (lose_from_a_cancelled_batch, "batches: of batch 0 of 2"), (after_the_cancel_of_a_batch, "batches: batch was cancelled"), (lose_hook, "lost: hook"), (double, "doubled: sent"),
    (double_unanswered, "doubled: unknown"), (double_hook, "doubled: hook"), (publish_early, "early: sent"),
    (publish_before_the_restart, "early: restarted"), (receive_early, "early: pub"), (hook_early, "early: hook"),
    (send_cancelled, "after_a_cancel: cancelled"), (hook_after_cancel, "after_a_cancel: hook"),
    (two_of_a_group, "groups: of group g"), (none_of_a_group, "groups: of group g none"), (other_id, "ids: hook"),
    (other_entry_id, "ids: pub"), (stranger, "strangers: entry 8"), (changed_payload, "strangers: entry 8"),
    (changed_entry, "entries: entry 0"), (acknowledged_again, "acknowledged_came_again: entry"),
    (acknowledged_up_to, "acknowledged_came_again: entry"), (not_seen, "not_seen_by_a_subscription: entry 2"),
    (wrong_state, "states: the server says that sent"), (lost_far, "states: the server says that far"),
    (complaint, "complaint: answered with 500"),
]  # fmt: skip


def test_right_books_have_no_offender() -> None:
    assert audit(right_books()) == []


@pytest.mark.parametrize(("offend", "said"), OFFENCES, ids=[offend.__name__ for offend, _ in OFFENCES])
def test_an_offender_is_found(offend: Callable[[Books], None], said: str) -> None:
    books = right_books()
    offend(books)
    assert any(line.startswith(said) for line in audit(books)), audit(books)


def test_a_fault_that_lasts_explains_what_came_twice_within_it_and_nothing_after_it() -> None:
    books = right_books()
    books.kills = [400, 600]
    books.arrivals.append(Arrival("hook", "c", 530, accepted=True))
    assert audit(books) == []
    books.arrivals += [Arrival("hook", "c", at_ms, accepted=True) for at_ms in (700, 701)]
    (line,) = audit(books)
    assert line.startswith("doubled: hook arrived at 700 and again at 701")


def test_offenders_are_counted_by_rule() -> None:
    books = right_books()
    assert not counted(books)
    lose(books)
    double_hook(books)
    assert counted(books)["lost"] == 1
    assert counted(books)["doubled"] == 1
    assert not counted(books)["early"]
