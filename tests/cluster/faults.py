"""Faults of a cluster: each is a context manager that breaks something when it is entered, and mends it when it is left.

A process that is mended is started again, or goes on where it was paused; whoever ends by itself meanwhile, as a server does
that was superseded, is started by its supervisor (`tests.cluster.campaign`).
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.cluster.brokers import Broker, Brokers
from tests.cluster.servers import ClusterServer
from tests.disks import fill
from tests.waiting import wait_until

STEP_MS: Final = 3_000
"""By so much a clock is set wrong: far more than what the engine takes for slack here, and so little that all comes within a round."""


@dataclass(frozen=True)
class Scene:
    """The parts of a cluster by what they are at this moment."""

    brokers: Brokers
    topic: str
    owner: ClusterServer
    standby: ClusterServer

    @property
    def leader(self) -> Broker:
        """The broker that leads the log's partition."""
        return self.brokers.leader(self.topic)

    @property
    def follower(self) -> Broker:
        """One that does not."""
        return self.brokers.follower(self.topic)


@dataclass(frozen=True)
class Fault:
    """A fault, and what has to come of it."""

    name: str
    strike: Callable[[Scene], AbstractContextManager[None]]
    moves: bool
    """Whether the standby takes the ledger over while it lasts."""
    fills: bool = False
    """Whether it fills a disk, so that brokers need small ones."""
    steps: bool = False
    """Whether it sets a server's clock wrong, by `STEP_MS`, so that servers need clocks of their own."""


@contextmanager
def _killed(process: ClusterServer | Broker) -> Iterator[None]:
    process.kill()
    yield
    process.launch()


@contextmanager
def _paused(process: ClusterServer | Broker) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    yield
    process.signal(signal.SIGCONT)


@contextmanager
def _stopped(server: ClusterServer) -> Iterator[None]:
    code = server.stop()
    assert code == 0, f"a stop ended with exit code {code}: {server.said()[-500:]}"
    yield
    server.launch()


@contextmanager
def _cut_off(server: ClusterServer, brokers: Brokers) -> Iterator[None]:
    """A server whose clients still reach it, and that reaches no broker."""
    links = [node.links[server.listener] for node in brokers.nodes]
    for link in links:
        link.cut()
    yield
    for link in links:
        link.heal()


@contextmanager
def _unreached(broker: Broker) -> Iterator[None]:
    """A broker that reaches the others, and that they do not reach."""
    for link in broker.inbound:
        link.cut()
    yield
    for link in broker.inbound:
        link.heal()


@contextmanager
def _set_wrong(server: ClusterServer, ms: int) -> Iterator[None]:
    """A server whose wall clock is wrong, and is set right in the end."""
    server.set_wrong(ms)
    yield
    server.set_wrong(0)


@contextmanager
def _full(broker: Broker) -> Iterator[None]:
    """A broker whose disk has no room left, which ends it."""
    ballast = broker.data / "ballast"
    fill(ballast)
    wait_until(lambda: broker.ended, lambda: f"broker {broker.number} goes on with a full disk")
    yield
    ballast.unlink()
    broker.kill()
    broker.launch()


@contextmanager
def _both(*faults: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault)
        yield


FAULTS: Final = (
    Fault("owner killed", lambda scene: _killed(scene.owner), moves=True),
    Fault("owner paused", lambda scene: _paused(scene.owner), moves=True),
    Fault("owner stopped", lambda scene: _stopped(scene.owner), moves=True),
    Fault("owner cut off from the brokers", lambda scene: _cut_off(scene.owner, scene.brokers), moves=True),
    Fault("standby killed", lambda scene: _killed(scene.standby), moves=False),
    Fault("standby cut off from the brokers", lambda scene: _cut_off(scene.standby, scene.brokers), moves=False),
    Fault("leading broker killed", lambda scene: _killed(scene.leader), moves=False),
    Fault("leading broker paused", lambda scene: _paused(scene.leader), moves=False),
    Fault("leading broker not reached by the others", lambda scene: _unreached(scene.leader), moves=False),
    Fault("following broker killed", lambda scene: _killed(scene.follower), moves=False),
    Fault(
        "owner and leading broker killed",
        lambda scene: _both(_killed(scene.owner), _killed(scene.leader)),
        moves=True,
    ),
    Fault(
        "owner paused, following broker killed",
        lambda scene: _both(_paused(scene.owner), _killed(scene.follower)),
        moves=True,
    ),
    Fault(
        "owner cut off, leading broker paused",
        lambda scene: _both(_cut_off(scene.owner, scene.brokers), _paused(scene.leader)),
        moves=True,
    ),
    Fault(
        "owner cut off, following broker killed",
        lambda scene: _both(_cut_off(scene.owner, scene.brokers), _killed(scene.follower)),
        moves=True,
    ),
    Fault(
        "standby and leading broker killed",
        lambda scene: _both(_killed(scene.standby), _killed(scene.leader)),
        moves=False,
    ),
    Fault("owner's clock ahead", lambda scene: _set_wrong(scene.owner, STEP_MS), moves=False, steps=True),
    Fault("owner's clock back", lambda scene: _set_wrong(scene.owner, -STEP_MS), moves=False, steps=True),
    Fault(
        "owner killed, standby's clock ahead",
        lambda scene: _both(_set_wrong(scene.standby, STEP_MS), _killed(scene.owner)),
        moves=True,
        steps=True,
    ),
    Fault(
        "owner killed, standby's clock back",
        lambda scene: _both(_set_wrong(scene.standby, -STEP_MS), _killed(scene.owner)),
        moves=True,
        steps=True,
    ),
    Fault("leading broker's disk full", lambda scene: _full(scene.leader), moves=False, fills=True),
)  # fmt: skip
