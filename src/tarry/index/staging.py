"""Staging: the files of a batch, written and synced in the index's folder before anybody knows of them (R10).

Rows are gathered to a bound, checked, encoded as the bodies of versions, sorted by instant, cut at the bounds of slots
and written, one file for each slot. A file's `seq` counts its rows from 0; the server says at adoption what is to be added,
and the floor. What was staged and never adopted is nothing: retention deletes it when it is old.

No Spark and no server here: tasks of a job call it, and so does the command line.
"""

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.fs
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import Rejected, TooLarge, Unavailable
from tarry.core.tenants.holder import Holder, by_namespace
from tarry.core.timers.slots import Slot, sizes_for
from tarry.index.files import filesystem_of, write_file
from tarry.index.incoming import Incoming, Mapping, read
from tarry.index.manifest import DOOR, MAX_FILES, BatchManifest, ManifestFile, StagingPlace
from tarry.index.schema import PUT, STAGED
from tarry.ledger.columns import Coded, count_holders, holders_of, lanes_of, lengths_of
from tarry.ledger.disk import sync_path
from tarry.ledger.puts import encode_bodies, place_text

CHUNK_ROWS: Final = 500_000
CHUNK_BYTES: Final = 64 * 1024 * 1024
"""Bytes gathered before they are sorted and written, by their size as they came in: memory is a few times this."""

PIECE_ROWS: Final = 16_384
"""Rows that are encoded together: so few that they stay in the processor's cache."""

FILES_AHEAD: Final = 4
"""Encoded files that may wait for the disk."""

MAX_BAD_ROWS: Final = 20
"""So many rows that cannot be taken are named; then it is enough."""

COMPRESSION_LEVEL: Final = 1
"""A staged file is rewritten by the cascade before long: time matters more than size."""


class BadRow(Struct, frozen=True):
    """A row that cannot be taken, and why."""

    where: str
    reason: str


class BadRows(Rejected):
    """Some rows cannot be taken, and so the whole batch is not."""

    code = "bad-rows"

    def __init__(self, rows: list[BadRow]) -> None:
        said = "; ".join(f"{row.where}: {row.reason}" for row in rows[:MAX_BAD_ROWS])
        super().__init__(f"nothing was scheduled, because of {said}")
        self.rows = rows


class StagedFiles(Struct, frozen=True):
    """The files that one stager has written."""

    files: list[ManifestFile]
    held: dict[str, dict[str, int]]
    """How many rows belong to each owner, by namespace."""
    namespaces: dict[str, int]
    rows: int
    mixed: int
    """The rows' hashes, added up: it does not depend on their order or on who staged which."""
    bad: list[BadRow] = []


