"""A campaign against a cluster: three brokers, two servers and their clients, a fault in each round, and an audit.

The load, the books and the verdict are those of one server (`tests.crash`); here its address is a load balancer's. Beside them the
clients of `tests.cluster.pairs` are at the other doors. After each round the producers pause until everything has come, so that what a
round lost is told of that round.
"""

import contextlib
import json
import random
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import httpx
from confluent_kafka import KafkaException

from tarry.ledger.follow import FolderFollower
from tarry.pipeline.stream import Tables
from tests.cluster.balancer import Balancer
from tests.cluster.brokers import Brokers
from tests.cluster.faults import FAULTS, STEP_MS, Fault, Scene
from tests.cluster.links import Network
from tests.cluster.pairs import DaprPair, MatrixPair, Pair, PulsarPair
from tests.cluster.servers import ClusterServer, service_url
from tests.crash.audit import counted, missing
from tests.crash.books import WrongClock, now_ms
from tests.crash.campaign import BUSY_ENGINE, Load, tracebacks
from tests.crash.consumers import Consumer, OrderedConsumer, StreamConsumer
from tests.crash.driver import DriverProcess
from tests.crash.producers import TOPICS, Producer
from tests.crash.tally import disagreements
from tests.disks import mounted
from tests.processes import free_port
from tests.waiting import wait_until

TOPIC: Final = "ledger"
SESSION_MS: Final = 3_000
CONFIG: Final = f"""
shared = "{{shared}}"
{BUSY_ENGINE}
[policies.broker]
deduplication = true
"""
"""A Pulsar client sends again what was not answered when its connection broke: deduplication makes once of it."""

DISK: Final = "512m"
"""The size of a file system that each broker gets for itself where a fault fills one; it is given back at the end."""
ON_TIME_MS: Final = 500
"""A delivery that is no later than this counts as on time."""
WAIT_S: Final = 180.0
"""Until a cluster is whole, on a busy machine."""
SLOW_S: Final = 20.0
"""After so long it is told what has not come yet, and up to so many of it."""
MISSED: Final = 8
SETTLE_WITHIN_S: Final = 240.0
"""A message that has not come by then counts as lost; how long it took is told of each round."""
AUDIT_WITHIN_S: Final = 1_800.0
"""Each of the commands at the end starts a Spark, beside whatever else the machine does."""
SHOWN: Final = {"lost": "lost", "early": "early", "doubled": "doubled", "after_a_cancel": "after a cancel"}
"""Rules whose offenders each round counts by name, and their words."""

_seeds = count()


class ClusterProducer(Producer):
    """One that takes a refusal for what it is in a cluster: an owner that was superseded does not know what became of its last frames."""

    pause_s = 0.3
    refused_may_be_done = True


@dataclass(frozen=True)
class Round:
    """The figures of one round."""

    fault: str
    taken_over_s: float | None
    """After so long the standby was ready; None if it had no reason to take over."""
    silent_s: float
    """The longest time in which nothing came when it was due."""
    settled_s: float
    """So long after the producers' last word all had come."""
    offences: Counter[str]
    """By rule."""

    def __str__(self) -> str:
        taken = (
            "not taken over" if self.taken_over_s is None else f"taken over after {self.taken_over_s:.1f} s"
        )
        offences = ", ".join(f"{words} {self.offences[rule]}" for rule, words in SHOWN.items())
        return f"{self.fault}: {taken}, silent for {self.silent_s:.1f} s, all there after {self.settled_s:.1f} s; {offences}"


class ClusterStreamConsumer(StreamConsumer):
    """One that gathers what it acknowledges, which takes as long as three brokers on a busy machine do."""

    together = 10


