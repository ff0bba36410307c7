"""The index compared with what it ought to hold, and made again."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.index.state import Cancelled, CommitState
from tarry.ledger.record import FIRST_BATCH_SEQ
from tarry.pipeline import cascade as cascading
from tarry.pipeline import stream
from tarry.pipeline import verify as verifying
from tarry.pipeline.cascade import cascade
from tarry.pipeline.ledger_parts import LedgerAddress
from tarry.pipeline.rebuild import pieces, rebuild
from tarry.pipeline.stream import Tables
from tarry.pipeline.verify import Comparison, compared, living, pin, verify
from tests.pipeline.kit import START_MS, Writer, index_locally, live, put, record, staged, tables_of

FIVE_MS = 300_000
B = FIRST_BATCH_SEQ


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(stream, "now_ms", lambda: START_MS)
    monkeypatch.setattr(cascading, "now_ms", lambda: START_MS)
    return Writer(tmp_path, segment_bytes=16 << 10)


def checked(spark: SparkSession, writer: Writer, tables: Tables) -> Comparison:
    place = LedgerAddress(writer.folder, None)
    return verify(spark, pin(tables.index, place), place)


def filled(writer: Writer) -> Tables:
    """An index with something of everything, after a cascade; its ledger has several segments."""
    tables = tables_of(writer)
    doomed = writer.schedule(2 * DAY_MS)
    moved = writer.schedule(3 * HOUR_MS)
    record(writer, *(put(START_MS + n * MINUTE_MS) for n in range(1, 60)))
    record(
        writer,
        staged(writer, "b", [[START_MS + HOUR_MS, START_MS + DAY_MS]], floor_ms=START_MS + 2 * HOUR_MS),
    )
    index_locally(writer, tables)
    writer.settle(writer.engine.cancel(doomed.id))
    writer.settle(writer.engine.restart(moved.id, delay_ms=5 * HOUR_MS))
    cascade(None, tables.index, FIVE_MS)
    record(writer, *(put(START_MS + DAY_MS + n * MINUTE_MS) for n in range(1, 60)))
    index_locally(writer, tables)
    return tables


def test_an_index_is_compared_and_made_again(spark: SparkSession, writer: Writer) -> None:
    tables = filled(writer)
    before = live(tables)
    assert len(before) == 2 * 59 + 2 + 1
    verdict = checked(spark, writer, tables)
    assert (verdict.agrees, verdict.versions, verdict.from_ledger, verdict.index_alone) == (
        True, len(before), len(before), 0,
    )  # fmt: skip
    # Somebody damages it: a file with puts is lost, one with dels too, and one that stays cannot be read.
    files = tables.index.files()
    puts = next(file for file in files if not file.dels and not file.base and file.rows > 3)
    dels = next(file for file in files if file.dels)
    tables.index.replace([puts, dels], [], tables.index.state())
    verdict = checked(spark, writer, tables)
    assert (verdict.missing, verdict.extra, verdict.differing) == (puts.rows + dels.rows - dels.dels, 1, 0)
    assert any("is missing in the index" in line for line in verdict.examples)
    victim = next(file for file in tables.index.files() if not file.dels and not file.base)
    Path(f"{tables.index.uri.removeprefix('file://')}/{victim.path}").write_bytes(b"nothing of the kind")
    # Where two tasks find it at once, Spark tells of it in other words.
    with pytest.raises((PySparkException, Py4JJavaError), match=Path(victim.path).name):
        checked(spark, writer, tables)
    figures = rebuild(spark, tables.index, LedgerAddress(writer.folder, None), FIVE_MS)
    assert figures["cursor"] == tables.index.cursor() == writer.ledger.durable_seq
    assert live(tables) == before
    # The pipeline goes on from there.
    record(writer, put(START_MS + DAY_MS))
    index_locally(writer, tables)
    assert len(live(tables)) == len(before) + 1


def test_what_is_older_than_the_ledger_is_kept_from_the_old_index(
    spark: SparkSession, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = filled(writer)
    before = live(tables)
    place = LedgerAddress(writer.folder, None)
    # As if reclaimed: the oldest segment, and the staged files that the cascade has replaced.
    segments = sorted(Path(writer.folder).glob("0*.seg"))
    assert len(segments) > 1
    segments[0].unlink()
    first_seq = place.follower().first_seq()
    assert first_seq > 10
    for path in Path(tables.index.uri.removeprefix("file://")).glob("staged/*/*"):
        path.unlink()
    verdict = checked(spark, writer, tables)
    old = [seq for _, seq in before if seq < first_seq or seq >= B]
    assert (verdict.agrees, verdict.index_alone, verdict.versions) == (True, len(old), len(before))
    real = verifying.pin
    races: list[int] = []

    def overtaken(table, where):  # type: ignore[no-untyped-def]
        """The first time the pipeline goes on while the index is made again."""
        found = real(table, where)
        if not races:
            races.append(record(writer, put(START_MS + DAY_MS)))
            index_locally(writer, tables_of(writer), first_seq=races[0])
        return found

    monkeypatch.setattr("tarry.pipeline.rebuild.pin", overtaken)
    rebuild(spark, tables.index, place, FIVE_MS)
    assert live(tables) == sorted([*before, (START_MS + DAY_MS, races[0])])


def test_only_old_files_that_hold_something_of_their_own_are_read(writer: Writer) -> None:
    tables = filled(writer)
    place = LedgerAddress(writer.folder, None)
    pinned = pin(tables.index, place)
    assert [piece for piece in pieces(pinned, place.follower().bounds()) if piece.file] == []
    assert [adopt.name for adopt in pinned.adopted] == ["b"]


def test_the_transforms_say_what_lives_and_what_differs(spark: SparkSession) -> None:
    schema = verifying.VERSIONS
    rows = spark.createDataFrame(
        [
            (1, 50, 1, 7, 0),  # below the watermark
            (2, 100, 1, 7, 0),  # ended by a del
            (2, 100, 0, None, 0),
            (3, 100, 1, 7, 0),  # ended by a record
            (9, 0, -1, 7, 3),
            (4, 100, 3, 7, 0),
            (B, 200, 1, 7, 0),  # cancelled with its batch
            (B + 1, 200, 1, 7, 0),  # spared
        ],
        schema,
    )
    state = CommitState((100, 0), cancelled=[Cancelled(B, 2, 200, [B + 1])])
    found = living(rows, state)
    assert sorted(row.seq for row in found.collect()) == [4, B + 1]
    expected = spark.createDataFrame([(4, 100, 8), (5, 100, 7)], "seq long, fire_at_ms long, crc long")
    rows = compared(found, expected).filter("differs")
    assert sorted((row.seq, row.found_ms, row.expected_ms) for row in rows.collect()) == [
        (4, 100, 100),
        (5, None, 100),
        (B + 1, 200, None),
    ]
