"""How far the pipeline is: the file, and what the reporter writes into it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.core.errors import Unavailable
from tarry.index.progress import FRESH_MS, Progress, read_progress, write_progress
from tarry.ledger.replay import Frame
from tarry.pipeline.reporter import Reporter


class Head:
    """A follower whose head the test sets."""

    def __init__(self) -> None:
        self.seq: int | None = None

    def ledger_id(self) -> bytes:
        return bytes(16)

    def durable_seq(self) -> int:
        if self.seq is None:
            raise Unavailable("there is no ledger here yet")
        return self.seq

    def first_seq(self) -> int:
        return 1

    def bounds(self) -> list[int]:
        return [1]

    def set_aside(self) -> frozenset[int]:
        return frozenset()

    def frames(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        return iter(())


def read(folder: Path) -> Progress:
    progress = read_progress(folder)
    assert progress is not None
    return progress


def test_a_file_that_is_not_there_or_not_whole_says_nothing(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    (tmp_path / "progress.json").write_text('{"state": "run')
    assert read_progress(tmp_path) is None
    write_progress(tmp_path, Progress(state="running", at_ms=1_000))
    assert read(tmp_path).is_up(1_000 + FRESH_MS - 1)
    assert not read(tmp_path).is_up(1_000 + FRESH_MS)


def test_it_counts_what_is_not_indexed_and_since_when(tmp_path: Path) -> None:
    head = Head()
    reporter = Reporter(tmp_path, head)
    reporter._look(10.0)
    reporter.running(0)
    head.seq = 100
    reporter._look(11.0)
    head.seq = 150
    reporter._look(14.0)
    assert (read(tmp_path).lag, read(tmp_path).behind_ms) == (150, 3_000)
    reporter.committed({"seq": 120, "rows": 120, "files": 2, "took_ms": 5})
    reporter._look(15.0)
    # What came at the first look is indexed; what came at the second waits since then.
    assert (read(tmp_path).lag, read(tmp_path).behind_ms) == (30, 1_000)
    head.seq = None
    reporter._look(16.0)
    assert (read(tmp_path).lag, read(tmp_path).behind_ms) == (30, 2_000)
    reporter.committed({"seq": 150, "rows": 30, "files": 1, "took_ms": 5})
    assert (read(tmp_path).lag, read(tmp_path).behind_ms) == (0, 0)
    assert read(tmp_path).commits == 2


def test_failures_and_commits_are_counted_over_lives(tmp_path: Path) -> None:
    with Reporter(tmp_path, Head()) as reporter:
        reporter.committed({"seq": 7, "rows": 7, "files": 1, "took_ms": 5})
    assert read(tmp_path).state == "stopped"
    for _ in range(2):
        with pytest.raises(Unavailable), Reporter(tmp_path, Head()):
            raise Unavailable("no Java")
    assert (read(tmp_path).state, read(tmp_path).failures, read(tmp_path).failure) == ("failed", 2, "no Java")
    with Reporter(tmp_path, Head()):
        again = read(tmp_path)
    assert (again.state, again.commits, again.failures, again.cursor) == ("starting", 1, 2, 7)
