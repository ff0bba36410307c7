"""Every cell of the tables in `tarry.ledger.recovery`."""

import pytest

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.frame import (
    FORMAT_VERSION,
    HEADER_BYTES,
    ROW_BYTES,
    encode_rows,
    frame_bytes,
    segment_id_of,
    unit_of,
)
from tarry.ledger.head import HEAD_BYTES, DurableHead, decode_head, encode_head
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.recovery import TABLE, End, Treatment
from tarry.ledger.segment import BLOCK_BYTES, SegmentHeader, encode_segment_header
from tarry.testing.disk import SimulatedDisk
from tests.unit.ledger_kit import FOLDER, LEDGER_ID, SMALL, contents, open_ledger, record

FIRST = f"{FOLDER}/00000001.seg"
SECOND = f"{FOLDER}/00000002.seg"
HEAD = f"{FOLDER}/head"


def put(disk: SimulatedDisk, path: str, offset: int, data: bytes, cut: bool = False) -> None:
    """Change bytes behind the ledger's back, durably."""
    file = disk.open(path, create=True)
    file.write(data, offset)
    if cut:
        file.truncate(offset + len(data))
    file.sync()
    disk.sync_folder(FOLDER)


def get(disk: SimulatedDisk, path: str, offset: int = 0, size: int = 1 << 20) -> bytes:
    return disk.open(path).read(size, offset)


class Built:
    """A ledger of single-record frames in its first segment, and where each frame begins."""

    def __init__(self, frames: int = 4, size: int = 100, seed: int = 1) -> None:
        self.disk = SimulatedDisk(seed)
        ledger = open_ledger(self.disk)
        self.starts = []
        for n in range(frames):
            self.starts.append(ledger.segments()[-1].used_bytes)
            ledger.append([record(n, size)], lambda error: None)
            ledger.commit()
        self.end = ledger.segments()[-1].used_bytes
        self.records = contents(ledger)
        self.disk.kill()

    def head_at(self, frames: int) -> None:
        """Let the head be from when there were only so many frames."""
        offset = [*self.starts, self.end][frames]
        put(self.disk, HEAD, 0, encode_head(DurableHead(LEDGER_ID, frames, 1, offset)))

    def spoil(self, frame: int, how: str) -> None:
        start, end = self.starts[frame], [*self.starts, self.end][frame + 1]
        data = get(self.disk, FIRST, start, end - start)
        spoiled = {
            "body": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
            "magic": b"nope" + data[4:],
            "header gone": bytes(HEADER_BYTES) + data[HEADER_BYTES:],
            "end gone": data[:-40] + bytes(40),
            "only the end": bytes(len(data) - 8) + data[-8:],
            "length": data[:12] + b"\xff\xff\xff\xff" + data[16:],
            "all gone": bytes(len(data)),
        }[how]
        assert spoiled != data
        put(self.disk, FIRST, start, spoiled)

    def refused(self, *words: str, at: int) -> None:
        """Check that opening raises damage at this place, and changes nothing."""
        before = get(self.disk, FIRST)
        with pytest.raises(Damage) as caught:
            open_ledger(self.disk)
        assert (caught.value.file, caught.value.offset) == (FIRST, at)
        for word in (FIRST, str(at), *words):
            assert word in str(caught.value)
        assert get(self.disk, FIRST) == before

    def kept(self, frames: int, noted: bool) -> None:
        """Check that the ledger opens with so many records, and is clean from then on."""
        ledger = open_ledger(self.disk)
        assert contents(ledger) == self.records[:frames]
        assert bool(ledger.notes) == noted
        end = [*self.starts, self.end][frames]
        assert not any(get(self.disk, FIRST, end))
        self.disk.crash()
        ledger = open_ledger(self.disk)
        assert contents(ledger) == self.records[:frames]
        assert not [note for note in ledger.notes if "head" not in note]


NOT_ZERO = ("body", "magic", "header gone", "end gone", "only the end", "length")


def test_the_table_has_every_cell_that_can_be() -> None:
    cells = {End(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)}
    assert cells - TABLE.keys() == {End(True, True, False), End(True, True, True)}
    assert {end for end, verdict in TABLE.items() if verdict is not Treatment.DAMAGE} == {
        End(only_zeros=True, later_frame=False, below_head=False),
        End(only_zeros=False, later_frame=False, below_head=False),
    }


def test_a_clean_end_is_kept() -> None:
    for frames_in_head in range(5):
        built = Built()
        built.head_at(frames_in_head)
        built.kept(4, noted=False)


