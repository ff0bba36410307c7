"""The checker and the model, on histories that were written by hand: good ones pass, and each bad one is found."""

from math import inf

import pytest

from tests.linearizability.checker import Operation, order_of
from tests.linearizability.entry import EntryModel
from tests.linearizability.life import Dialect, Happened, Life, Model

DELAY_MS = 100


def at(called: float, returned: float, kind: str, result: str = "ok", **more: object) -> Operation[Happened]:
    """An operation whose instants are those of the clock on the wall too."""
    to_ms = 1 << 60 if returned == inf else int(returned)
    since = more.pop("since_ms", None)
    what = Happened(kind, result, max(0, int(called)), to_ms, since)  # type: ignore[arg-type]
    return Operation(what=what, called=called, returned=returned, **more)  # type: ignore[arg-type]


def claim(got: float) -> Operation[Happened]:
    return Operation(what=Happened("claim", to_ms=int(got)), returned=got)


def verdict(answered: float, result: str) -> Operation[Happened]:
    return Operation(what=Happened("verdict", result), called=answered)


def explained(*history: Operation[Happened], dialect: Dialect = "seed", doubtful: bool = False) -> bool:
    model = Model(dialect, DELAY_MS, doubtful)
    return order_of([at(0, 1, "schedule"), *history], Life(), model.step) is not None


def sending(called: float, returned: float, result: str, place: int = 1) -> list[Operation[Happened]]:
    """A `send` that waits for its outcome; `place` is where it stands in the history."""
    return [at(called, returned, "due", optional=True), at(called, returned, "outcome", result, after=place)]


def test_the_search_goes_through_every_order() -> None:
    """A register: reads have to see the write before them, and overlapping ones may be in any order."""

    def register(value: int, what: tuple[str, int]) -> list[int]:
        kind, number = what
        return [number] if kind == "write" else [value] if value == number else []

    def one(called: float, returned: float, kind: str, number: int) -> Operation[tuple[str, int]]:
        return Operation(what=(kind, number), called=called, returned=returned)

    overlapping = [one(0, 9, "write", 1), one(0, 9, "write", 2), one(1, 8, "read", 2), one(1, 8, "read", 1)]
    assert order_of(overlapping, 0, register) is not None
    one_by_one = [one(0, 1, "write", 1), one(2, 3, "write", 2), one(4, 5, "read", 1)]
    assert order_of(one_by_one, 0, register) is None
    # A write without an answer may have happened, and then stays so.
    unanswered = [one(0, inf, "write", 1), one(2, 3, "read", 1), one(4, 5, "read", 0)]
    assert order_of(unanswered, 0, register) is None
    assert order_of(unanswered[:2], 0, register) == [0, 1]
    assert order_of(one_by_one[:2], 0, register) == [0, 1]
    # However long it is.
    long = [one(2 * n, 2 * n + 1, "write", n) for n in range(3000)]
    assert order_of(long, 0, register) == list(range(3000))
    assert order_of([unanswered[0], unanswered[2]], 0, register) is not None


GOOD = {
    "sent when it was due": [claim(110), verdict(111, "accepted"), at(200, 201, "look", "sent")],
    "a cancel before it was due": [at(50, 51, "cancel"), at(300, 301, "look", "cancelled")],
    "a restart puts it off": [at(50, 51, "restart"), claim(151), verdict(152, "accepted")],
    "a cancel that waits for a failed attempt": [claim(110), at(115, 130, "cancel"), verdict(120, "later")],
    "a cancel that comes too late": [
        claim(110),
        verdict(111, "accepted"),
        at(105, 130, "cancel", "conflict"),
    ],
    "a send and its delivery": [*sending(10, 30, "sent"), claim(15), verdict(20, "accepted")],
    "a send that a cancel overtook": [*sending(10, 30, "conflict"), at(11, 20, "cancel")],
    "a send that is due, and a later cancel": [at(10, 20, "due"), at(30, 31, "cancel")],
    "a reply that was lost": [claim(110), verdict(111, "lost"), at(150, 151, "cancel", "conflict")],
    "a look shows when the delay began": [at(50, 55, "restart"), at(60, 61, "look", "waiting", since_ms=52)],
}

