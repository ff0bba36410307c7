"""A Delta table whose commits are guarded: appended to by ranges of seqs, rewritten under a fence (R6, R7).

delta-rs checks neither that a range was committed before nor that files exist, and syncs nothing. So:

- The table says up to which seq it is complete, as the version of the application transaction `cursor`. An append must
  begin right after it; what is covered is skipped by the caller, a gap is refused here.
- Check and commit use one handle, and every commit sets `cursor`, so that two commits from one snapshot conflict: that
  is the fence under which files are replaced.
- Files are synced before they are committed, by who wrote them; the log is synced here, after the commit.

Only the pipeline's driver commits. The server reads (`tarry.index.delta`).
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from tarry.core.errors import Conflict, Unavailable
from tarry.index.schema import Layout
from tarry.ledger.disk import sync_path

CURSOR: Final = "cursor"

STATE: Final = "tarry"
"""The key of a commit's custom metadata under which the pipeline keeps its own small state."""

REBUILT: Final = "tarry.rebuilt"
"""The mark of a commit that replaced all files: what was done before it does not matter any more."""

CHANGES: Final = frozenset(
    {"WRITE", "DELETE", "UPDATE", "MERGE", "OPTIMIZE", "RESTORE", "TRUNCATE", "STREAMING UPDATE"}
)
"""Operations that add or remove files. Others may vacuum, and set properties."""


class IndexFile(Struct, frozen=True):
    """A Parquet file of a table, synced and not necessarily committed."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    partition: str
    """The slot; in the history, the day."""
    low: int
    """The lowest value of the table's ordered column, and below the highest."""
    high: int
    base: int = 0
    """The number to add to the seq of each row, and the instant before which none fires: see `schema.py`."""
    floor_ms: int = 0
    dels: int = 0
    """How many of its rows are dels."""
    low_seq: int = 0
    """The lowest seq of its rows, before the base, and below the highest."""
    high_seq: int = 0
    written_ms: int = 0
    """By which instant its rows were given their slot; 0 before it is committed, unless the writer says."""

    @property
    def first_ms(self) -> int:
        """The lowest fire instant of its keys."""
        return max(self.low, self.floor_ms)

    @property
    def last_ms(self) -> int:
        """The highest fire instant of its keys."""
        return max(self.high, self.floor_ms)