def test_zeros_below_the_head_are_damage() -> None:
    built = Built()
    built.spoil(3, "all gone")
    built.refused("head", at=built.starts[3])


@pytest.mark.parametrize("how", NOT_ZERO)
@pytest.mark.parametrize("head", [0, 3, "torn", "missing"])
def test_an_unfinished_frame_above_the_head_is_cleared(how: str, head: int | str) -> None:
    built = Built()
    if head == "torn":
        put(built.disk, HEAD, 0, b"x" * 30)
    elif head == "missing":
        built.disk.remove(HEAD)
    else:
        assert isinstance(head, int)
        built.head_at(head)
    built.spoil(3, how)
    built.kept(3, noted=True)


def test_a_whole_frame_gone_above_the_head_cannot_be_told_from_one_never_written() -> None:
    built = Built()
    built.head_at(3)
    built.spoil(3, "all gone")
    built.kept(3, noted=False)


@pytest.mark.parametrize("how", NOT_ZERO)
def test_a_bad_frame_below_the_head_is_damage(how: str) -> None:
    built = Built()
    built.spoil(3, how)
    built.refused("head", at=built.starts[3])


@pytest.mark.parametrize("how", [*NOT_ZERO, "all gone"])
@pytest.mark.parametrize("head", [0, 1, 4])
@pytest.mark.parametrize("frame", [0, 1, 2])
def test_a_bad_frame_before_a_good_one_is_damage(how: str, head: int, frame: int) -> None:
    built = Built()
    built.head_at(head)
    built.spoil(frame, how)
    built.refused("follows", at=built.starts[frame])


def test_two_bad_frames_before_a_good_one_are_damage() -> None:
    built = Built()
    built.head_at(0)
    built.spoil(1, "body")
    built.spoil(2, "header gone")
    built.refused("follows", at=built.starts[1])


def test_a_seal_proves_the_frame_before_it() -> None:
    """After a clean shutdown not even the last frame is ambiguous."""
    built = Built()
    open_ledger(built.disk).close()
    built.head_at(0)
    built.spoil(3, "body")
    built.refused("follows", at=built.starts[3])


def test_a_payload_that_looks_like_a_frame_is_no_later_frame() -> None:
    """Frames stored in a payload, for instance of a copy of the ledger, have lower numbers."""
    built = Built()
    ledger = open_ledger(built.disk)
    copy = get(built.disk, FIRST, built.starts[0], built.end - built.starts[0])
    unit = record(9)._replace(body=b"4321" + copy)  # so that the frames in it begin at multiples of eight
    ledger.append([unit], lambda error: None)
    ledger.commit()
    built.disk.crash()
    built.head_at(4)
    put(built.disk, FIRST, built.end, bytes(HEADER_BYTES))
    built.kept(4, noted=True)


def test_garbage_far_behind_the_end_is_cleared() -> None:
    built = Built()
    put(built.disk, FIRST, SMALL.segment_bytes - 3, b"\x01")
    built.kept(4, noted=True)


def test_the_clearing_of_a_first_frame_is_durable() -> None:
    for seed in range(20):
        built = Built(frames=1, seed=seed)
        built.head_at(0)
        built.spoil(0, "body")
        built.kept(0, noted=True)


def test_a_frame_with_the_wrong_number_does_not_pass() -> None:
    built = Built()
    built.head_at(3)
    frame = encode_rows([unit_of([record(3, 100)])], segment_id_of(LEDGER_ID, 1), 4, 4)
    put(built.disk, FIRST, built.starts[3], frame)
    built.kept(3, noted=True)


def test_a_frame_of_another_segment_does_not_pass() -> None:
    built = Built()
    other = SimulatedDisk(3)
    ledger = open_ledger(other)
    for n in range(60):
        ledger.append([record(n, 100)], lambda error: None)
        ledger.commit()
    second = get(other, SECOND, BLOCK_BYTES, 8)
    assert second[:4] == b"TYfr"
    built.head_at(3)
    put(built.disk, FIRST, built.starts[3], get(other, SECOND, BLOCK_BYTES, built.end - built.starts[3]))
    built.kept(3, noted=True)


def grown(segments: int = 3) -> SimulatedDisk:
    """A ledger of several segments."""
    disk = SimulatedDisk(2)
    ledger = open_ledger(disk)
    n = 0
    while (
        len(ledger.segments()) < segments or ledger.segments()[-1].last_seq < ledger.segments()[-1].first_seq
    ):
        ledger.append([record(n, 500)], lambda error: None)
        ledger.commit()
        n += 1
    disk.kill()
    return disk