class Stager:
    """Takes rows and leaves files. One for each task; its token is that of the job."""

    def __init__(
        self, place: StagingPlace, mapping: Mapping, batch: str, token: str, part: str = "0"
    ) -> None:
        self._place = place
        self._mapping = mapping
        self._batch = batch
        self._folder = f"{STAGED}/{token}"
        self._part = part
        self._filesystem, root = filesystem_of(place.index)
        self._root = root.rstrip("/")
        if isinstance(self._filesystem, pyarrow.fs.LocalFileSystem) and not os.path.isdir(self._root):
            raise Unavailable(f"{self._root}, the folder of the server's index, is not to be seen from here")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._files: list[ManifestFile] = []
        self._holders: Counter[Holder] = Counter()
        self._namespaces: dict[str, int] = {}
        self._rows = 0
        self._mixed = 0
        self._bad: list[BadRow] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging")
        self._writing: deque[Future[None]] = deque()
        """Files on their way to the disk."""
        self._hopeless = False
        """Whether it is a column that cannot be taken, and so no row can."""

    @property
    def rows(self) -> int:
        """How many rows were taken so far."""
        return self._rows + self._waiting_rows

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take rows; False once so many were bad that there is no point in going on."""
        if batch.num_rows:
            self._waiting.append(batch)
            self._waiting_rows += batch.num_rows
            self._waiting_bytes += batch.nbytes
            if self._waiting_rows >= CHUNK_ROWS or self._waiting_bytes >= CHUNK_BYTES:
                self._write()
        return not self._hopeless and len(self._bad) < MAX_BAD_ROWS

    def finish(self) -> StagedFiles:
        """Write the remaining rows; all files are synced when this returns."""
        self._write()
        self._wait()
        self._thread.shutdown()
        if self._files and isinstance(self._filesystem, pyarrow.fs.LocalFileSystem):
            for folder in (f"{self._root}/{self._folder}", f"{self._root}/{STAGED}", self._root):
                sync_path(folder)
        return StagedFiles(
            self._files,
            by_namespace(self._holders),
            self._namespaces,
            self._rows,
            self._mixed,
            self._bad[:MAX_BAD_ROWS],
        )

    def _write(self) -> None:
        if not self._waiting_rows:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        for batch in table.combine_chunks().to_batches():
            try:
                incoming = read(batch, self._mapping, self._place)
            except Rejected as error:
                self._bad.append(BadRow("every row", str(error)))
                self._hopeless = True
                return
            for row in sorted(incoming.errors)[: MAX_BAD_ROWS - len(self._bad)]:
                where = f"row {self._rows + row + 1}" + (
                    "" if self._part == "0" else f" of part {self._part}"
                )
                self._bad.append(BadRow(where, str(incoming.errors[row])))
            self._rows += batch.num_rows
            # Once a row is bad nothing is going to be adopted: the others are only looked at.
            if not self._bad:
                self._count(incoming)
                self._write_slots(incoming)

    def _count(self, incoming: Incoming) -> None:
        namespaces = [namespace for _, namespace in incoming.places]
        holders = holders_of(Coded(namespaces, incoming.codes), incoming.contents.owners)
        self._holders.update(count_holders(holders))
        latest = np.zeros(len(incoming.places), np.int64)
        np.maximum.at(latest, incoming.codes, incoming.due_at_ms)
        for (_, namespace), due_at_ms in zip(incoming.places, latest.tolist(), strict=True):
            self._namespaces[namespace] = max(self._namespaces.get(namespace, 0), due_at_ms)
        self._mixed = (self._mixed + _mixed(incoming)) & _MASK

    def _write_slots(self, incoming: Incoming) -> None:
        fire = incoming.fire_at_ms
        sizes = sizes_for(fire, self._place.now_ms, incoming.slot_ms)
        starts = fire // sizes * sizes
        order = np.lexsort((fire, starts, sizes))
        sizes, starts = sizes[order], starts[order]
        cuts = (np.flatnonzero((np.diff(sizes) != 0) | (np.diff(starts) != 0)) + 1).tolist()
        for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True):
            pieces = [
                _rows(incoming, order[at : min(at + PIECE_ROWS, high)], self._batch, self._place.now_ms)
                for at in range(low, high, PIECE_ROWS)
            ]
            # While this file is compressed and synced, the next one is encoded.
            self._wait(FILES_AHEAD)
            rows, slot = pa.concat_tables(pieces), Slot(int(sizes[low]), int(starts[low])).name
            self._writing.append(self._thread.submit(self._write_file, rows, slot))

    def _wait(self, left: int = 0) -> None:
        """Wait until at most so many files are on their way."""
        while len(self._writing) > left:
            self._writing.popleft().result()

    def _write_file(self, rows: pa.Table, slot: str) -> None:
        if len(self._files) >= MAX_FILES:
            raise TooLarge("batch", MAX_FILES, "files")
        path = f"{self._folder}/{self._part}-{len(self._files)}.parquet"
        full = f"{self._root}/{path}"
        if not self._files:
            self._filesystem.create_dir(os.path.dirname(full), recursive=True)
        counted = rows.add_column(1, "seq", pa.array(np.arange(rows.num_rows, dtype=np.int64)))
        write_file(self._filesystem, full, counted, COMPRESSION_LEVEL)
        fire = rows.column("fire_at_ms")
        self._files.append(
            ManifestFile(
                path=path, size_bytes=self._filesystem.get_file_info(full).size, rows=rows.num_rows, slot=slot,
                low_ms=fire[0].as_py(), high_ms=fire[-1].as_py(),
            )
        )  # fmt: skip


def manifest_of(place: StagingPlace, staged: Iterable[StagedFiles], *, named: bool = False) -> BatchManifest:
    """The manifest of all files of a job's stagers, to be adopted. Raises `BadRows`.

    With `named` the name of the batch alone says what it is: for a job that can only be the same one again.
    """
    parts = list(staged)
    if bad := [row for part in parts for row in part.bad]:
        raise BadRows(bad)
    owners: Counter[str] = Counter()
    held: dict[str, Counter[str]] = defaultdict(Counter)
    namespaces: dict[str, int] = {}
    for part in parts:
        for namespace, of in part.held.items():
            owners.update(of)
            held[namespace].update(of)
        for namespace, due_at_ms in part.namespaces.items():
            namespaces[namespace] = max(namespaces.get(namespace, 0), due_at_ms)
    files = [file for part in parts for file in part.files]
    if len(files) > MAX_FILES:
        raise TooLarge("batch", MAX_FILES, "files")
    count, mixed = sum(part.rows for part in parts), sum(part.mixed for part in parts) & _MASK
    return BatchManifest(
        ledger=place.ledger, files=files, owners=dict(owners), namespaces=namespaces,
        held={namespace: dict(of) for namespace, of in held.items()},
        fingerprint="" if named else f"{count}-{mixed:016x}",
    )  # fmt: skip


def remove_staged(place: StagingPlace, token: str) -> None:
    """Delete what a job has staged, once it is known that it was not adopted."""
    filesystem, root = filesystem_of(place.index)
    folder = f"{root.rstrip('/')}/{STAGED}/{token}"
    if filesystem.get_file_info(folder).type == pyarrow.fs.FileType.Directory:
        filesystem.delete_dir(folder)


def _rows(incoming: Incoming, order: NDArray[np.int64], batch: str, now_ms: int) -> pa.Table:
    """The columns of the index, in this order of rows; without `seq`, which is counted by file."""
    contents, place_codes = incoming.contents.take(order), incoming.codes[order]
    texts = [place_text(namespace, destination) for destination, namespace in incoming.places]
    fire, due = incoming.fire_at_ms[order], incoming.due_at_ms[order]
    bodies = encode_bodies(
        contents, Coded(texts, place_codes), fire, due, incoming.delay_ms[order], now_ms, DOOR
    )
    count, owners = len(order), contents.owners
    crcs = np.fromiter(map(google_crc32c.value, bodies.to_pylist()), np.int64, count)
    namespaces = Coded([namespace for _, namespace in incoming.places], place_codes)
    return pa.table(
        {
            "fire_at_ms": fire,
            "op": np.full(count, PUT, np.int32),
            "lane": lanes_of(holders_of(namespaces, owners), DOOR).astype(np.int32),
            "crc": crcs,
            "body": bodies,
            "batch": _repeated([batch], np.zeros(count, np.int32)),
            "due_at_ms": due,
            "accepted_at_ms": np.full(count, now_ms, np.int64),
            "namespace": _repeated([namespace for _, namespace in incoming.places], place_codes),
            "destination": _repeated([destination for destination, _ in incoming.places], place_codes),
            "owner": _repeated(owners.values, owners.codes),
            "door": _repeated([DOOR], np.zeros(count, np.int32)),
            "key": pa.nulls(count, pa.string()) if contents.keys is None else contents.keys,
            "group": pa.nulls(count, pa.string()),
            "attempts": np.zeros(count, np.int32),
        }
    )


def _repeated(values: list[str], codes: NDArray[np.int32]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(values, pa.string()))


# The fingerprint

_MASK: Final = (1 << 64) - 1


def _mixed(incoming: Incoming) -> int:
    """A hash of every row as it was asked for, added up."""
    texts = np.array([_text_hash("\0".join(place)) for place in incoming.places], np.uint64)
    contents = incoming.contents
    owners = np.array([_text_hash(name) for name in contents.owners.values], np.uint64)
    nothing = np.zeros(contents.count, np.uint64)
    columns: list[Any] = [
        incoming.asked.astype(np.uint64),
        texts[incoming.codes],
        owners[contents.owners.codes],
        nothing if contents.ttl_ms is None else contents.ttl_ms.values.astype(np.uint64),
        _hashes(contents.payloads),
        nothing if contents.keys is None else _hashes(contents.keys),
    ]
    if contents.headers is not None:
        columns.append(
            np.array([_text_hash(repr(pairs)) for pairs in contents.headers.to_pylist()], np.uint64)
        )
    mixed = np.zeros(len(incoming.asked), np.uint64)
    for column in columns:
        mixed = _spread(mixed ^ column)
    return int(mixed.sum(dtype=np.uint64))


def _hashes(column: Any) -> NDArray[np.uint64]:
    """A hash of each value, 0 for null; short values cost a fraction of a microsecond each."""
    values = column.cast(pa.binary()).fill_null(b"")
    crcs = np.empty(len(column), np.uint64)
    for at in range(0, len(column), PIECE_ROWS):
        piece = values.slice(at, PIECE_ROWS)
        crcs[at : at + len(piece)] = list(map(google_crc32c.value, piece.to_pylist()))
    return crcs | lengths_of(values).astype(np.uint64) << np.uint64(32)


def _text_hash(text: str) -> int:
    data = text.encode()
    crc: int = google_crc32c.value(data)
    return crc | len(data) << 32


def _spread(mixed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all 64 (the last steps of splitmix64)."""
    mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
