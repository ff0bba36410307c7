"""Reading one record, many, and all in order."""

import itertools
from random import Random

import numpy as np
import pytest

from tarry.core.errors import Damage, NotFound, TarryError
from tarry.ledger import reader, replay
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import Encoded
from tarry.testing.disk import SimulatedDisk
from tests.unit.ledger_kit import Model, open_ledger, record

SETTINGS = LedgerSettings(segment_bytes=200_000, spare_segments=1)


def nothing(error: TarryError | None) -> None:
    assert error is None


@pytest.fixture(scope="module")
def mixed() -> tuple[Ledger, list[Encoded]]:
    """Frames of one record, of many, and of huge ones, over several segments; then reopened."""
    random, disk = Random(3), SimulatedDisk(3)
    ledger, model = open_ledger(disk, SETTINGS), Model()
    n = 0
    for _ in range(250):
        size = random.choice((1, 1, 1, 2, 30, 200))
        model.append(ledger, [record(n + i, random.choice((0, 20, 300))) for i in range(size)])
        n += size
        if random.random() < 0.05:
            model.append(ledger, [record(n, 50_000), record(n + 1, 60_000)])
            n += 2
        ledger.commit()
    model.check(ledger)
    ledger.close()
    ledger = open_ledger(disk, SETTINGS)
    assert len(ledger.segments()) > 5
    return ledger, [encoded for _, unit in model.units for encoded in unit]


def test_every_record_by_its_seq(mixed: tuple[Ledger, list[Encoded]]) -> None:
    ledger, records = mixed
    for seq in Random(1).sample(range(1, len(records) + 1), len(records)):
        of = records[seq - 1]
        assert ledger.read(seq) == (seq, of.kind, of.lane, of.fire_at_ms, of.body)


def test_many_in_the_order_asked(mixed: tuple[Ledger, list[Encoded]]) -> None:
    ledger, records = mixed
    random = Random(2)
    for size in (0, 1, 2, 10, 100, len(records)):
        for asked in (
            random.sample(range(1, len(records) + 1), size),
            [random.randint(1, len(records)) for _ in range(size)],
            list(range(len(records), len(records) - size, -1)),
        ):
            found = ledger.bodies(np.array(asked, np.int64))
            assert found == [records[seq - 1].body for seq in asked]
            for seq in asked[:10]:
                of = records[seq - 1]
                assert ledger.read(seq) == (seq, of.kind, of.lane, of.fire_at_ms, of.body)


def test_replay_from_anywhere(mixed: tuple[Ledger, list[Encoded]]) -> None:
    ledger, records = mixed
    for from_seq in (*range(1, len(records), 97), len(records)):
        seq = from_seq
        for frame in itertools.islice(ledger.frames(from_seq), 5):
            assert frame.first_seq == seq
            for i, row in enumerate(frame.fixed.tolist()):
                of = records[seq - 1 + i]
                assert (row[0], row[2], *row[5:]) == (of.kind, of.lane, *of[3:6])
                if i % 37 == 0 or i == frame.count - 1:
                    assert frame.body(i) == of.body
            seq += frame.count
    assert list(ledger.frames(len(records) + 1)) == []


def test_small_frames_are_replayed_together(mixed: tuple[Ledger, list[Encoded]]) -> None:
    ledger, records = mixed
    segments = ledger._reader.segments
    files = sum(1 for of in segments for _ in of.scan_from(4096, of.first_seq, 0))
    replayed = list(ledger.frames(1))
    assert len(replayed) < files / 2
    assert max(frame.count for frame in replayed) <= replay.RUN_RECORDS
    assert replayed[0].place.file.endswith("00000001.seg")
    assert replayed[0].place.offset == 4096
    assert sum(frame.count for frame in replayed) == len(records)


def test_points_are_collected_by_a_replay_of_the_whole_segment_only(
    mixed: tuple[Ledger, list[Encoded]],
) -> None:
    ledger = open_ledger(mixed[0]._disk, SETTINGS)
    inner, first = ledger._reader, ledger._reader.segments[0]
    walked = []
    for upto_seq in (1, first.last_seq):
        list(inner.frames(1, upto_seq))
        walked.append(first.walked)
    assert walked == [False, True]
    assert first.points.before(first.last_seq) is not None


