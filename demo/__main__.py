"""`make demo`: schedule through every door, watch what arrives, kill the server in the middle, and prove the books.

Everything runs on free ports of this machine, in a folder that is deleted at the end. Exit status 0 means that nothing was lost
or early, by the clients' own record and by `tarry audit`.
"""

import argparse
import contextlib
import io
import sys
import time
from typing import Final

from bench.peers.peer import Skipped
from demo.books import now_ms, offences
from demo.clients import Dapr, DoorClient, Matrix, Native, Pulsar
from demo.show import Strike, console, verdict, watch
from demo.stage import Stage, stage
from tarry.homeserver.environment import CannotInstall

AHEAD_MS: Final = 5_000
"""The first message is due so long after it was asked for; by then all of them are scheduled."""


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
        pages = watch(pages, [Strike(first_ms + round(seconds * 500), lambda: _kill(on))], due[-1])
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
    return verdict(found, pages, time.monotonic() - began)


def _kill(on: Stage) -> str:
    on.kill_server()
    return "SIGKILL to the server; `tarry up` starts it again"


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