BAD = {
    "sent after an answered cancel": [at(50, 51, "cancel"), claim(110), verdict(111, "accepted")],
    "sent before it was due": [claim(60), verdict(61, "accepted")],
    "sent at the old time after a restart": [at(50, 51, "restart"), claim(110), verdict(111, "accepted")],
    "a send that was never sent": [*sending(10, 30, "sent"), at(11, 20, "cancel")],
    "a send that was put off": [*sending(10, 30, "sent"), at(11, 20, "restart"), claim(120), verdict(121, "accepted")],
    "cancelled while it was being sent": [claim(110), at(115, 118, "cancel"), verdict(120, "accepted")],
    "restarted after it was sent": [claim(110), verdict(111, "accepted"), at(120, 121, "look", "sent"), at(130, 131, "restart")],
    "cancelled although it was taken": [claim(110), verdict(111, "lost"), at(150, 151, "cancel")],
    "a conflict without a reason": [at(50, 51, "restart", "conflict")],
    "a cancel that came back": [at(50, 51, "cancel"), at(60, 61, "look", "waiting")],
    "sent, and then not": [claim(110), verdict(111, "accepted"), at(120, 121, "look", "sent"), at(130, 131, "look", "waiting")],
    "a look at an older version": [at(50, 55, "restart"), at(60, 61, "look", "waiting", since_ms=1)],
    "two deliveries of one message": [claim(110), verdict(111, "accepted"), claim(120), verdict(121, "accepted")],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_is_explained(name: str) -> None:
    assert explained(*GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found(name: str) -> None:
    assert not explained(*BAD[name])


def test_dialects_differ_in_what_they_answer() -> None:
    again = [at(50, 51, "cancel"), at(60, 61, "cancel")]
    assert explained(*again, dialect="merged")
    assert not explained(*again, dialect="seed")
    # A refused `send` leaves an event of the merged dialect scheduled, and ends others.
    refused = [*sending(10, 30, "refused"), claim(15), verdict(20, "refused"), at(50, 51, "look", "waiting")]
    assert explained(*refused, dialect="merged")
    assert not explained(*refused, dialect="query")
    unseen = [at(50, 51, "cancel", "conflict")]
    assert explained(*unseen, doubtful=True)
    assert not explained(*unseen)


# The server is killed

KILLED = {
    "an attempt that was broken off comes again": [claim(110), at(112, 130, "crash"), claim(140), verdict(141, "accepted")],
    "what was accepted is sent, or comes again": [claim(110), verdict(111, "accepted"), at(112, 130, "crash"), claim(140)],
    "a command without an answer that happened": [at(50, 60, "cancel", optional=True), at(55, 90, "crash"), at(95, 96, "look", "cancelled")],
    "a command without an answer that did not": [at(50, 60, "cancel", optional=True), at(55, 90, "crash"), claim(110), verdict(111, "accepted")],
    "of what may have arrived a cancel is refused": [claim(110), at(112, 130, "crash"), at(140, 141, "cancel", "conflict")],
    "a further attempt that did not arrive makes it forget": [
        claim(110), at(112, 130, "crash"), claim(140), verdict(141, "later"), at(150, 151, "cancel"),
    ],
}  # fmt: skip

BADLY_KILLED = {
    "a cancel that the crash undid": [at(50, 51, "cancel"), at(55, 90, "crash"), at(95, 96, "look", "waiting")],
    "a restart that the crash undid": [at(50, 51, "restart"), at(55, 90, "crash"), claim(110), verdict(111, "accepted")],
    "sent again although it had been told": [
        claim(110), verdict(111, "accepted"), at(115, 116, "look", "sent"), at(120, 130, "crash"), claim(140),
    ],
    "cancelled although it may have arrived": [claim(110), at(112, 130, "crash"), at(140, 141, "cancel")],
    "a command without an answer that happens after the crash": [
        at(50, 60, "cancel", optional=True), at(55, 90, "crash"), at(95, 96, "look", "waiting"), at(97, 98, "look", "cancelled"),
    ],
    "early after a crash": [at(20, 30, "crash"), claim(60), verdict(61, "accepted")],
}  # fmt: skip


@pytest.mark.parametrize("name", KILLED)
def test_a_good_history_with_a_crash_is_explained(name: str) -> None:
    assert explained(*KILLED[name])


@pytest.mark.parametrize("name", BADLY_KILLED)
def test_a_bad_history_with_a_crash_is_found(name: str) -> None:
    assert not explained(*BADLY_KILLED[name])


# Pauses, retries and names

FAILED = [claim(110), verdict(111, "refused")]

GOOD_NATIVE = {
    "a pause keeps what is left of the delay": [
        at(40, 41, "pause"), at(200, 201, "look", "paused"), at(300, 301, "resume"), claim(360), verdict(361, "accepted"),
    ],
    "a pause that waits for a failed attempt": [claim(110), at(115, 130, "pause"), verdict(120, "later"), at(140, 141, "look", "paused")],
    "a pause that comes too late": [claim(110), verdict(111, "accepted"), at(120, 121, "pause", "conflict")],
    "a cancel of what is paused": [at(40, 41, "pause"), at(50, 51, "cancel"), at(60, 61, "resume", "conflict")],
    "a send ends a pause": [at(40, 41, "pause"), at(50, 51, "due"), claim(52), verdict(53, "accepted")],
    "a restart ends a pause": [at(40, 41, "pause"), at(50, 51, "restart"), claim(151), verdict(152, "accepted")],
    "a second pause changes nothing": [at(40, 41, "pause"), at(90, 91, "pause"), at(100, 101, "resume"), claim(159), verdict(160, "accepted")],
    "a retry of what has failed": [*FAILED, at(120, 121, "retry"), claim(122), verdict(123, "accepted"), at(130, 131, "look", "sent")],
    "a retry of what has not": [at(50, 51, "retry", "conflict"), claim(110), verdict(111, "accepted"), at(120, 121, "retry", "conflict")],
    "its name is taken while it waits": [at(50, 51, "named"), claim(110), verdict(111, "accepted"), at(120, 121, "unnamed")],
    "another one takes its place": [at(50, 51, "replace"), at(60, 61, "look", "cancelled")],
    "a replace that waits for an attempt that arrived": [claim(110), at(105, 130, "unnamed"), verdict(120, "accepted")],
    "a pause without an answer that the crash took along": [at(40, 50, "pause", optional=True), at(45, 60, "crash"), claim(110)],
}  # fmt: skip

BAD_NATIVE = {
    "sent while it is paused": [at(40, 41, "pause"), claim(110), verdict(111, "accepted")],
    "a pause that forgot what was left": [at(40, 41, "pause"), at(300, 301, "resume"), claim(340), verdict(341, "accepted")],
    "a pause that nobody sees": [at(40, 41, "pause"), at(50, 51, "look", "scheduled")],
    "a pause out of nothing": [at(50, 51, "look", "paused")],
    "a resume of what is not paused": [at(50, 51, "resume")],
    "a resume that is refused": [at(40, 41, "pause"), at(50, 51, "resume", "conflict")],
    "a pause that the crash undid": [at(40, 41, "pause"), at(45, 60, "crash"), at(70, 71, "look", "scheduled")],
    "a retry of what was sent": [claim(110), verdict(111, "accepted"), at(120, 121, "retry")],
    "a retry that nothing came of": [*FAILED, at(120, 121, "retry"), at(130, 131, "look", "failed")],
    "a retry that is refused": [*FAILED, at(115, 116, "look", "failed"), at(120, 121, "retry", "conflict")],
    "two messages of one name": [at(50, 51, "unnamed")],
    "a name that is not free when its message has ended": [at(50, 51, "cancel"), at(60, 61, "named")],
    "sent although it was replaced": [at(50, 51, "replace"), claim(110), verdict(111, "accepted")],
    "replaced although it may have arrived": [claim(110), verdict(111, "lost"), at(150, 151, "replace")],
    "a replace that is refused for nothing": [at(50, 51, "replace", "conflict")],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_NATIVE)
def test_a_good_history_of_pauses_retries_and_names_is_explained(name: str) -> None:
    assert explained(*GOOD_NATIVE[name], dialect="native")


@pytest.mark.parametrize("name", BAD_NATIVE)
def test_a_bad_history_of_pauses_retries_and_names_is_found(name: str) -> None:
    assert not explained(*BAD_NATIVE[name], dialect="native")


# Delayed entries


def delivery(got: float) -> Operation[Happened]:
    return Operation(what=Happened("delivery", to_ms=int(got)), returned=got)


def entry_explained(*history: Operation[Happened]) -> bool:
    model = EntryModel(DELAY_MS)
    return order_of([at(0, 1, "publish"), *history], Life(), model.step) is not None


GOOD_ENTRIES = {
    "given when it was due": [at(10, 11, "look", since_ms=0), delivery(105), at(110, 111, "look", "conflict")],
    "a cancel before it was due": [at(50, 51, "cancel"), at(200, 201, "look", "conflict")],
    "a restart puts it off": [at(50, 55, "restart"), at(60, 61, "look", since_ms=52), delivery(160)],
    "given again after a crash": [delivery(105), at(106, 120, "crash"), delivery(125)],
    "a cancel that came too late": [at(101, 102, "cancel", "conflict"), delivery(110)],
}  # fmt: skip

BAD_ENTRIES = {
    "early": [delivery(90)],
    "given after an answered cancel": [at(50, 51, "cancel"), delivery(105)],
    "given at the old time after a restart": [at(50, 51, "restart"), delivery(105)],
    "cancelled after it was due": [at(101, 102, "look", "conflict"), at(103, 104, "cancel")],
    "moved after it was given": [delivery(105), at(106, 107, "restart")],
    "gone without a reason": [at(50, 51, "look", "conflict")],
    "a cancel that the crash undid": [at(50, 51, "cancel"), at(55, 60, "crash"), at(70, 71, "look", since_ms=0)],
    "a look at an older instant": [at(50, 55, "restart"), at(60, 61, "look", since_ms=0)],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_ENTRIES)
def test_a_good_history_of_an_entry_is_explained(name: str) -> None:
    assert entry_explained(*GOOD_ENTRIES[name])


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_bad_history_of_an_entry_is_found(name: str) -> None:
    assert not entry_explained(*BAD_ENTRIES[name])
