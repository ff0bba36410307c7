"""`make demo`: schedule through every door, watch what arrives, kill the server in the middle, and prove the books.

Everything runs on free ports of this machine, in a folder that is deleted at the end. Exit status 0 means that nothing was lost
or early, by the clients' own record and by `tarry audit`.
"""

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.peers.peer import Skipped
from demo.books import Page, now_ms, offences
from demo.clients import Dapr, DoorClient, Matrix, Native, Pulsar
from demo.stage import Stage, stage
from tarry.homeserver.environment import CannotInstall

AHEAD_MS: Final = 5_000
"""The first message is due so long after it was asked for; by then all of them are scheduled."""
PATIENCE_S: Final = 120.0
"""After the last due instant, for the restarted server and for clients that come back with a wait of their own."""

console = Console(file=sys.stdout)


def main(count: int, seconds: float) -> int:
    """Run the demonstration; gives the exit status."""
    began = time.monotonic()
    with stage() as on, contextlib.ExitStack() as open_clients:
        console.print(f"Starting server, pipeline and homeserver in {on.folder} …")
        on.start()
        clients: list[DoorClient] = [made(on) for made in (Native, Pulsar, Dapr, Matrix)]
        for client in clients:
            open_clients.callback(client.close)
        first_ms = now_ms() + AHEAD_MS
        due = [first_ms + round(n * seconds * 1000 / count) for n in range(count)]
        for client in clients:
            client.schedule(due)
        pages = [client.page for client in clients]
        console.print(
            f"{count} messages through each of {len(clients)} doors. The server is killed on the way."
        )
        _watch(on, pages, first_ms + round(seconds * 500), due[-1])
        open_clients.close()
        on.stop()
        console.print("\nThe audit, from Tarry's own books (a Spark job):")
        audit = on.run("audit", "--data", str(on.data))
        console.file.write(audit.stdout.decode())
        console.print(
            f"[dim]Pulsar's {count} are delayed entries of a topic: the audit counts those apart, while they wait.[/]"
        )
        found = offences(pages)
        if audit.returncode != 0:
            found.append(
                f"tarry audit ended with {audit.returncode}: {audit.stderr.decode().strip()[-2000:]}"
            )
    return _verdict(found, pages, time.monotonic() - began)


def _watch(on: Stage, pages: Sequence[Page], kill_at_ms: int, last_due_ms: int) -> None:
    """Show the table until everything is there, or ought to be; and kill the server once."""
    killed = ""
    give_up_ms = last_due_ms + round(PATIENCE_S * 1000)
    # What clients print in between would otherwise go through the console, above the table.
    with Live(console=console, refresh_per_second=8, redirect_stdout=False, redirect_stderr=False) as live:
        while now_ms() < give_up_ms:
            if not killed and now_ms() >= kill_at_ms:
                on.kill_server()
                killed = (
                    f"SIGKILL to the server at {time.strftime('%H:%M:%S %Z')}; `tarry up` starts it again"
                )
            complete = killed and all(page.complete for page in pages)
            # Looked at before it is drawn, so that the last table is the state that the verdict is about.
            live.update(Group(_table(pages), Text(killed, style="bold red")), refresh=True)
            if complete:
                return
            time.sleep(0.1)


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


def _verdict(found: Sequence[str], pages: Sequence[Page], took_s: float) -> int:
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="make demo", description="Tarry and all its doors, with a crash in the middle."
    )
    parser.add_argument("--count", type=int, default=20, help="messages for each door")
    parser.add_argument("--seconds", type=float, default=20.0, help="over how long they are due")
    given = parser.parse_args()
    # Dapr's SDK prints whenever its sidecar is away; what is to be seen goes through the console.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(given.count, given.seconds)
        except (Skipped, CannotInstall) as reason:
            console.print(f"The demonstration needs every client: {reason}", markup=False)
            status = 1
    sys.exit(status)