def test_a_missing_segment_in_the_middle_is_refused() -> None:
    disk = grown()
    disk.remove(SECOND)
    with pytest.raises(Damage, match="segment 2 is missing") as caught:
        open_ledger(disk)
    assert caught.value.file == SECOND


def test_a_missing_newest_segment_is_refused() -> None:
    disk = grown()
    disk.remove(f"{FOLDER}/00000003.seg")
    with pytest.raises(Damage, match="segment 3 is missing"):
        open_ledger(disk)


def test_missing_oldest_segments_are_reclaimed_ones() -> None:
    disk = grown()
    first_seq = open_ledger(disk).segments()[1].first_seq
    disk.remove(FIRST)
    assert open_ledger(disk).first_seq == first_seq


def test_a_head_without_any_segment_is_refused() -> None:
    disk = grown(1)
    disk.remove(FIRST)
    with pytest.raises(Damage, match="no segment"):
        open_ledger(disk)


@pytest.mark.parametrize("path", [FIRST, SECOND, f"{FOLDER}/00000003.seg"])
def test_a_segment_of_another_ledger_is_refused(path: str) -> None:
    disk = grown()
    number = int(path[-5])
    header = SegmentHeader(b"another ledger!!", number, number, 5, SMALL.segment_bytes)
    put(disk, path, 0, encode_segment_header(header))
    with pytest.raises(Unavailable, match="two backups"):
        open_ledger(disk)


def test_a_head_of_another_ledger_is_refused() -> None:
    disk = grown()
    put(disk, HEAD, 0, encode_head(DurableHead(b"another ledger!!", 1, 1, BLOCK_BYTES)))
    with pytest.raises(Unavailable, match="two backups"):
        open_ledger(disk)


def test_a_newer_format_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("tarry.ledger.segment.FORMAT_VERSION", FORMAT_VERSION + 6)
        disk = grown()
    with pytest.raises(
        Unavailable, match=rf"newer.*version {FORMAT_VERSION + 6};.*version {FORMAT_VERSION}\b"
    ):
        open_ledger(disk)


def test_a_segment_under_another_name_is_refused() -> None:
    disk = grown(2)
    put(disk, f"{FOLDER}/00000003.seg", 0, get(disk, SECOND))
    with pytest.raises(Damage, match="holds segment 2"):
        open_ledger(disk)


def test_seqs_that_go_backwards_are_refused() -> None:
    disk = grown(2)
    put(disk, SECOND, 0, encode_segment_header(SegmentHeader(LEDGER_ID, 2, 0, 5, SMALL.segment_bytes)))
    with pytest.raises(Damage, match="begins with seq 0"):
        open_ledger(disk)


@pytest.mark.parametrize("size", [0, 100, BLOCK_BYTES, SMALL.segment_bytes - 1, SMALL.segment_bytes + 8])
@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_a_segment_of_the_wrong_size_is_refused(path: str, size: int) -> None:
    disk = grown(2)
    disk.open(path).truncate(size)
    with pytest.raises(Damage):
        open_ledger(disk)


def test_a_newest_segment_that_never_held_a_frame_is_dropped() -> None:
    disk = grown(2)
    ledger = open_ledger(disk)
    records, last = contents(ledger), ledger.segments()[-1]
    block = encode_segment_header(SegmentHeader(LEDGER_ID, 3, last.last_seq + 1, 5, SMALL.segment_bytes))
    for torn in (block[:40].ljust(BLOCK_BYTES, b"\0"), bytes(BLOCK_BYTES), b"\0" * 8 + block[8:], b""):
        put(disk, f"{FOLDER}/00000003.seg", 0, torn, cut=True)
        ledger = open_ledger(disk)
        assert contents(ledger) == records
        assert ledger.notes
        assert not disk.exists(f"{FOLDER}/00000003.seg")


def test_a_torn_header_is_damage_if_the_segment_holds_anything() -> None:
    disk = grown(3)
    disk.remove(HEAD)
    put(disk, f"{FOLDER}/00000003.seg", 0, b"\0" * 8)
    with pytest.raises(Damage, match="no segment header"):
        open_ledger(disk)


def test_a_torn_header_is_damage_if_the_head_is_in_that_segment() -> None:
    disk = grown(2)
    last = open_ledger(disk).segments()[-1]
    put(disk, f"{FOLDER}/00000003.seg", 0, bytes(SMALL.segment_bytes))
    put(disk, HEAD, 0, encode_head(DurableHead(LEDGER_ID, last.last_seq, 3, BLOCK_BYTES)))
    with pytest.raises(Damage, match="no segment header"):
        open_ledger(disk)


