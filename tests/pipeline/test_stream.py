"""The index stream on a real Spark: every record once, whatever happens between its commits (R6)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tarry.core.errors import Conflict
from tarry.index.delta import DeltaIndex, DeltaView
from tarry.ledger.record import Key
from tarry.pipeline import stream as module
from tarry.pipeline.ledger_parts import LedgerAddress
from tarry.pipeline.stream import IndexStream, Tables, check_dense
from tests.pipeline.kit import START_MS, Writer, tables_of

DAY_MS = 86_400_000
ALL = (Key(0, 0), Key(1 << 47, 0))


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


@pytest.fixture(autouse=True)
def _same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "now_ms", lambda: START_MS)


def ledger_frame(spark: SparkSession, writer: Writer, **options: Any) -> DataFrame:
    reader = spark.read.format("tarry-ledger").option("folder", writer.folder)
    for name, value in options.items():
        reader = reader.option(name.rstrip("_"), str(value))
    return reader.load()


def index(spark: SparkSession, writer: Writer, tables: Tables, **options: Any) -> None:
    IndexStream(tables, 300_000).process(ledger_frame(spark, writer, **options), 0)


def view(writer: Writer) -> DeltaView:
    newest = DeltaIndex(f"{writer.folder}/../tables/index", writer.ledger.ledger_id).newest()
    assert newest is not None
    return newest


def test_the_source_gives_every_record_once(spark: SparkSession, writer: Writer) -> None:
    for n in range(500):
        writer.schedule(1_000 * n + 1)
    rows = ledger_frame(spark, writer, partition_rows=100).select("seq", "kind", "fire_at_ms").collect()
    puts = [row for row in rows if row.kind == 1]
    assert sorted(row.seq for row in rows) == list(range(1, writer.ledger.durable_seq + 1))
    assert sorted(row.fire_at_ms for row in puts) == [START_MS + 1_000 * n + 1 for n in range(500)]
    part = ledger_frame(spark, writer, from_=3, upto=7).select("seq").collect()
    assert sorted(row.seq for row in part) == [3, 4, 5, 6, 7]


def test_what_waits_is_in_the_index_with_its_body(spark: SparkSession, writer: Writer) -> None:
    kept = [writer.schedule(delay, payload=str(delay).encode()) for delay in (1_000, 3_600_000, 40 * DAY_MS)]
    gone = writer.schedule(2_000)
    writer.settle(writer.engine.cancel(gone.id))
    tables = tables_of(writer)
    index(spark, writer, tables)
    assert tables.index.cursor() == tables.history.cursor() == writer.ledger.durable_seq
    due = view(writer).load(*ALL, 1 << 40).due
    assert due.fire_at_ms.tolist() == [message.due_at_ms for message in kept]
    bodies = view(writer).bodies(
        [Key(*key) for key in zip(due.fire_at_ms.tolist(), due.seqs.tolist(), strict=True)], 1 << 30
    )
    assert [body == writer.ledger.read(seq).body for body, seq in zip(bodies, due.seqs.tolist(), strict=True)] == [
        True, True, True,
    ]  # fmt: skip
    assert {file.partition.split("_")[0] for file in tables.index.files()} == {
        "300000",
        "3600000",
        str(30 * DAY_MS),
    }


def test_a_later_batch_kills_what_an_earlier_one_put(spark: SparkSession, writer: Writer) -> None:
    moved, cancelled = writer.schedule(3_600_000), writer.schedule(7_200_000)
    tables = tables_of(writer)
    index(spark, writer, tables)
    assert len(view(writer).load(*ALL, 1 << 40).due.seqs) == 2
    writer.settle(writer.engine.restart(moved.id, delay_ms=5_000))
    writer.settle(writer.engine.cancel(cancelled.id))
    index(spark, writer, tables)
    assert view(writer).load(*ALL, 1 << 40).due.fire_at_ms.tolist() == [START_MS + 5_000]


def test_the_same_batch_again_changes_nothing(spark: SparkSession, writer: Writer) -> None:
    for n in range(20):
        writer.schedule(60_000 + n)
    tables = tables_of(writer)
    index(spark, writer, tables)
    version, cursor = tables.index.version, tables.index.cursor()
    index(spark, writer, tables, upto=cursor)
    assert (tables.index.version, tables.index.cursor()) == (version, cursor)
    assert len(view(writer).load(*ALL, 1 << 40).due.seqs) == 20


def test_a_batch_that_overlaps_brings_only_what_is_new(spark: SparkSession, writer: Writer) -> None:
    for n in range(10):
        writer.schedule(60_000 + n)
    tables = tables_of(writer)
    index(spark, writer, tables, upto=4)
    index(spark, writer, tables)
    assert view(writer).load(*ALL, 1 << 40).due.fire_at_ms.tolist() == [
        START_MS + 60_000 + n for n in range(10)
    ]


def test_a_batch_that_leaves_a_gap_is_refused(spark: SparkSession, writer: Writer) -> None:
    for n in range(10):
        writer.schedule(60_000 + n)
    tables = tables_of(writer)
    with pytest.raises(Conflict, match="not dense"):
        index(spark, writer, tables, from_=3)
    assert tables.index.cursor() == 0


@pytest.mark.parametrize(
    "ranges",
    [[(1, 5, 4)], [(1, 5, 5), (6, 9, 3)], [(1, 5, 5), (7, 9, 3)], [(2, 5, 4)], [(1, 5, 5), (4, 9, 6)]],
)
def test_ranges_with_a_hole_in_or_between_them_are_refused(ranges: list[tuple[int, int, int]]) -> None:
    rows = [SimpleNamespace(first_seq=first, last_seq=last, rows=count) for first, last, count in ranges]
    with pytest.raises(Conflict, match="not dense"):
        check_dense(rows, 1)
    check_dense(
        [SimpleNamespace(first_seq=1, last_seq=5, rows=5), SimpleNamespace(first_seq=6, last_seq=6, rows=1)],
        1,
    )


def test_a_driver_that_died_between_the_two_commits_doubles_no_history(
    spark: SparkSession, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        writer.schedule(n + 1)
    writer.run(1_000)
    tables = tables_of(writer)
    with monkeypatch.context() as patch:
        patch.setattr(type(tables.index), "append", _die_at_the_index(type(tables.index).append))
        with pytest.raises(KeyboardInterrupt):
            index(spark, writer, tables)
    again = tables_of(writer)
    assert (again.history.cursor() > 0, again.index.cursor()) == (True, 0)
    writer.schedule(1)
    writer.run(1_000)
    index(spark, writer, again)
    assert again.history.cursor() == again.index.cursor() == writer.ledger.durable_seq
    assert sum(file.rows for file in again.history.files()) == 6


def _die_at_the_index(append: Any) -> Any:
    def dying(self: Any, *arguments: Any) -> None:
        if self.uri.rstrip("/").endswith("index"):
            raise KeyboardInterrupt
        append(self, *arguments)

    return dying


def test_the_history_says_what_became_of_each(spark: SparkSession, writer: Writer) -> None:
    writer.schedule(5, owner="a", key="k")
    cancelled = writer.schedule(60_000, owner="b")
    writer.settle(writer.engine.cancel(cancelled.id))
    writer.run(7)
    tables = tables_of(writer)
    index(spark, writer, tables)
    rows = spark.read.parquet(
        *(f"{writer.folder}/../tables/history/{file.path}" for file in tables.history.files())
    )
    found = {row.owner: row for row in rows.collect()}
    assert (found["a"].outcome, found["a"].lateness_ms, found["a"].attempts, found["a"].key) == (
        "sent",
        2,
        1,
        "k",
    )
    assert (found["b"].outcome, found["b"].reason) == ("cancelled", "cancelled by command")
    assert found["a"].body is None
    assert (found["a"].version_seq, found["a"].fire_at_ms) == (found["a"].origin_seq, START_MS + 5)


def test_the_stream_follows_the_ledger(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    for n in range(30):
        writer.schedule(60_000 + n)
    tables = tables_of(writer)
    query = (
        spark.readStream.format("tarry-ledger")
        .option("folder", writer.folder)
        .option("rows", "7")
        .option("ranges", "true")
        .load()
        .writeStream.foreachBatch(
            IndexStream(tables, 300_000, place=LedgerAddress(writer.folder, None)).process
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    assert tables.index.cursor() == writer.ledger.durable_seq
    assert len(view(writer).load(*ALL, 1 << 40).due.seqs) == 30
