"""A real ledger in a folder, filled by a real engine whose clock the test owns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.fs

from tarry.core.limits import DAY_MS
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import Message, Scheduled
from tarry.core.timers.slots import Slot
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine
from tarry.engine.settings import EngineSettings
from tarry.engine.wiring import Surroundings
from tarry.index.delta import DeltaIndex
from tarry.index.files import Folder, write_file
from tarry.index.schema import STAGED
from tarry.index.state import CommitState
from tarry.ledger.disk import RealDisk
from tarry.ledger.follow import FolderFollower
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import FIRST_BATCH_SEQ, Adopt, Put, Record, StagedFile, encode
from tarry.pipeline.ledger_parts import batch_of
from tarry.pipeline.stream import IndexStream, Tables
from tarry.registry.registry import Registry
from tarry.testing.clock import SimulatedClock
from tarry.testing.index import SimulatedIndex
from tests.pipeline.live import live_versions

START_MS = 1_794_740_400_000


class Writer:
    """An engine over a real folder, stepped by hand."""

    def __init__(self, folder: Path, segment_bytes: int = 1 << 20, *, indexed: bool = False) -> None:
        self.clock = SimulatedClock(START_MS)
        self.folder = str(folder / "ledger")
        self._settings = LedgerSettings(segment_bytes=segment_bytes)
        self._tables = str(folder / "tables") if indexed else None
        self._start()

    def _start(self) -> None:
        self.ledger = Ledger.open(RealDisk(), self.folder, self._settings, self.clock)
        index = f"{self._tables}/index"
        self.engine = Engine(
            Surroundings(
                ledger=self.ledger,
                registry=Registry(":memory:"),
                index=SimulatedIndex() if self._tables is None else DeltaIndex(index, self.ledger.ledger_id),
                clock=self.clock,
                ids=Ids(bytes(32)),
                outlets={},
                launch=lambda outlet, delivery, verdict: None,
                offload=_inline,
                settings=EngineSettings(),
            )
        )
        self.engine.recover()

    def restart(self) -> None:
        """End the engine and begin again, with nothing but what the ledger and the index have."""
        self.ledger.close()
        self._start()

    def settle(self, answer: Answer[Any]) -> Any:
        """Commit until an answer has come."""
        while not answer.settled:
            self.run(0)
        return answer.value()

    def run(self, ms: int) -> None:
        """Let time pass, and make everything durable that follows from it."""
        self.clock.advance(ms)
        while True:
            again_ms = self.engine.tick()
            if not self.ledger.commit() and again_ms > self.clock.now_ms():
                return

    def schedule(self, delay_ms: int, **fields: Any) -> Scheduled:
        """Schedule a message and make it durable."""
        message = Message(destination=fields.pop("destination", "orders"), delay_ms=delay_ms, **fields)
        scheduled: Scheduled = self.settle(self.engine.schedule(message))
        return scheduled


def _inline(work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
    work()
    done(None)


class Row(NamedTuple):
    """A row as a task of the index stream writes it."""

    first_seq: int
    last_seq: int
    rows: int
    written: str


class LocalBatch:
    """Stands where Spark stands: runs a task over ranges of a ledger, one after another, in this process."""

    def __init__(self, folder: str, first_seq: int = 1, last_seq: int = 1 << 62, rows: int = 1 << 62) -> None:
        self._follower = FolderFollower(folder)
        self._first, self._rows = first_seq, rows
        self._last = min(last_seq, self._follower.durable_seq())

    def mapInArrow(self, task: Any, schema: str) -> "LocalBatch":  # noqa: N802 - Spark's name
        self._task = task
        return self

    def collect(self) -> list[Row]:
        found: list[Row] = []
        for first in range(self._first, self._last + 1, self._rows):
            last = min(first + self._rows - 1, self._last)
            frames = map(batch_of, self._follower.frames(first, last))
            found += [Row(**row) for said in self._task(frames) for row in said.to_pylist()]
        return found[::-1]


def index_locally(
    writer: Writer, tables: Tables, *, default_ms: int = 300_000, **options: int
) -> IndexStream:
    """One batch of the index stream, without Spark."""
    stream = IndexStream(tables, default_ms)
    stream.process(cast(Any, LocalBatch(writer.folder, **options)), 0)
    return stream


def index_folder(folder: str) -> None:
    """Index a ledger that another process writes, as a driver does."""
    follower = FolderFollower(folder)
    tables = Tables.open(f"{folder}/../tables", follower.ledger_id())
    tables.begin(follower.first_seq())
    batch = LocalBatch(folder, tables.index.cursor() + 1, follower.durable_seq())
    IndexStream(tables, 300_000).process(cast(Any, batch), 0)


def live(tables: Tables) -> list[tuple[int, int]]:
    """The keys that the index holds to be alive, in order."""
    tables.index.refresh()
    state = msgspec.convert(tables.index.state(), CommitState)
    found = live_versions(Folder(tables.index.uri), tables.index.files(), state)
    return sorted(zip(found.fire_at_ms.tolist(), found.seqs.tolist(), strict=True))


def history(tables: Tables) -> list[dict[str, Any]]:
    """The rows of the history."""
    tables.history.refresh()
    folder = Folder(tables.history.uri)
    return [
        row
        for file in tables.history.files()
        for table in folder.read(file.path)
        for row in table.to_pylist()
    ]


def tables_of(writer: Writer) -> Tables:
    """The tables beside a ledger."""
    return Tables.open(f"{writer.folder}/../tables", writer.ledger.ledger_id)


def record(writer: Writer, *records: Record) -> int:
    """Append records that the engine knows nothing of; gives the last seq."""
    writer.ledger.append([encode(one) for one in records], lambda error: None)
    writer.ledger.commit()
    return writer.ledger.durable_seq


def staged(
    writer: Writer, name: str, fires: list[list[int]], first_seq: int = FIRST_BATCH_SEQ, floor_ms: int = 0
) -> Adopt:
    """A batch whose files are staged, and the record that adopts it. Each list is a file."""
    uri = tables_of(writer).index.uri.removeprefix("file://").rstrip("/")
    files: list[StagedFile] = []
    for number, instants in enumerate(fires):
        puts = [put(fire) for fire in sorted(instants)]
        encoded = [encode(one) for one in puts]
        rows = pa.table(
            {
                "fire_at_ms": pa.array([one.fire_at_ms for one in puts], pa.int64()),
                "seq": pa.array(range(len(puts)), pa.int64()),
                "op": pa.array([1] * len(puts), pa.int32()),
                "lane": pa.array([one.lane for one in encoded], pa.int32()),
                "crc": pa.array([one.crc for one in encoded], pa.int64()),
                "body": pa.array([one.body for one in encoded], pa.binary()),
                "batch": pa.array([name] * len(puts), pa.string()),
                "due_at_ms": pa.array([one.due_at_ms for one in puts], pa.int64()),
                "accepted_at_ms": pa.array([one.accepted_at_ms for one in puts], pa.int64()),
                "namespace": pa.array([one.namespace for one in puts], pa.string()),
            }
        )
        path = Path(uri) / STAGED / name / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(pyarrow.fs.LocalFileSystem(), str(path), rows)
        low, high = puts[0].fire_at_ms, puts[-1].fire_at_ms
        slot = Slot(DAY_MS, low // DAY_MS * DAY_MS).name
        files.append(
            StagedFile(f"{STAGED}/{name}/{number}.parquet", path.stat().st_size, len(puts), slot, low, high)
        )
    count = sum(map(len, fires))
    return Adopt(name, first_seq, count, floor_ms, START_MS, files, {"": count}, ["public/default"])


def put(fire_at_ms: int) -> Put:
    """A version that fires at an instant."""
    return Put(
        fire_at_ms, fire_at_ms, START_MS, "public/default", "orders", None, "", "http", None, None, None, 0, False,
        b"payload", {}, START_MS, None,
    )  # fmt: skip
