"""Parts of the ledger: where it is, ranges of its records, and reading them as Arrow record batches.

Without Spark, so that files can be written from the ledger where there is none.
"""

import os
from bisect import bisect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from tarry.core.errors import Invalid, NotFound
from tarry.index.columns import RECORDS
from tarry.ledger.follow import FolderFollower, Follower
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.follow import LogFollower
from tarry.ledger.replay import Frame
from tarry.pipeline.kafka import KafkaLedger
from tarry.pipeline.remote import PATIENCE_S, ServerFollower

PARTITION_ROWS: Final = 250_000
TOKEN_VARIABLE: Final = "TARRY_PIPELINE__TOKEN"  # noqa: S105 - its name


class LedgerAddress:
    """Where the ledger is, and what opens it. Travels to the executors; does not show its token."""

    def __init__(
        self,
        folder: str | None,
        server: str | None,
        token: str | None = None,
        log: KafkaLedger | None = None,
    ) -> None:
        self._folder = folder
        self._server = server
        self._token = token
        self._log = log

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "LedgerAddress":
        """The place that the options of a source name, with the token of this process or of the file that they name."""
        folder, server = options.get("folder"), options.get("server")
        if [folder, server, options.get("kafka")].count(None) != 2:
            raise Invalid("folder", "give the source one of the options folder, server and kafka")
        if "kafka" in options:
            return cls(None, None, log=KafkaLedger.of(options))
        if server is None:
            return cls(folder, None)
        return cls(None, server, read_token(options.get("token_file")) or os.environ.get(TOKEN_VARIABLE))

    def follower(self, patience_s: float = PATIENCE_S, part: "SeqRange | None" = None) -> Follower:
        """A reader of the ledger, or of this part; a server or log that does not answer is asked again for so long."""
        if self._folder is not None:
            return FolderFollower(self._folder)
        if self._log is not None:
            return self._log.follower(patience_s, *((part.begin, part.last_seq, part.aside) if part else ()))
        assert self._server is not None
        return ServerFollower(self._server, self._token, patience_s)

    def options_from(self, seq: int) -> dict[str, str]:
        """Further options for a source that begins with a seq."""
        return {} if self._log is None else self._log.begin_option(seq, PATIENCE_S)

    def __repr__(self) -> str:
        return f"LedgerAddress({self._folder or self._server or self._log})"


def read_token(file: str | None) -> str | None:
    """The token that a file holds; None without a file."""
    if file is None:
        return None
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("token_file", f"{file} cannot be read: {error}") from None


class SeqRange(Struct, frozen=True):
    """Records from one seq up to and with another."""

    first_seq: int
    last_seq: int
    begin: LogPosition | None = None
    """The place in the ledger's log at which its reader begins, if it is read from there."""
    aside: frozenset[int] = frozenset()
    """Seqs of its records that servers go on without: the log does not say it."""


def ranges(first_seq: int, last_seq: int, bounds: list[int], rows: int) -> list[SeqRange]:
    """A range divided evenly into parts of about so many rows, where a segment begins if that is near.

    Even parts end together: a small rest that is read by itself, because a segment ends there, leaves the other cores idle.
    """
    total = last_seq + 1 - first_seq
    if total <= 0:
        return []
    count = -(-total // rows)
    cuts = [first_seq + total * n // count for n in range(1, count)]
    starts = sorted(bounds)
    moved = [_nearest(starts, cut, rows // 8) for cut in cuts]
    edges = [first_seq, *moved, last_seq + 1]
    return [SeqRange(low, high - 1) for low, high in pairwise(edges)]


def _nearest(starts: list[int], seq: int, within: int) -> int:
    """The begin of a segment that is near a seq, or else the seq itself."""
    at = bisect(starts, seq)
    near = min(starts[max(0, at - 1) : at + 1], key=lambda start: abs(start - seq), default=seq)
    return near if abs(near - seq) <= within else seq


def bounds_of(follower: Follower, first_seq: int) -> list[int]:
    """The seqs at which segments begin; raises `NotFound` if the asked ones were reclaimed."""
    bounds = follower.bounds()
    if first_seq < bounds[0]:
        raise NotFound(f"seq {first_seq} of the ledger has been reclaimed; {bounds[0]} is the first there is")
    return bounds


def planned(follower: Follower, first_seq: int, last_seq: int, rows: int) -> list[SeqRange]:
    """A range divided into parts, each with what its reader needs; raises `NotFound` if its begin was reclaimed."""
    parts = ranges(first_seq, last_seq, bounds_of(follower, first_seq), rows)
    if isinstance(follower, LogFollower):
        aside = follower.set_aside()
        return [
            replace(
                part,
                begin=follower.place_of(part.first_seq),
                aside=frozenset(seq for seq in aside if part.first_seq <= seq <= part.last_seq),
            )
            for part in parts
        ]
    return parts


def batch_of(frame: Frame) -> pa.RecordBatch:
    """The records of a frame as columns; bodies are not copied one by one."""
    fixed = frame.fixed
    sizes = np.concatenate([[0], np.cumsum(fixed["size"], dtype=np.int64)]).astype(np.int32)
    bodies = pa.Array.from_buffers(
        pa.binary(), frame.count, [None, pa.py_buffer(sizes.tobytes()), pa.py_buffer(frame.bodies)]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(frame.first_seq, frame.first_seq + frame.count, dtype=np.int64)),
            pa.array(fixed["kind"].astype(np.int32)),
            pa.array(fixed["lane"].astype(np.int32)),
            pa.array(fixed["crc"].astype(np.int64)),
            pa.array(fixed["fire_at_ms"].astype(np.int64)),
            pa.array(fixed["kills_seq"].astype(np.int64)),
            pa.array(fixed["kills_fire_at_ms"].astype(np.int64)),
            bodies,
        ],
        schema=RECORDS,
    )


def read_range(place: LedgerAddress, part: SeqRange) -> Iterator[pa.RecordBatch]:
    """The records of one range. Runs on an executor, if Spark reads."""
    for frame in place.follower(part=part).frames(part.first_seq, part.last_seq):
        yield batch_of(frame)


def records_of(place: LedgerAddress | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records that batches hold, or that the ranges in them name. Runs on an executor."""
    for batch in batches:
        if "last_seq" not in batch.schema.names:
            yield batch
            continue
        assert place is not None
        for row in batch.to_pylist():
            place_in_log = row["log_offset"], row["log_epoch"], row["log_seq"]
            begin = None if None in place_in_log else LogPosition(*place_in_log)
            yield from read_range(place, SeqRange(row["first_seq"], row["last_seq"], begin))
