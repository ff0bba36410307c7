"""A simulated index: what the pipeline would have made of the ledger, in memory, whenever a test says so.

    world.index.flush(world.ledger)      the pipeline indexes what is durable
    world.index.compact()                               the cascade drops the rows of dead versions
    world.index.vacuum()                                files of older versions are gone
    world.index.stage(path, rows)                       a job stages a file of a batch, to be adopted

It outlives crashes, as synced files do. It follows the rules of the tables (R6, R7): puts and dels by key, a cursor,
nothing below the watermark.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.core.timers.run import Due
from tarry.index.adopted import at_floor
from tarry.index.index import NOTHING, IndexMoved, IndexView, LoadedRows, SlotFigures, StagedBatch
from tarry.ledger.lanes import DOORS, doors_of
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Adopt, CancelBatch, Key, Kind, Lower, Mark, StagedFile, decode
from tarry.ledger.watermark import Watermark

IndexPut = tuple[int, bytes]
"""The lane and the body of a version."""

_COLUMNS: Final = ["kind", "lane", "fire_at_ms", "kills_fire_at_ms", "kills_seq"]
"""Columns of the fixed part of a record that the index reads."""
_FIRING: Final = frozenset(map(int, (Kind.PUT, Kind.ENTRY)))
_DECODED: Final = frozenset(map(int, (Kind.MARK, Kind.LOWER, Kind.ADOPT, Kind.CANCEL_BATCH)))
"""Kinds of records that say more to the index than their fixed parts do."""

STAGED_ONLY: Final = -1
"""The version of a view that has staged files alone."""


class StagedRow(NamedTuple):
    """A version in a staged file."""

    fire_at_ms: int
    lane: int
    body: bytes


class SimulatedIndex:
    """The index, and the pipeline that writes it."""

    def __init__(self) -> None:
        self.piece = 1 << 30
        """How many entries a view gives at once, at the most: small for tests of large loads."""
        self.moved = 0
        """How often a version was read whose files were gone."""
        self._cursor = 0
        self._passed = Watermark()
        self._puts: dict[Key, IndexPut] = {}
        self._dels: set[Key] = set()
        self._files: dict[str, list[StagedRow]] = {}
        """Staged files, by path."""
        self._oldest = 0
        self._version = 0
        self._view = SimulatedView(self, 0, 0, {}, set())

    # As the server sees it

    def newest(self) -> IndexView:
        """A view of the newest version."""
        return self._view

    def staged(self, batches: Sequence[StagedBatch]) -> IndexView:
        """A view of the staged files of batches alone."""
        return SimulatedView(self, STAGED_ONLY, 0, {}, set()).with_batches(batches)

    def readable(self, version: int) -> bool:
        """Whether the files of a version are still there; files of batches always are."""
        return version == STAGED_ONLY or version >= self._oldest

    def rows_of(self, files: Sequence[StagedFile], first_seq: int, floor_ms: int) -> dict[Key, IndexPut]:
        """The rows of adopted files, each with its key: none fires before the floor (R10). A file that is missing has none."""
        found: dict[Key, IndexPut] = {}
        for file in files:
            for seq, row in enumerate(self._files.get(file.path, ()), first_seq):
                early = row.fire_at_ms < floor_ms
                body = at_floor(row.body, floor_ms).body if early else row.body
                found[Key(max(row.fire_at_ms, floor_ms), seq)] = row.lane, body
            first_seq += file.rows
        return found

    # As a job stages a batch

    def stage(self, path: str, rows: Sequence[StagedRow]) -> StagedFile:
        """Write a file of a batch: versions in the order of their fire instants, with their lanes and bodies."""
        self._files[path] = sorted(rows, key=lambda row: row.fire_at_ms)
        fires = [row.fire_at_ms for row in rows]
        return StagedFile(path, sum(len(row.body) for row in rows), len(rows), "1_0", min(fires), max(fires))

    # As the pipeline makes it

    @property
    def cursor(self) -> int:
        """The seq up to which it is complete."""
        return self._cursor

    def begin(self) -> None:
        """The pipeline has made its tables, and nothing is in them yet."""
        if not self._version:
            self._commit()

    def flush(self, ledger: Ledger, upto_seq: int | None = None) -> None:
        """Index durable records, up to some seq."""
        upto = ledger.durable_seq if upto_seq is None else min(upto_seq, ledger.durable_seq)
        # A new index begins with the ledger; all that lived before was carried forward.
        first = self._cursor + 1 if self._cursor else ledger.first_seq
        if upto < first:
            return
        rows = [
            (seq, *fixed, frame.body(at))
            for frame in ledger.frames(first)
            for at, fixed in enumerate(frame.fixed[_COLUMNS].tolist())
            if first <= (seq := frame.first_seq + at) <= upto
        ]
        # All or nothing, as a commit is: reading stops at damage.
        for row in rows:
            self._take(*row)
        self._cursor = upto
        self._commit()

    def _take(
        self,
        seq: int,
        kind: int,
        lane: int,
        fire_at_ms: int,
        kills_fire_at_ms: int,
        kills_seq: int,
        body: bytes,
    ) -> None:
        if kind in _FIRING and fire_at_ms > 0:
            key = Key(fire_at_ms, seq)
            if not self._passed.has_passed(key):
                self._puts[key] = lane, body
        if kills_seq:
            killed = Key(kills_fire_at_ms, kills_seq)
            if not self._passed.has_passed(killed):
                self._dels.add(killed)
        if kind not in _DECODED:
            return
        record = decode(body)
        if isinstance(record, Mark | Lower):
            self._passed = self._passed.after(seq, record)
        elif isinstance(record, Adopt):
            self._puts |= {
                key: row
                for key, row in self.rows_of(record.files, record.first_seq, record.floor_ms).items()
                if not self._passed.has_passed(key)
            }
        elif isinstance(record, CancelBatch):
            spared = {one.key for one in record.spared}
            inside = range(record.first_seq, record.first_seq + record.count)
            self._puts = {
                key: row for key, row in self._puts.items() if key.seq not in inside or key in spared
            }

    def compact(self) -> None:
        """Drop the rows of dead versions with the dels that ended them.

        Of versions that the watermark has passed only the dels go, as where their rows lie in files that are not rewritten: that
        they are dead the watermark alone says then.
        """
        if self._version:
            self._puts = {
                key: put
                for key, put in self._puts.items()
                if key not in self._dels or self._passed.has_passed(key)
            }
            self._dels.clear()
            self._commit()

    def vacuum(self) -> None:
        """Nobody can read older versions any more."""
        self._oldest = self._version

    def _commit(self) -> None:
        self._version += 1
        self._view = SimulatedView(self, self._version, self._cursor, dict(self._puts), set(self._dels))


class SimulatedView:
    """One version."""

    def __init__(
        self,
        index: SimulatedIndex,
        version: int,
        cursor: int,
        puts: dict[Key, IndexPut],
        dels: set[Key],
    ) -> None:
        self.cursor = cursor
        self.identity = "simulated" if version > 0 else ""
        self._index = index
        self._version = version
        self._puts = puts
        self._dels = dels
        self._keys = sorted(puts)

    def load(self, low: Key, high: Key, limit: int) -> LoadedRows:
        """The versions in a range that are not known here to be dead."""
        self._check()
        limit = min(limit, self._index.piece)
        inside = self._keys[bisect_left(self._keys, low) : bisect_left(self._keys, high)]
        alive = [key for key in inside if key not in self._dels]
        upto = high if len(alive) <= limit else alive[limit]
        chosen = alive[:limit]
        if not chosen:
            return LoadedRows(NOTHING, upto)
        table = np.array(chosen, np.int64)
        lanes = np.array([self._puts[key][0] for key in chosen], np.uint16)
        return LoadedRows(Due(table[:, 0].copy(), table[:, 1].copy(), lanes), upto)

    def may_hold(self, low: Key, high: Key) -> bool:
        """Whether there is anything in a range."""
        return bisect_left(self._keys, low) < bisect_left(self._keys, high)

    def bodies(self, keys: Sequence[Key], max_bytes: int) -> list[bytes | Damage | None]:
        """The bodies of the first of these versions."""
        self._check()
        found = [None if key in self._dels or key not in self._puts else self._puts[key][1] for key in keys]
        return list(found[: max(1, min(len(keys), self._index.piece))])

    def with_batches(self, batches: Sequence[StagedBatch]) -> IndexView:
        """The view with the staged files of batches as well (R10)."""
        if not batches:
            return self
        puts = dict(self._puts)
        for batch in batches:
            puts |= self._index.rows_of(batch.files, batch.first_seq, batch.floor_ms)
        return SimulatedView(self._index, self._version, self.cursor, puts, self._dels)

    def tallies(
        self, from_ms: int, edges: NDArray[np.int64], cancelled: Sequence[tuple[int, int]]
    ) -> Iterator[NDArray[np.float64]]:
        """How many versions wait between each two edges, by door."""
        alive = [key for key in self._keys if key not in self._dels and key.fire_at_ms >= from_ms]
        counts = np.zeros((len(edges) - 1, len(DOORS)))
        for key in alive:
            at = int(edges.searchsorted(key.fire_at_ms, "right")) - 1
            if 0 <= at < len(counts):
                counts[at, int(doors_of(np.array([self._puts[key][0]]))[0])] += 1
        yield counts

    def slots(self) -> list[SlotFigures]:
        """The slots, of which there are none."""
        return []

    def last_fire_at_ms(self) -> int:
        """The last instant that it has, or 0."""
        return self._keys[-1].fire_at_ms if self._keys else 0

    def _check(self) -> None:
        if not self._index.readable(self._version):
            self._index.moved += 1
            raise IndexMoved(f"version {self._version}")
