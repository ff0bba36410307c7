"""`make cluster-demo`: three brokers, two servers, a client at every door; the owner is killed, then a broker, and the books are proved.

Everything runs on free ports of this machine, in a folder that is deleted at the end. Exit status 0 means that nothing was lost
or early, by the clients' own record and by `tarry audit`.
"""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.peers.peer import Skipped
from demo.books import now_ms, offences
from demo.clients import Dapr, DoorClient, Matrix, Native, Pulsar
from demo.show import Strike, console, verdict, watch
from demo.stage import CACHE, free_ports, tarry
from tarry.homeserver.environment import CannotInstall, ensure
from tarry.homeserver.synapse import PrivateSynapse
from tests.cluster.balancer import Balancer
from tests.cluster.brokers import Brokers
from tests.cluster.links import Network
from tests.cluster.servers import ClusterServer, service_url
from tests.processes import environment
from tests.waiting import wait_until

TOPIC: Final = "ledger"
SESSION_MS: Final = 3_000
AHEAD_MS: Final = 10_000
"""The first message is due so long after it was asked for; by then all of them are scheduled."""

_MATRIX: Final = """
[doors.matrix]
enabled = true
port = {port}
homeserver = "{homeserver}"
registration = "{registration}"
"""


class ClusterStage:
    """Brokers, servers, a homeserver and the load balancer in front."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.brokers = Brokers(folder)
        # The homeserver sends to the door by the load balancer too, whose ports are known once its servers are.
        self._homeserver = PrivateSynapse(folder / "homeserver")
        (homeserver_port,) = free_ports(1)
        self._homeserver.prepare(homeserver_port, None)
        key = folder / "key"
        key.write_bytes(os.urandom(32))
        self.servers: list[ClusterServer] = []
        for name, port in zip(("a", "b"), free_ports(2), strict=True):
            matrix = _MATRIX.format(
                port=port, homeserver=self._homeserver.address(), registration=self._homeserver.registration
            )
            server = ClusterServer(folder / name, self.brokers.addresses, TOPIC, key, SESSION_MS, matrix)
            server.doors["matrix"] = port
            self.servers.append(server)
        self._balancer = Balancer(network, [server.backend for server in self.servers])
        self.ports = {door: front.port for door, front in self._balancer.fronts.items()}
        self._synapse: subprocess.Popen[bytes] | None = None
        self._owner: ClusterServer | None = None
        self._struck_s = 0.0

    @property
    def url(self) -> str:
        """The native API, by the load balancer."""
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def pulsar_url(self) -> str:
        """The Pulsar door at both servers."""
        return service_url(self.servers)

    def add_user(self, name: str, password: str) -> None:
        """Register a user of the homeserver."""
        self._homeserver.register(name, password)

    def start(self) -> None:
        """Start everything, and wait until one server owns the ledger and the other stands by."""
        interpreter = ensure(CACHE / "synapse", print)
        self._homeserver.prepare(
            int(self._homeserver.address().rpartition(":")[2]), f"http://127.0.0.1:{self.ports['matrix']}"
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with (self.folder / "homeserver.log").open("wb") as log:
            self._synapse = subprocess.Popen(
                self._homeserver.command(interpreter),
                cwd=self._homeserver.folder,
                env=kept,
                stdout=log,
                stderr=log,
            )
        self.brokers.start()
        self.brokers.make_topic(TOPIC)
        for server in self.servers:
            server.launch()
        wait_until(lambda: self._ready() is not None)
        self._owner = self._ready()
        next(server for server in self.servers if server is not self._owner).wait_standby()

    def _ready(self) -> ClusterServer | None:
        return next((self.servers[number] for number in self._balancer.ready), None)

    def look(self) -> str | None:
        """A line when another server owns the ledger."""
        found = self._ready()
        if found is None or found is self._owner:
            return None
        self._owner = found
        return f"{found.name} owns the ledger, {time.monotonic() - self._struck_s:.1f} s later"

    def kill_owner(self) -> str:
        """SIGKILL to the server that owns the ledger."""
        assert self._owner is not None
        self._owner.kill()
        self._struck_s = time.monotonic()
        return f"SIGKILL to server {self._owner.name}, which owns the ledger"

    def kill_broker(self) -> str:
        """SIGKILL to the broker that leads the ledger's partition."""
        broker = self.brokers.leader(TOPIC)
        broker.kill()
        return f"SIGKILL to broker {broker.number}, which leads the ledger's partition"

    def audit(self) -> subprocess.CompletedProcess[bytes]:
        """Stop the owner; bring the index to the head, and audit."""
        assert self._owner is not None
        self._owner.stop()
        where = ("--config", str(self._owner.file), "--data", str(self._owner.folder))
        subprocess.run(tarry("pipeline", "--once", *where), env=environment(), capture_output=True)
        return subprocess.run(tarry("audit", *where), env=environment(), capture_output=True)

    def stop(self) -> None:
        """End all of it."""
        for server in self.servers:
            server.kill()
        self.brokers.stop()
        if self._synapse is not None:
            self._synapse.kill()
            self._synapse.wait()


@contextlib.contextmanager
def stage() -> Iterator[ClusterStage]:
    """A stage that leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-cluster-demo-"))
    try:
        with Network() as network:
            made = ClusterStage(folder, network)
            try:
                yield made
            finally:
                made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(count: int, seconds: float) -> int:
    """Run the demonstration; gives the exit status."""
    began = time.monotonic()
    with stage() as on, contextlib.ExitStack() as open_clients:
        console.print(f"Starting three brokers, two servers and a homeserver in {on.folder} …")
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
            f"{count} messages through each of {len(clients)} doors. The owner is killed on the way, and then a broker."
        )
        strikes = [
            Strike(first_ms + round(seconds * 250), on.kill_owner),
            Strike(first_ms + round(seconds * 650), on.kill_broker),
        ]
        pages = watch(pages, strikes, due[-1], on.look)
        open_clients.close()
        console.print("\nThe audit, from the books of the server that took over (a Spark job):")
        audit = on.audit()
        console.file.write(audit.stdout.decode())
        found = offences(pages)
        if audit.returncode != 0:
            found.append(
                f"tarry audit ended with {audit.returncode}: {audit.stderr.decode().strip()[-2000:]}"
            )
    return verdict(found, pages, time.monotonic() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="make cluster-demo", description="Three brokers, two servers, and a takeover."
    )
    parser.add_argument("--count", type=int, default=20, help="messages for each door")
    parser.add_argument("--seconds", type=float, default=30.0, help="over how long they are due")
    given = parser.parse_args()
    # Dapr's SDK prints whenever its sidecar is away; what is to be seen goes through the console.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(given.count, given.seconds)
        except (Skipped, CannotInstall, pytest.skip.Exception) as reason:
            console.print(f"The demonstration needs every client and broker: {reason}", markup=False)
            status = 1
    sys.exit(status)
