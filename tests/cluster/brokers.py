"""Three real Kafka brokers on 127.0.0.1, each a process of its own that can be killed, paused and started again.

Each is broker and controller (KRaft), with 384 MB of heap. The first start fetches Kafka's jars with Maven.

On a `Network` every connection goes through a link that can be cut: among the brokers to each broker's own, and from each
client that is given a name to a listener of its own, so that one client can be cut off while others are not.

With a certificate there is a listener with TLS, passwords and rights too.
"""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.links import Link, Network
from tests.conformance.dapr.brokers.servers import Server, kafka_jars
from tests.processes import free_port
from tests.waiting import wait_until

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
SAFE: Final = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Settings of a topic that loses nothing that was acknowledged."""

_DIRECT: Final = "DIRECT"
"""The listener for clients that nobody cuts off."""
_BETWEEN: Final = "BETWEEN"
_CONTROLLER: Final = "CONTROLLER"
_GUARDED: Final = "GUARDED"
"""The listener with TLS, passwords and rights; whoever comes by another one may do everything."""
USERS: Final = ("tarry", "another")
PASSWORD: Final = "open-sesame"


class Broker(Server):
    """One node of the cluster."""

    def __init__(
        self,
        folder: Path,
        number: int,
        network: Network | None = None,
        clients: Sequence[str] = (),
        guard: tuple[Path, Path] | None = None,
    ) -> None:
        """`clients` get a listener each, which needs a network. `guard` is the certificate and key of a listener that asks who comes."""
        super().__init__(folder)
        self.number = number
        self.voters = ""
        self._guard = guard
        self.settings: dict[str, str] = {}
        self.data = folder / "data"
        """Its share of the log; it may be a disk of its own."""
        linked = (_BETWEEN, _CONTROLLER, *clients)
        self._ports = {_DIRECT: self.port} | {name: free_port() for name in linked}
        if guard is not None:
            self._ports[_GUARDED] = free_port()
        self.links: dict[str, Link] = (
            {} if network is None else {name: Link(network, self._ports[name]) for name in linked}
        )
        """By listener: the way to it, if it can be cut."""

    def advertised(self, listener: str = _DIRECT) -> str:
        """The address at which others find a listener."""
        link = self.links.get(listener)
        return f"127.0.0.1:{self._ports[listener] if link is None else link.port}"

    def command(self) -> list[str]:
        """Java with the node's settings; the first time its folder is formatted."""
        java = [
            shutil.which("java") or "java", "-Xmx384m", "-Xms64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            "-cp", f"{kafka_jars()}/*",
        ]  # fmt: skip
        config = self.folder / "server.properties"
        if not config.exists():
            config.write_text("".join(f"{name}={value}\n" for name, value in self._config().items()))
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config), *self._users()],
                check=True, capture_output=True, timeout=120,
            )  # fmt: skip
        return [*java, "kafka.Kafka", str(config)]

    def _users(self) -> list[str]:
        """Arguments by which a formatted folder knows the users."""
        known = [f"SCRAM-SHA-512=[name={user},password={PASSWORD}]" for user in USERS]
        return [word for one in known if self._guard for word in ("--add-scram", one)]

    def _guarded(self) -> dict[str, str]:
        """Settings of the guarded listener."""
        if self._guard is None:
            return {}
        pair = self.folder / "pair.pem"
        pair.write_bytes(b"".join(file.read_bytes() for file in reversed(self._guard)))
        own = f"listener.name.{_GUARDED.lower()}"
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{own}.ssl.keystore.type": "PEM",
            f"{own}.ssl.keystore.location": str(pair),
            f"{own}.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        }

    def _config(self) -> dict[str, str]:
        protocols = dict.fromkeys(self._ports, "PLAINTEXT")
        if self._guard is not None:
            protocols[_GUARDED] = "SASL_SSL"
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.number),
            "controller.quorum.voters": self.voters,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()),
            "advertised.listeners": ",".join(f"{name}://{self.advertised(name)}" for name in self._ports),
            "listener.security.protocol.map": ",".join(f"{name}:{how}" for name, how in protocols.items()),
            "inter.broker.listener.name": _BETWEEN,
            "controller.listener.names": _CONTROLLER,
            "log.dirs": str(self.data),
            "broker.rack": f"rack-{self.number}",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.fetch.max.bytes": str(8 << 20),
            "auto.create.topics.enable": "false",
            **self._guarded(),
            **self.settings,
        }

    @property
    def inbound(self) -> list[Link]:
        """The ways by which the other brokers reach it."""
        return [self.links[_BETWEEN], self.links[_CONTROLLER]]

    def pause(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)


class Brokers:
    """The cluster."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        network: Network | None = None,
        clients: Sequence[str] = (),
        guard: tuple[Path, Path] | None = None,
        **settings: str,
    ) -> None:
        """`settings` of every broker, with `_` for the dot."""
        self.nodes = [
            Broker(folder / f"broker-{number}", number, network, clients, guard)
            for number in range(1, count + 1)
        ]
        self.certificate = None if guard is None else guard[0]
        """Certificate that vouches for the guarded listener."""
        voters = ",".join(f"{node.number}@{node.advertised(_CONTROLLER)}" for node in self.nodes)
        for node in self.nodes:
            node.voters = voters
            node.settings = {name.replace("_", "."): value for name, value in settings.items()}
            if count == 1:
                node.settings |= {"offsets.topic.replication.factor": "1"}
                # Nobody else could lead: a broker alone that a busy machine lets wait stays the leader.
                node.settings |= {"broker.session.timeout.ms": "60000"}

    @property
    def addresses(self) -> str:
        """Addresses for `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def addresses_for(self, client: str) -> str:
        """Addresses for a client with listeners of its own."""
        return ",".join(node.advertised(client) for node in self.nodes)

    @property
    def guarded_addresses(self) -> str:
        """Addresses of the listeners with TLS and passwords."""
        return self.addresses_for(_GUARDED)

    def start(self) -> None:
        """Start all of them and wait until they know each other."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait()
        wait_until(lambda: len(self.admin.list_topics(timeout=30).brokers) == len(self.nodes))

    def stop(self) -> None:
        """End all of them; one that is paused too."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                node.resume()
            node.kill()

    @cached_property
    def admin(self) -> AdminClient:
        """A client for administration; what it began ends with it."""
        return AdminClient({"bootstrap.servers": self.addresses, "log_level": 0})

    def make_topic(self, name: str, partitions: int = 1, replicas: int | None = None, **changed: str) -> str:
        """A topic that loses nothing, but for settings that are given."""
        settings = SAFE | {name.replace("_", "."): value for name, value in changed.items()}
        topic = NewTopic(name, partitions, replicas or len(self.nodes), config=settings)

        def made() -> bool:
            # A request that waits at a broker's address when its number becomes known is given up by the client.
            for future in self.admin.create_topics([topic]).values():
                with contextlib.suppress(KafkaException):
                    future.result(30)
            return name in self.admin.list_topics(timeout=30).topics

        wait_until(made)
        return name

    def leader(self, topic: str) -> Broker:
        """The node that leads the topic's first partition."""
        number = self.admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
        return next(node for node in self.nodes if node.number == number)

    def follower(self, topic: str) -> Broker:
        """A node that does not lead it."""
        leader = self.leader(topic)
        return next(node for node in self.nodes if node is not leader)


@contextlib.contextmanager
def brokers(
    folder: Path,
    count: int = 3,
    *,
    network: Network | None = None,
    clients: Sequence[str] = (),
    guard: tuple[Path, Path] | None = None,
    **settings: str,
) -> Iterator[Brokers]:
    """A cluster that runs."""
    cluster = Brokers(folder, count, network=network, clients=clients, guard=guard, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
