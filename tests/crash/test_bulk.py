"""A batch and SIGKILL, with real processes: what was adopted is delivered once, what was only staged never."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tarry import Client
from tests.processes import environment, running, tarry

COUNT = 400


def rows(path: Path, due_at_ms: int) -> None:
    lines = [json.dumps({"due": due_at_ms + n % 7, "payload": str(n)}) for n in range(COUNT)]
    path.write_text("\n".join(lines))


def drained(url: str) -> list[int]:
    """Everything in the topic, until nothing more comes for two seconds."""
    with Client(url, retry_for_s=20) as client:
        client.subscribe("orders", "reader", start="earliest")
        found = []
        for entry in client.consume("orders", "reader", wait_ms=2000, forever=False):
            with entry:
                found.append(int(entry.payload))
        return found


def test_an_adopted_batch_outlives_its_server(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "letters.ndjson"
    with running(data) as server:
        rows(file, time.time_ns() // 1_000_000 + 3000)
        ended = tarry("bulk", "schedule", str(file), "--destination", "orders", "--url", server.url)
        server.kill()
    assert ended.returncode == 0, ended.stderr
    with running(data) as again:
        assert sorted(drained(again.url)) == list(range(COUNT))
        shown = tarry("bulk", "show", file.name, "--url", again.url, "--json")
        assert json.loads(shown.stdout)["remaining"] == 0


def test_a_job_that_dies_between_staging_and_adoption_has_scheduled_nothing(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "letters.ndjson"
    rows(file, 1)
    with running(data) as server:
        arguments = ("bulk", "schedule", str(file), "--destination", "orders", "--url", server.url)
        job = subprocess.Popen(
            [sys.executable, "-m", "tarry", *arguments], env=environment(), cwd="/", stderr=subprocess.DEVNULL
        )
        staged = data / "tables" / "index" / "staged"
        # The server is stopped as soon as there is a staged file: the job gets no further.
        while not list(staged.rglob("*.parquet")) and job.poll() is None:
            time.sleep(0.001)
        server.signal(signal.SIGSTOP)
        job.kill()
        job.wait()
        server.signal(signal.SIGCONT)
        first = tarry("bulk", "show", file.name, "--url", server.url)
        ended = tarry(*arguments)
        assert ended.returncode == 0, ended.stderr
        # It may have been quicker than we were; then it is the same batch, and else there was none.
        assert ("scheduled before" in ended.stdout) == (first.returncode == 0)
        assert sorted(drained(server.url)) == list(range(COUNT))
