"""A producer of batches: `tarry bulk schedule`, as people run it, killed now and then and run again; some are cancelled."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tarry.client import Unreachable
from tarry.core.errors import Unavailable
from tests.crash.books import Batch, Books, Message, new_label, now_ms, payload_of
from tests.crash.producers import AWAY_S, Producer
from tests.processes import environment

NOT_NOW: Final = 6
"""The exit code of a command that did not reach the server, or was told to come again."""
TRIES: Final = 40


class BulkProducer(Producer):
    """Schedules one batch after another."""

    pause_s = 1.0

    def __init__(
        self, url: str, folder: Path, books: Books, seed: int, stop: threading.Event, longest_ms: int
    ) -> None:
        super().__init__(url, "", books, seed, stop, longest_ms)
        self.name = f"bulk-{seed}"
        self._url = url
        self._folder = folder
        self._folder.mkdir(exist_ok=True)

    def actions(self) -> list[Callable[[], None]]:
        """Batches only."""
        return [self._batch]

    def _batch(self) -> None:
        batch = Batch(f"batch-{new_label()}")
        topic, messages = self._topic(), []
        for _ in range(self._random.randrange(20, 500)):
            _, floor_ms, far = self._when()
            messages.append(Message(new_label(), "topic", topic, floor_ms, far=far, batch=batch))
        file = self._folder / f"{batch.name}.parquet"
        columns = {
            "due": [message.floor_ms for message in messages],
            "payload": [payload_of(message.label) for message in messages],
        }
        pq.write_table(pa.table(columns), file)
        self._books.note(*messages)
        # Until it is answered: whatever became of the tries before, it is one batch.
        batch.adopted = any(self._schedule_file(batch.name, file, topic) for _ in range(TRIES))
        file.unlink()
        if not batch.adopted:
            self._complain(f"{batch.name} was not adopted in {TRIES} tries")
        elif self._random.random() < 0.4:
            self._stopping.wait(self._random.uniform(0, 3))
            self._cancel(batch)

    def _schedule_file(self, name: str, file: Path, topic: str) -> bool:
        """Run the command; whether it was answered."""
        command = ("bulk", "schedule", str(file), "--name", name, "--destination", topic, "--url", self._url)
        process = subprocess.Popen(
            [sys.executable, "-m", "tarry", *command, "--owner", self.name],
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        killed = self._random.random() < 0.2 and not self._stopping.is_set()
        try:
            _, said = process.communicate(timeout=self._random.uniform(0.5, 3) if killed else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return False
        if process.returncode not in (0, NOT_NOW):
            self._complain(f"{name}: `tarry bulk schedule` ended with {process.returncode}: {said[-300:]}")
        return process.returncode == 0

    def _cancel(self, batch: Batch) -> None:
        batch.cancel_asked = True
        for _ in range(1000):
            try:
                answer = self._client.cancel_batch(batch.name)
            except (Unreachable, Unavailable):
                # It may be cancelled or not; the same again is answered the same.
                threading.Event().wait(AWAY_S)
                continue
            batch.cancelled = answer.cancelled
            batch.cancelled_at_ms = now_ms()
            return
        self._complain(f"{batch.name} could not be cancelled")
