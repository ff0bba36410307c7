"""The demonstration's screen: the last table that is drawn is the state that the verdict is about."""

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from demo import show
from demo.books import Page, now_ms, offences

COUNT = 50


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal, and all that was ever drawn on it."""
    drawn = io.StringIO()
    monkeypatch.setattr(
        show, "console", Console(file=drawn, force_terminal=True, width=120, color_system=None)
    )
    return drawn


def last_table(screen: io.StringIO) -> dict[str, tuple[int, int, str]]:
    """By client: how many were asked for and arrived, and when the next is due, in the table that stays."""
    _, _, table = screen.getvalue().rpartition("client ")
    rows = re.findall(r"^ +(\S+) +(\d+) +(\d+) +(–|\S+ s) ", table, re.MULTILINE)
    return {client: (int(asked), int(arrived), due) for client, asked, arrived, due in rows}


def pages(due_at_ms: int) -> list[Page]:
    found = [Page("a door", "one"), Page("another", "two")]
    for page in found:
        for n in range(COUNT):
            page.scheduled(f"n{n}", due_at_ms)
    return found


@contextmanager
def arriving(step: Callable[[int], None]) -> Iterator[None]:
    """Have messages arrive in a thread of their own, as clients have them, until the end of the block or of the messages."""
    end = threading.Event()

    def run() -> None:
        for n in range(COUNT):
            if end.is_set():
                return
            step(n)
            time.sleep(0.005)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    end.set()
    thread.join()


def test_the_last_table_has_all_that_arrived(screen: io.StringIO) -> None:
    due_at_ms = now_ms()
    one, two = pages(due_at_ms)
    strikes = [show.Strike(due_at_ms + 50, lambda: "something is struck")]

    def step(n: int) -> None:
        for page in (one, two):
            page.arrived(f"n{n}", now_ms())

    with arriving(step):
        drawn = show.watch([one, two], strikes, due_at_ms)
    assert offences(drawn) == []
    assert last_table(screen) == {"one": (COUNT, COUNT, "–"), "two": (COUNT, COUNT, "–")}
    assert "something is struck" in screen.getvalue()
    assert show.verdict([], drawn, 1.0) == 0
    assert f"All {2 * COUNT} messages arrived" in screen.getvalue()


def test_the_last_table_is_the_verdict_also_when_it_gives_up_while_messages_arrive(
    screen: io.StringIO,
) -> None:
    one, two = pages(now_ms())
    for n in range(COUNT):
        two.arrived(f"n{n}", now_ms())
    with arriving(lambda n: one.arrived(f"n{n}", now_ms())):
        drawn = show.watch([one, two], [], now_ms(), patience_s=0.05)
    # The clients were not stopped at once.
    for n in range(COUNT):
        one.arrived(f"n{n}", now_ms())
    table = last_table(screen)
    asked, arrived, due = table["one"]
    assert (asked, due != "–") == (COUNT, True)
    assert 0 < arrived < COUNT
    assert table["two"] == (COUNT, COUNT, "–")
    assert offences(drawn) == [f"a door: {COUNT - arrived} messages did not arrive"]
    assert show.verdict(offences(drawn), drawn, 1.0) == 1
    assert f"{COUNT - arrived} messages did not arrive" in screen.getvalue()
    assert "arrived, none early" not in screen.getvalue()
