"""The demonstration on the screen: a table that grows, what is struck meanwhile, and the verdict."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.books import Page, now_ms

PATIENCE_S: Final = 120.0
"""After the last due instant, for restarted servers and for clients that come back with a wait of their own."""

console = Console(file=sys.stdout)


@dataclass(frozen=True)
class Strike:
    """Something that is killed on the way."""

    at_ms: int
    do: Callable[[], str]
    """Does it; gives a line about it."""


def watch(
    pages: Sequence[Page],
    strikes: Sequence[Strike],
    last_due_ms: int,
    look: Callable[[], str | None] = lambda: None,
    patience_s: float = PATIENCE_S,
) -> list[Page]:
    """Show the table until everything is there, or ought to be; and strike. What `look` has to say is shown too.

    Gives the pages as the last table shows them, for the verdict: what comes later is in neither.
    """
    left, said = list(strikes), list[str]()
    give_up_ms = last_due_ms + round(patience_s * 1000)
    # What clients print in between would otherwise go through the console, above the table.
    with Live(console=console, refresh_per_second=8, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            if left and now_ms() >= left[0].at_ms:
                said.append(_at_present(left.pop(0).do()))
            if seen := look():
                said.append(_at_present(seen))
            drawn = [page.copy() for page in pages]
            live.update(Group(_table(drawn), Text("\n".join(said), style="bold red")), refresh=True)
            if (not left and all(page.complete for page in drawn)) or now_ms() >= give_up_ms:
                return drawn
            time.sleep(0.1)


def verdict(found: Sequence[str], pages: Sequence[Page], took_s: float) -> int:
    """Tell what was lost or early; gives the exit status."""
    for offence in found:
        console.print(f"[bold red]{offence}[/]")
    repeats = sum(page.repeats for page in pages)
    told = (
        f" {repeats} came a second time, because their acknowledgement was lost with the server."
        if repeats
        else ""
    )
    if not found:
        total = sum(len(page.due_at_ms) for page in pages)
        console.print(f"[bold green]All {total} messages arrived, none early, none lost.[/]{told}")
    console.print(f"[dim]{took_s:.0f} s[/]")
    return 1 if found else 0


def _at_present(line: str) -> str:
    return f"{time.strftime('%H:%M:%S %Z')}  {line}"


def _table(pages: Sequence[Page]) -> Table:
    table = Table(
        title="what is due, what arrived, and how late it was, in milliseconds",
        title_justify="left",
        box=SIMPLE,
    )
    table.add_column("client", no_wrap=True)
    for name in ("asked", "arrived", "next due", "last", "median", "worst"):
        table.add_column(name, justify="right", no_wrap=True)
    for page in pages:
        late = page.lateness_ms()
        next_ms = page.next_due_at_ms()
        table.add_row(
            page.client,
            str(len(page.due_at_ms)),
            str(len(page.arrived_at_ms)),
            "–" if next_ms is None else f"{(next_ms - now_ms()) / 1000:+.1f} s",
            *(f"{value:,}" for value in (late[-1], sorted(late)[len(late) // 2], max(late)))
            if late
            else ("–",) * 3,
        )
    return table