class GuardedTable:
    """One of the two tables, at one version."""

    def __init__(self, table: DeltaTable, layout: Layout) -> None:
        self._table = table
        self._layout = layout
        self._files: tuple[int, list[IndexFile]] = (-1, [])
        """The files, and of which version they are."""

    @classmethod
    def open(
        cls, uri: str, layout: Layout, ledger_id: bytes, options: dict[str, str] | None = None
    ) -> "GuardedTable":
        """Open a table at its newest version; make it if there is none. Refuses one of another ledger."""
        try:
            table = DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            if "://" not in uri:
                # Messages are in it, with their payloads: nobody else reads them unless the operator says so.
                os.makedirs(uri, mode=0o700, exist_ok=True)
            table = DeltaTable.create(
                uri,
                layout.schema,
                mode="ignore",
                partition_by=list(layout.partitions),
                configuration={
                    "delta.checkpointInterval": "50",
                    # Without it readers take the bounds that we do not write for null, and leave out every file.
                    "delta.dataSkippingStatsColumns": f"{layout.ordered},seq,body",
                    "delta.logRetentionDuration": "interval 1 days",
                },
                description=json.dumps({"ledger": ledger_id.hex()}),
                storage_options=options,
            )
            _sync_log(uri)
        except DeltaError as error:
            raise Unavailable(f"{uri}: cannot be opened as a Delta table: {error}") from error
        opened = cls(table, layout)
        if ledger_id.hex() not in (table.metadata().description or ""):
            raise Unavailable(f"{uri}: belongs to another ledger; were two backups mixed?")
        return opened

    @property
    def version(self) -> int:
        """The version that this handle is at."""
        return self._table.version()

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._table.table_uri

    def refresh(self) -> None:
        """Go to the newest version."""
        self._table.update_incremental()

    def cursor(self) -> int:
        """The seq up to which this version is complete."""
        return self._table.transaction_version(CURSOR) or 0

    def state(self) -> dict[str, Any]:
        """The state that the last commit left under `STATE`."""
        for commit in self._table.history(20):
            if STATE in commit:
                state: dict[str, Any] = json.loads(commit[STATE])
                return state
        return {}

    def check_commits(self) -> None:
        """Raise `Conflict` if one of the latest commits is not the pipeline's: what it changed is known to nobody."""
        for commit in self._table.history(20):
            if REBUILT in commit:
                return
            operation = str(commit.get("operation"))
            if STATE not in commit and operation in CHANGES:
                raise Conflict(
                    f"{self.uri}: version {commit.get('version')} was committed by another program "
                    f"({operation}, {commit.get('engineInfo')}); rebuild the index",
                    "changed",
                )

    def files(self) -> list[IndexFile]:
        """The files of this version."""
        if self._files[0] != self.version:
            self._files = self.version, self._read_files()
        return self._files[1]

    def _read_files(self) -> list[IndexFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        layout = self._layout
        columns = {
            "path": "path", "size": "size_bytes", "rows": "num_records", "partition": f"partition.{layout.partition}",
            "low": f"min.{layout.ordered}", "high": f"max.{layout.ordered}", "dels": "null_count.body",
            "low_seq": "min.seq", "high_seq": "max.seq", "written_ms": "modification_time",
            **{name: f"partition.{name}" for name in layout.constants},
        }  # fmt: skip
        # What another program has added may lack statistics: then anything may be in it.
        unknown = {
            "rows": 0,
            "low": -(1 << 62),
            "high": 1 << 62,
            "dels": 1 << 62,
            "low_seq": 0,
            "high_seq": 1 << 62,
        }
        values = [
            actions.column(source).fill_null(unknown[name]).to_pylist()
            if name in unknown
            else actions.column(source).to_pylist()
            for name, source in columns.items()
        ]
        return [IndexFile(**dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)]

    def append(
        self, files: Sequence[IndexFile], first_seq: int, last_seq: int, state: dict[str, Any]
    ) -> None:
        """Commit files that hold exactly what the records of a range say (R6)."""
        cursor = self.cursor()
        if first_seq != cursor + 1:
            raise Conflict(
                f"the table is complete up to seq {cursor}; a batch from {first_seq} does not follow", "gap"
            )
        self._commit([self._add(file, data_change=True) for file in files], last_seq, state)

    def replace(
        self,
        old: Sequence[IndexFile],
        new: Sequence[IndexFile],
        state: dict[str, Any],
        *,
        rebuilt: bool = False,
    ) -> None:
        """Put files in the place of others that hold the same, under the fence (R7)."""
        active = {file.path for file in self.files()}
        gone = [file.path for file in old if file.path not in active]
        if gone:
            raise Conflict(f"{len(gone)} of the files to replace are not there any more", "moved")
        now_ms = time.time_ns() // 1_000_000
        removes = [
            RemoveAction(
                path=file.path, data_change=False, deletion_timestamp=now_ms, size=file.size,
                partition_values=self._values(file),
            )
            for file in old
        ]  # fmt: skip
        adds = [self._add(file, data_change=False) for file in new]
        self._commit([*removes, *adds], self.cursor(), state, {REBUILT: "true"} if rebuilt else {})

    def _add(self, file: IndexFile, *, data_change: bool) -> AddAction:
        ordered = self._layout.ordered
        stats = {
            "numRecords": file.rows,
            "minValues": {ordered: file.low, "seq": file.low_seq},
            "maxValues": {ordered: file.high, "seq": file.high_seq},
            "nullCount": {ordered: 0, "seq": 0, "body": file.dels},
        }
        written_ms = file.written_ms or time.time_ns() // 1_000_000
        return AddAction(file.path, file.size, self._values(file), written_ms, data_change, json.dumps(stats))

    def _values(self, file: IndexFile) -> dict[str, str | None]:
        """The partition values of a file, as a commit writes them."""
        values: dict[str, str | None] = {self._layout.partition: file.partition}
        return values | {name: str(getattr(file, name)) for name in self._layout.constants}

    def _commit(
        self, actions: list[Any], cursor: int, state: dict[str, Any], notes: dict[str, str] | None = None
    ) -> None:
        properties = CommitProperties(
            custom_metadata={STATE: json.dumps(state), **(notes or {})},
            max_commit_retries=0,
            app_transactions=[Transaction(CURSOR, cursor, time.time_ns() // 1_000_000)],
        )
        try:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=self._layout.schema,
                partition_by=list(self._layout.partitions),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise Conflict(f"another commit came first: {error}", "raced") from error
        _sync_log(self.uri)
        self.refresh()


def _sync_log(uri: str) -> None:
    """Sync the table's log; object stores do so by themselves."""
    folder = uri.removeprefix("file://")
    if "://" in folder:
        return
    log = os.path.join(folder, "_delta_log")
    names = sorted(os.listdir(log))
    newest = [name for name in names if name.endswith(".json")][-1:]
    # A checkpoint is made with a commit now and then, and readers begin with it.
    newest += [name for name in names if ".checkpoint" in name][-1:]
    newest += [name for name in names if name == "_last_checkpoint"]
    for path in (*(os.path.join(log, name) for name in newest), log, folder):
        sync_path(path)
