"""A campaign with the index in play: server and driver under load, killed at random, one at a time and together.

What waits moves from the ledger through the index, segments are reclaimed because of it, and the horizon is so near that much
of what goes out was read from it. In the end `tarry audit` and the books of the clients must agree.
"""

import json
import time
from pathlib import Path
from typing import Final

from tarry.ledger.follow import FolderFollower
from tarry.pipeline.stream import Tables
from tests.crash.books import ALL, Receipt, now_ms
from tests.crash.bulk import BulkProducer
from tests.crash.campaign import CONFIG, Campaign, tracebacks
from tests.crash.consumers import Consumer, OrderedConsumer
from tests.crash.driver import DriverProcess
from tests.crash.producers import TOPICS, Producer
from tests.crash.tally import disagreements
from tests.pipeline import archive

INDEXED: Final = (
    CONFIG.replace("[engine]", "[engine]\nlead_ms = 2000")
    + f"""
[pipeline]
flush_every_ms = 500
cascade_every_ms = 2000
nice = 0

[pipeline.spark]
"spark.driver.memory" = "512m"
"spark.driver.extraJavaOptions" = "{archive.options()}"

[policies.broker]
slot_ms = 5000
"""
)
"""Settings by which the pipeline does often what it does now and then, in small slots, by a Java that is quick to start."""


class CalmProducer(Producer):
    """One that leaves Spark something of the machine."""

    pause_s = 0.08


class IndexedCampaign(Campaign):
    """One server, one driver, their clients and their books."""

    def __init__(self, folder: Path, seed: int, longest_ms: int) -> None:
        super().__init__(folder, seed, config=INDEXED, longest_ms=longest_ms)
        self._batches = folder / "batches"
        self.driver = DriverProcess(self.server)
        self.driver_kills = 0
        self._unbalanced: list[str] = []

    def begin(self) -> None:
        """Start both, and everybody else. The index is there first: what went before it, its books would not have."""
        self.server.start()
        ledger = FolderFollower(str(self.server.folder / "ledger"))
        Tables.open(str(self.server.folder / "tables"), ledger.ledger_id())
        self.server.stop()
        super().begin()
        self.driver.launch()

    def _new_producers(self) -> list[Producer]:
        stop = self._stop_producing
        calm = [
            CalmProducer(self._url, self._receiver.url, self.books, seed, stop, self._longest_ms)
            for seed in range(2)
        ]
        return [*calm, BulkProducer(self._url, self._batches, self.books, 2, stop, self._longest_ms)]

    def _new_consumers(self) -> list[Consumer]:
        # Read as they come: entries that nobody has read would keep the ledger as it is.
        stop = self._stop_consuming
        record = [
            OrderedConsumer(self._url, self.books, topic, ALL, 5 + n, stop) for n, topic in enumerate(TOPICS)
        ]
        return [*super()._new_consumers(), *record]

    @property
    def in_play(self) -> bool:
        """Whether segments of the ledger are gone since there is an index, which alone has what waits in them."""
        # Lines of both logs begin with their instant.
        indexed = [line[:24] for line in self.driver.said().splitlines() if " indexed " in line]
        gone = [line[:24] for line in self.server.said().splitlines() if " reclaimed " in line]
        return bool(indexed and gone) and indexed[0] < gone[-1]

    def crash(self) -> None:
        """Let them run for a moment; then the server crashes, or the driver, or both."""
        draw = self._random
        # A driver that has done nothing yet is left in peace mostly: to start takes it longer than all the rest.
        at_work = self.driver.at_work
        driver = draw.random() < (0.4 if at_work else 0.02)
        server = not driver or draw.random() < 0.5
        time.sleep(draw.uniform(0.2, 2.5 if at_work else 6.0))
        self._look_after_driver()
        if driver:
            self.kill_driver()
        if server:
            self.victim.restart()
        if driver:
            self.driver.launch()

    def kill_driver(self) -> None:
        """Kill it, with its Java or without."""
        self.driver.kill(with_java=self._random.random() < 0.5)
        self.driver_kills += 1

    def _look_after_driver(self) -> None:
        """Watch the driver: if it ends without having been killed, its reason is shown."""
        process = self.driver.process
        if process is not None and (code := process.poll()) is not None:
            self.books.complaints.append(
                f"the driver ended by itself, with exit code {code}: {self.driver.log}"
            )
            self.driver.launch()

    def drain(self) -> None:
        """As without a pipeline; then the driver crashes a last time, and the books are compared."""
        super().drain()
        self._look_after_driver()
        self.kill_driver()
        if (code := self.server.stop()) != 0:
            self.books.complaints.append(f"a stop ended with exit code {code}")
        stopped_at_ms = now_ms()
        counts = self._audited()
        # Only now is it certain that the consumers have everything that was there when the audit looked.
        self.server.start()
        self.books.entries = [receipt for topic in TOPICS for receipt in self._rest_of(topic)]
        if counts is not None:
            self._unbalanced += disagreements(self.books, counts, stopped_at_ms)

    def _audited(self) -> dict[str, int] | None:
        """Bring the index to the head, and let the audit count."""
        told = ""
        for words in (("pipeline", "--once"), ("audit", "--json")):
            ran = self.driver.job(*words)
            told = ran.stdout
            if ran.returncode != 0:
                self._unbalanced.append(
                    f"`tarry {' '.join(words)}` ended with exit code {ran.returncode}: {told}{ran.stderr}"
                )
                return None
        counts: dict[str, int] = json.loads(told)["counts"]
        return counts

    def _all_of(self, topic: str, deadline: float) -> list[Receipt]:
        end = self._client.topic_stats(topic)["next_entry"]
        while len(entries := self._recorded(topic)) < end and time.monotonic() < deadline:
            time.sleep(0.1)
        return self._complete(topic, entries[:end], end)

    def _rest_of(self, topic: str) -> list[Receipt]:
        end = self._client.topic_stats(topic)["next_entry"]
        if len(self._recorded(topic)) < end:
            self.books.receipts += self._read_upto(topic, end)
        return self._complete(topic, self._recorded(topic)[:end], end)

    def _recorded(self, topic: str) -> list[Receipt]:
        """The record of a topic's entries so far, in order, each once."""
        first = {
            receipt.entry_id: receipt
            for receipt in reversed(list(self.books.receipts))
            if (receipt.topic, receipt.subscription) == (topic, ALL)
        }
        return [first[entry_id] for entry_id in sorted(first)]

    def offenders(self) -> list[str]:
        """The verdict."""
        return [*super().offenders(), *self._unbalanced, *tracebacks("the driver", self.driver.said())]

    def summary(self) -> str:
        """One line of figures."""
        batches = len({message.batch.name for message in self.books.messages if message.batch is not None})
        segments = self.server.said().count("reclaimed")
        return (
            f"{super().summary()}; {batches} batches; {self.driver_kills} kills of the driver, "
            f"{self.driver.commits} commits; reclaimed {segments} times"
        )

    def end(self) -> None:
        """Stop everything that still runs."""
        self.driver.kill(with_java=True)
        super().end()
