"""Ranges of a replicated log, read by tasks of their own: together they are what one fold of the log finds (R14)."""

import pickle
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.ledger.frame import HEADER_BYTES, ROW_BYTES
from tarry.ledger.log import follow
from tarry.ledger.log.fold import Fold, ValidFrame
from tarry.ledger.log.follow import LogFollower, LogScan
from tarry.testing.log import SimulatedLog
from tests.property.test_log_ownership import played, steps

Row = tuple[int, bytes, bytes]
"""The seq, the fixed part and the body of a record."""


def folded_rows(records: list[bytes]) -> list[Row]:
    """The records of all valid frames, by one fold from the begin of the log and by hand."""
    fold, rows = Fold(), list[Row]()
    for offset, data in enumerate(records):
        valid = fold.take(offset, data)
        if isinstance(valid, ValidFrame):
            bodies_at = HEADER_BYTES + ROW_BYTES * valid.header.records
            for n in range(valid.header.records):
                fixed = valid.data[HEADER_BYTES + ROW_BYTES * n :][:ROW_BYTES]
                size = int.from_bytes(fixed[4:8], "little")
                rows.append((valid.first_seq + n, fixed, valid.data[bodies_at : bodies_at + size]))
                bodies_at += size
    return rows


def read(scan: LogScan, first_seq: int, last_seq: int) -> list[Row]:
    """The records that a task finds which is given the places that the driver knows."""
    there = LogScan(scan.connect, known=pickle.loads(pickle.dumps(scan.known())))
    return [
        (frame.first_seq + i, frame.fixed[i].tobytes(), frame.body(i))
        for frame in LogFollower(there, 0).frames(first_seq, last_seq)
        for i in range(frame.count)
    ]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(steps, min_size=10, max_size=80),
    st.integers(0, 1 << 32),
    st.sampled_from((1, 300, 1 << 20)),
    st.lists(st.integers(0, 1 << 16), max_size=5),
)
def test_ranges_together_are_what_the_fold_finds(
    script: list[tuple[str, int, int]], seed: int, place_every: int, cuts: list[int]
) -> None:
    log = SimulatedLog(Random(seed))
    scan = LogScan(lambda: log.connect("driver"))
    # The driver looks in between, also where a frame's parts are not all there.
    log.on_write = lambda record: record.offset % 3 or scan.read_on(0)
    every_bytes, follow.PLACE_EVERY_BYTES = follow.PLACE_EVERY_BYTES, place_every  # type: ignore[misc]
    try:
        played(script, log)
        follower = LogFollower(scan, 0)
        expected = folded_rows([record.data for record in log.records()])
        head = follower.durable_seq()
        assert follower.first_seq() == 1
        assert [seq for seq, _, _ in expected] == list(range(1, head + 1))
        edges = sorted({1, *(1 + cut % (head + 1) for cut in cuts), head + 1})
        parts = [read(scan, low, high - 1) for low, high in pairwise(edges)]
        assert [row for part in parts for row in part] == expected
    finally:
        follow.PLACE_EVERY_BYTES = every_bytes  # type: ignore[misc]