def test_a_torn_header_is_damage_in_an_older_segment_and_in_the_only_one() -> None:
    for disk in (grown(2), grown(1)):
        put(disk, FIRST, 0, b"\0" * 8)
        with pytest.raises(Damage, match="no segment header"):
            open_ledger(disk)


def test_a_torn_header_is_damage_in_the_only_segment_even_with_a_torn_head() -> None:
    disk = SimulatedDisk(1)
    open_ledger(disk)
    disk.kill()
    put(disk, FIRST, 0, b"\0" * 8)
    put(disk, HEAD, 0, b"torn")
    with pytest.raises(Damage, match="no segment header"):
        open_ledger(disk)


def test_a_folder_where_not_even_the_head_was_made_begins_anew() -> None:
    disk = SimulatedDisk(1)
    open_ledger(disk)
    disk.kill()
    disk.remove(HEAD)
    put(disk, FIRST, 0, b"\0" * 8)
    assert open_ledger(disk).next_seq == 1


def test_the_head_has_a_name_as_soon_as_there_is_a_ledger() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        open_ledger(disk)
        disk.crash()
        assert disk.exists(HEAD)


def test_an_older_segment_that_ends_early_is_damage_when_it_is_read() -> None:
    disk = grown(2)
    ledger = open_ledger(disk)
    ledger.read(1)
    end, length = ledger.segments()[0].used_bytes, frame_bytes(ROW_BYTES + 500)
    put(disk, FIRST, end - length, bytes(length))
    disk.kill()
    for read in (lambda ledger: ledger.read(1), contents):
        with pytest.raises(Damage, match=r"zeros where|ends before"):
            read(open_ledger(disk))


def test_the_head_may_be_in_an_older_or_reclaimed_segment() -> None:
    disk = grown(3)
    records = contents(open_ledger(disk))
    for number in (1, 2):
        put(disk, HEAD, 0, encode_head(DurableHead(LEDGER_ID, 1, number, BLOCK_BYTES)))
        assert contents(open_ledger(disk)) == records
    disk.remove(FIRST)
    put(disk, HEAD, 0, encode_head(DurableHead(LEDGER_ID, 1, 1, BLOCK_BYTES)))
    assert contents(open_ledger(disk)) == records[open_ledger(disk).first_seq - 1 :]


def test_every_torn_head_is_ignored() -> None:
    disk = grown(1)
    records, block = contents(open_ledger(disk)), get(disk, HEAD)
    assert len(block) == HEAD_BYTES
    for at in range(HEAD_BYTES):
        torn = block[:at] + bytes([block[at] ^ 0x10]) + block[at + 1 :]
        assert decode_head(torn) is None
        assert decode_head(block[:at]) is None
    put(disk, HEAD, 0, block[:20] + b"\xff" + block[21:])
    ledger = open_ledger(disk)
    assert contents(ledger) == records
    assert "torn" in ledger.notes[0]


def test_the_head_is_published_after_recovery() -> None:
    disk = grown(2)
    disk.remove(HEAD)
    ledger = open_ledger(disk)
    last = ledger.segments()[-1]
    assert decode_head(get(disk, HEAD)) == (LEDGER_ID, ledger.durable_seq, 2, last.used_bytes, 0, 0)


def test_unfinished_and_odd_spares_are_removed() -> None:
    disk = grown(1)
    put(disk, f"{FOLDER}/spare-7.tmp", 0, bytes(SMALL.segment_bytes))
    put(disk, f"{FOLDER}/spare-8.seg", 0, bytes(100))
    put(disk, f"{FOLDER}/lock", 0, b"not mine")
    open_ledger(disk)
    names = disk.listdir(FOLDER)
    assert "spare-7.tmp" not in names
    assert "spare-8.seg" not in names
    assert "lock" in names


def test_segments_keep_their_size_when_the_setting_changes() -> None:
    disk = grown(2)
    records = contents(open_ledger(disk))
    larger = LedgerSettings(segment_bytes=3 * SMALL.segment_bytes)
    ledger = open_ledger(disk, larger)
    for n in range(40):
        ledger.append([record(n, 500)], lambda error: None)
        ledger.commit()
    disk.crash()
    ledger = open_ledger(disk)
    assert contents(ledger) == [*records, *(record(n, 500) for n in range(40))]


def test_an_error_of_the_disk_says_so() -> None:
    disk = SimulatedDisk(1)
    disk.fail_next("create", 13)
    with pytest.raises(Unavailable, match="Permission denied"):
        open_ledger(disk)