class ClusterCampaign(Load):
    """A cluster, its clients and their books."""

    def __init__(self, folder: Path, seed: int, faults: Sequence[Fault] = FAULTS) -> None:
        self._disks = ExitStack()
        self._all_faults = faults
        self._network = Network()
        # Of clients each has listeners of its own at the brokers, so that one can be cut off.
        self.brokers = Brokers(folder, network=self._network, clients=("A", "B"))
        key = folder / "key"
        key.write_bytes(random.Random(seed).randbytes(32))
        self.servers = [
            ClusterServer(
                folder / name,
                self.brokers.addresses_for(name.upper()),
                TOPIC,
                key,
                SESSION_MS,
                CONFIG.format(shared=folder / "shared"),
            )
            for name in ("a", "b")
        ]
        self._matrix = MatrixPair(self._network, folder, seed)
        for server in self.servers:
            if any(fault.steps for fault in faults):
                server.set_wrong(0)
            server.doors["matrix"] = free_port()
            server.file.write_text(server.config + self._matrix.config(server.doors["matrix"]))
        self.balancer = Balancer(self._network, [server.backend for server in self.servers])
        super().__init__(f"http://127.0.0.1:{self.balancer.port('http')}", seed)
        self._faults: list[Fault] = []
        """The ones whose turn is still to come."""
        self.rounds: list[Round] = []
        self._line = ""
        self._unbalanced: list[str] = []
        self._matrix.url = f"http://127.0.0.1:{self.balancer.port('matrix')}"
        self._pairs: list[Pair] = [
            PulsarPair(service_url(self.servers), seed),
            DaprPair(self.balancer.port("dapr"), self.balancer.port("dapr_grpc"), seed),
            self._matrix,
        ]
        for pair in self._pairs:
            pair.wrong_by = self.books.wrong_by

    def begin(self) -> None:
        """Start everything."""
        if any(fault.fills for fault in self._all_faults):
            for node in self.brokers.nodes:
                self._disks.enter_context(mounted(node.data, DISK))
        self.brokers.start()
        self.brokers.make_topic(TOPIC)
        for server in self.servers:
            server.launch()
        self._wait_whole()
        # The index is there first: what went before it, `tarry audit` would not find.
        for server in self.servers:
            Tables.open(
                str(server.folder / "tables"), FolderFollower(str(server.folder / "ledger")).ledger_id()
            )
            server.kill()
        for server in self.servers:
            server.launch()
        self._wait_whole()
        for pair in self._pairs:
            pair.begin()
        super().begin()
        self._pause_producers()

    def _new_producers(self) -> list[Producer]:
        """New ones for each round: a producer's sequence numbers begin with its name."""
        known = self._receiver.url, self.books
        rest = self._stop_producing, self._longest_ms
        return [ClusterProducer(self._url, *known, next(_seeds), *rest) for _ in range(3)]

    def _new_consumers(self) -> list[Consumer]:
        url, stop = self._url, self._stop_consuming
        return [
            Consumer(url, self.books, TOPICS[0], "work", 1, stop),
            Consumer(url, self.books, TOPICS[0], "work", 2, stop),
            ClusterStreamConsumer(url, self.books, TOPICS[0], "keyed", 3, stop),
            OrderedConsumer(url, self.books, TOPICS[1], "ordered", 4, stop),
        ]

    # Rounds

    def crash(self) -> None:
        """One round: load, a fault, its end, and everything that is due comes."""
        if not self._faults:
            self._faults = self._random.sample(self._all_faults, len(self._all_faults))
        fault = self._faults.pop()
        self._produce()
        time.sleep(self._random.uniform(0.5, 2.0))
        scene = self._scene()
        struck_ms = now_ms()
        # Whatever the fault may explain happens until the cluster is whole again.
        self.books.kills.append(struck_ms)
        if fault.steps:
            self.books.wrong_clocks.append(WrongClock(struck_ms, STEP_MS))
        with fault.strike(scene):
            if fault.moves:
                self._wait(lambda: self._ready() == [scene.standby], f"{scene.standby.name} to take over")
            moved_s = (now_ms() - struck_ms) / 1000
            time.sleep(self._random.uniform(0.5, 4.0))
        self._wait_whole()
        self.books.kills.append(now_ms())
        time.sleep(0.5)
        produced_ms = now_ms()
        self._pause_producers()
        began_s = time.monotonic()
        told: list[str] = []
        while (missed := self._missing()) and time.monotonic() < began_s + SETTLE_WITHIN_S:
            self._supervise()
            time.sleep(0.25)
            if not told and time.monotonic() > began_s + SLOW_S:
                told = missed[:MISSED]
                print(f"{len(missed)} are not there after {SLOW_S:.0f} s:", *told, sep="\n  ", flush=True)
        settled_s = time.monotonic() - began_s
        for wrong in self.books.wrong_clocks:
            wrong.to_ms = min(wrong.to_ms, now_ms())
        self.rounds.append(
            Round(
                fault.name,
                moved_s if fault.moves else None,
                self._silence_s(struck_ms, produced_ms),
                settled_s,
                self._judged(),
            )
        )
        self._line = f"round {len(self.rounds)}: {self.rounds[-1]}"

    def _judged(self) -> Counter[str]:
        """Offenders by rule. With any, the campaign ends after this round."""
        found = counted(self.books)
        beside: dict[str, dict[str, list[str]]] = {}
        for pair in self._pairs:
            offences = {"lost": pair.missing, "early": pair.early, "doubled": pair.doubled}
            found += Counter({rule: len(labels) for rule, labels in offences.items()})
            beside[pair.door] = {rule: labels for rule, labels in offences.items() if labels}
        if found:
            told = f"after round {len(self.rounds) + 1}: {dict(found)}, of them {beside}"
            self.books.complaints.append(told)
        return found

    def _missing(self) -> list[str]:
        return missing(self.books) + [label for pair in self._pairs for label in pair.missing]

    def _silence_s(self, from_ms: int, to_ms: int) -> float:
        """The longest time without a message that came when it was due."""
        due = {message.label: message.floor_ms for message in self.books.messages}
        came = [(one.label, one.at_ms) for one in self.books.arrivals if one.accepted]
        came += [(one.label, one.received_at_ms) for one in self.books.receipts]
        instants = sorted(
            at_ms
            for label, at_ms in came
            if from_ms < at_ms < to_ms and label in due and at_ms - due[label] < ON_TIME_MS
        )
        return max(later - earlier for earlier, later in pairwise([from_ms, *instants, to_ms])) / 1000

    def _produce(self) -> None:
        self._stop_producing = threading.Event()
        self._producers = self._new_producers()
        for producer in self._producers:
            producer.start()
        for pair in self._pairs:
            pair.send(on=True)

    def _pause_producers(self) -> None:
        for pair in self._pairs:
            pair.send(on=False)
        self._end(self._producers, self._stop_producing)

    # The cluster

    def _ready(self) -> list[ClusterServer]:
        return [self.servers[number] for number in sorted(self.balancer.ready)]

    def _scene(self) -> Scene:
        self._wait(lambda: len(self._ready()) == 1, "one owner")
        (owner,) = self._ready()
        (standby,) = (server for server in self.servers if server is not owner)
        return Scene(self.brokers, TOPIC, owner, standby)

    def _supervise(self) -> None:
        """Start what ended by itself."""
        for server in self.servers:
            if server.ended:
                server.reap()
                server.launch()

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            self._supervise()
            return look()

        def stuck() -> str:
            said = [server.stuck()[-9_000:] for server in self.servers if not server.ended]
            return "\n\n".join([f"waited for {what}", *said])

        wait_until(looked, stuck, WAIT_S)

    def _wait_whole(self) -> None:
        """Wait until one server owns the ledger, the other stands by, and all brokers are in sync."""
        self._wait(self._stood_by, "one owner and one standby")
        self._wait(self._in_sync, "three replicas in sync")
        self._wait(self._stood_by, "one owner and one standby")

    def _stood_by(self) -> bool:
        ready = self._ready()
        others = [server for server in self.servers if server not in ready]
        with contextlib.suppress(httpx.HTTPError):
            return len(others) == 1 and others[0].figure("tarry_cluster_standing") == 1
        return False

    def _in_sync(self) -> bool:
        with contextlib.suppress(KafkaException):
            (partition,) = self.brokers.admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions.values()
            return len(partition.isrs) == len(self.brokers.nodes)
        return False

    # The end

    def drain(self) -> None:
        """As with one server; then both are stopped, and the books are compared with `tarry audit`."""
        super().drain()
        scene = self._scene()
        for server in (scene.standby, scene.owner):
            if (code := server.stop()) != 0:
                self.books.complaints.append(f"a stop ended with exit code {code}")
        stopped_at_ms = now_ms()
        self._unbalanced = self._audited(DriverProcess(scene.owner), stopped_at_ms)

    def _audited(self, driver: DriverProcess, stopped_at_ms: int) -> list[str]:
        """Bring the index to the head and have the audit count; gives what the books contradict."""
        told = ""
        for words in (("pipeline", "--once"), ("audit", "--json")):
            try:
                ran = driver.job(*words, within_s=AUDIT_WITHIN_S)
            except subprocess.TimeoutExpired:
                return [f"`tarry {' '.join(words)}` did not end within {AUDIT_WITHIN_S:.0f} s"]
            told = ran.stdout.strip()
            if ran.returncode != 0:
                return [
                    f"`tarry {' '.join(words)}` ended with exit code {ran.returncode}: {told}{ran.stderr}"
                ]
        self._line = f"audit: {told}"
        counts: dict[str, int] = json.loads(told)["counts"]
        # All that was scheduled at other doors has come by now, and is in the audit as sent.
        counts["sent"] -= sum(pair.received for pair in self._pairs if pair.scheduled)
        return disagreements(self.books, counts, stopped_at_ms)

    def offenders(self) -> list[str]:
        """The verdict."""
        found = super().offenders() + self._unbalanced
        return found + [line for server in self.servers for line in tracebacks(server.name, server.said())]

    def summary(self) -> str:
        """The last round, and all of it in figures."""
        return (
            f"{self._line}\n       {super().summary()}; {'; '.join(pair.summary() for pair in self._pairs)}"
        )

    def figures(self) -> list[str]:
        """The rounds in figures, a line for each fault."""
        by_fault: defaultdict[str, list[Round]] = defaultdict(list)
        for one in self.rounds:
            by_fault[one.fault].append(one)
        return [f"{fault}: {_figures(rounds)}" for fault, rounds in sorted(by_fault.items())] + [
            f"all: {_figures(self.rounds)}"
        ]

    def end(self) -> None:
        """Stop everything that still runs."""
        for pair in self._pairs:
            pair.close()
        for server in self.servers:
            # One that was paused lets its clients go.
            server.kill()
        super().end()
        self.brokers.stop()
        self._network.close()
        self._disks.close()


def _figures(rounds: Sequence[Round]) -> str:
    taken = [one.taken_over_s for one in rounds if one.taken_over_s is not None]
    offences = sum((one.offences for one in rounds), Counter[str]())
    return (
        f"{len(rounds)} rounds, {len(taken)} takeovers (longest {max(taken, default=0.0):.1f} s), "
        + ", ".join(f"{words} {offences[rule]}" for rule, words in SHOWN.items())
        + f", longest silence {max((one.silent_s for one in rounds), default=0.0):.1f} s"
        + f", longest until all there {max((one.settled_s for one in rounds), default=0.0):.1f} s"
    )
