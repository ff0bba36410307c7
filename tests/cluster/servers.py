"""Real servers that share a ledger on a test's brokers: one owns it, the others stand by."""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx

from tests.cluster.balancer import Backend
from tests.cluster.brokers import Brokers
from tests.cluster.set_wrong import FILE
from tests.processes import ROOT, ServerProcess, free_port
from tests.waiting import wait_until

SESSION_MS: Final = 3_000


class ClusterServer(ServerProcess):
    """A server with ports that stay its own. Beside a single broker it takes the topic, which is unsafe, all the same."""

    def __init__(
        self,
        folder: Path,
        brokers: str,
        topic: str,
        key: Path,
        session_ms: int = SESSION_MS,
        further: str = "",
        access: str = "",
        segment_bytes: int = 1 << 20,
    ) -> None:
        """`further` settings begin in the table `cluster`; `access` is what the brokers want beyond their addresses."""
        if "," not in brokers:
            self.program = (str(ROOT / "tests" / "cluster" / "lenient.py"),)
        self._wrong_by: Path | None = None
        """The file that says by how much its clock is wrong, if it has one of its own."""
        self.doors = {door: free_port() for door in ("http", "pulsar", "dapr", "dapr_grpc")}
        """The port of each door."""
        config = f"""
[ledger]
segment_bytes = {segment_bytes}
log = "kafka"
topic = "{topic}"
[ledger.kafka]
bootstrap.servers = "{brokers}"
{access}
[cluster]
node = "{folder.name}"
id_key_file = "{key}"
session_timeout_ms = {session_ms}
{further}
[doors.pulsar]
enabled = true
port = {self.doors["pulsar"]}
[doors.dapr]
enabled = true
port = {self.doors["dapr"]}
grpc_port = {self.doors["dapr_grpc"]}
[webhook]
allow = ["127.0.0.0/8"]
"""
        super().__init__(folder, config, port=self.doors["http"])
        self.config = config
        self.url = f"http://127.0.0.1:{self.port}"

    def launch(self, *, wrapper: Sequence[str] = (), arguments: Sequence[str] = (), **settings: str) -> None:
        """Start it and do not wait, with its own clock if it has one."""
        own = {} if self._wrong_by is None else {FILE: str(self._wrong_by)}
        super().launch(wrapper=wrapper, arguments=arguments, **own | settings)

    def set_wrong(self, ms: int) -> None:
        """Have its wall clock be wrong by so much; the first time, from its next start on."""
        if self._wrong_by is None:
            self._wrong_by = self.folder.with_name(f"{self.name}.clock")
            self.program = (str(ROOT / "tests" / "cluster" / "set_wrong.py"),)
        draft = self._wrong_by.with_suffix(".draft")
        draft.write_text(str(ms))
        draft.rename(self._wrong_by)

    @property
    def name(self) -> str:
        """Its name among the nodes."""
        return self.folder.name

    @property
    def backend(self) -> Backend:
        """Behind a load balancer."""
        return Backend(self.doors["http"], self.doors)

    @property
    def listener(self) -> str:
        """Its listener at brokers on a network, by which it alone is cut off."""
        return self.name.upper()

    def ready(self) -> httpx.Response | None:
        """The answer of `/readyz`; None if nobody is there."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False)
        return None

    @property
    def owns(self) -> bool:
        """Whether it is ready."""
        answer = self.ready()
        return answer is not None and answer.status_code == 200

    @property
    def stands_by(self) -> bool:
        """Whether it says so."""
        answer = self.ready()
        return answer is not None and any("standby" in reason for reason in answer.json()["reasons"])

    def wait_owner(self) -> None:
        """Wait until it owns the ledger and is ready."""
        wait_until(lambda: self.owns or self.ended, self.stuck)
        assert not self.ended, self.said()

    def stuck(self) -> str:
        """Everything that it said, and the stacks of its threads, for which it is aborted."""
        self.signal(signal.SIGABRT)
        self.reap()
        return self.said()

    def wait_standby(self) -> None:
        """Wait until it stands by and has read the log to its end."""
        wait_until(lambda: self.stands_by and self.figure("tarry_cluster_standing") == 1, self.said)

    def wait_figure(self, name: str, value: float) -> None:
        """Wait until a figure of its metrics has come to a value, or beyond it."""
        wait_until(lambda: (self.figure(name) or 0) >= value, lambda: f"{name} is {self.figure(name)}")

    def figure(self, name: str) -> float | None:
        """A figure of its metrics; None if it has none."""
        text = httpx.get(f"{self.url}/metrics", timeout=5, trust_env=False).text
        lines = (line.split() for line in text.splitlines() if line.startswith(f"{name} "))
        return next((float(value) for _, value in lines), None)


def service_url(servers: Sequence[ClusterServer]) -> str:
    """The address for a Pulsar client: both servers."""
    return "pulsar://" + ",".join(f"127.0.0.1:{server.doors['pulsar']}" for server in servers)


@contextlib.contextmanager
def two_servers(
    folder: Path,
    cluster: Brokers,
    topic: str,
    session_ms: int = SESSION_MS,
    further: str = "",
    segment_bytes: int = 1 << 20,
) -> Iterator[list[ClusterServer]]:
    """An owner and a standby, in this order."""
    key = folder / "key"
    key.write_bytes(os.urandom(32))
    servers = [
        ClusterServer(
            folder / name, cluster.addresses, topic, key, session_ms, further, segment_bytes=segment_bytes
        )
        for name in ("a", "b")
    ]
    try:
        for server in servers:
            server.launch()
        wait_until(
            lambda: any(server.owns for server in servers), lambda: "".join(map(ServerProcess.said, servers))
        )
        servers.sort(key=lambda server: server.owns, reverse=True)
        servers[1].wait_standby()
        yield servers
    finally:
        for server in servers:
            server.kill()