def test_replay_of_a_range_is_that_range(mixed: tuple[Ledger, list[Encoded]]) -> None:
    ledger, records = mixed
    random = Random(4)
    for _ in range(200):
        from_seq = random.randint(1, len(records))
        upto_seq = random.randint(from_seq, min(len(records), from_seq + 300))
        seq = from_seq
        for frame in ledger._reader.frames(from_seq, upto_seq):
            assert frame.first_seq == seq
            assert frame.count == len(frame.fixed)
            assert frame.bodies == b"".join(of.body for of in records[seq - 1 : seq - 1 + frame.count])
            for i in range(frame.count):
                assert frame.body(i) == records[seq - 1 + i].body
            seq += frame.count
        assert seq == upto_seq + 1


def test_replay_goes_up_to_the_head_as_it_was() -> None:
    ledger = open_ledger(SimulatedDisk())
    ledger.append([record(0)], nothing)
    ledger.commit()
    replay = ledger.frames(1)
    ledger.append([record(1)], nothing)
    ledger.commit()
    assert [frame.count for frame in replay] == [1]


def test_seqs_that_are_not_there() -> None:
    ledger = open_ledger(SimulatedDisk())
    ledger.append([record(0)], nothing)
    for seq in (0, -1, 1, 2):
        with pytest.raises(NotFound):
            ledger.read(seq)
        with pytest.raises(NotFound):
            ledger.bodies(np.array([seq], np.int64))


def test_few_files_are_open_and_few_tables_kept(
    mixed: tuple[Ledger, list[Encoded]], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = mixed[1]
    monkeypatch.setattr(reader, "OPEN_FILES", 2)
    ledger = open_ledger(mixed[0]._disk, SETTINGS)
    for seq in Random(1).sample(range(1, len(records) + 1), 500):
        assert ledger.read(seq).body == records[seq - 1].body
    inner = ledger._reader
    assert sum(segment.is_open for segment in inner.segments) <= 3
    assert len(inner._tables) <= reader.TABLES


def test_the_points_take_less_than_two_bytes_a_record() -> None:
    settings = LedgerSettings(segment_bytes=4 << 20)
    ledger = open_ledger(SimulatedDisk(), settings)
    for n in range(3000):
        ledger.append([record(n, 264)], nothing)
        if n % 3 == 0:
            ledger.commit()
    while ledger.commit():
        pass
    segment = ledger._reader.segments[-1]
    kept = segment.points.size_bytes()
    assert 0 < kept < 2 * 3000


def test_a_damaged_body_is_found_among_many_that_are_read_together() -> None:
    disk = SimulatedDisk(1)
    ledger, model = open_ledger(disk, SETTINGS), Model()
    model.append(ledger, [record(n, 300) for n in range(50)])
    ledger.commit()
    (segment,) = ledger.segments()
    path = f"ledger/{segment.number:08d}.seg"
    file = disk.open(path)
    data = file.read(file.size(), 0)
    disk.flip_bit(path, data.index(record(30, 300).body) + 100, 3)
    with pytest.raises(Damage, match="seq 31"):
        ledger.bodies(np.arange(1, 51, dtype=np.int64))
    assert len(ledger.bodies(np.arange(1, 31, dtype=np.int64))) == 30


def test_a_stretch_for_readers_elsewhere_ends_at_the_durable_head() -> None:
    ledger, model = open_ledger(SimulatedDisk(2), SETTINGS), Model()
    model.append(ledger, [record(n) for n in range(5)])
    ledger.commit()
    ledger.append([record(9)], nothing)
    stretch = ledger.stretch(1, 1 << 40)
    assert (stretch.first_seq, stretch.last_seq) == (1, 5)


def test_a_replay_from_a_seq_that_was_reclaimed_is_refused() -> None:
    ledger, model = open_ledger(SimulatedDisk(4)), Model()
    for n in range(60):
        model.append(ledger, [record(n, 200)])
        ledger.commit()
    assert ledger.reclaim(ledger.durable_seq) > 0
    with pytest.raises(NotFound, match="has been reclaimed"):
        list(ledger.frames(1))
