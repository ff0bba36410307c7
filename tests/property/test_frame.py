"""Frames: what is encoded decodes to the same, however it is fed, and nothing else decodes."""

import numpy as np
import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from tarry.ledger.frame import (
    FIXED,
    HEADER_BYTES,
    ROW,
    ROW_BYTES,
    BadFrame,
    Encoding,
    Header,
    Unit,
    check_frame,
    check_table,
    decode_header,
    encode_rows,
    encode_seal,
    frame_bytes,
    segment_id_of,
    unit_of,
)
from tarry.ledger.record import Encoded

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
marks = st.integers(0, (1 << 32) - 1)
seqs = st.integers(1, 1 << 62)


@st.composite
def encoded(draw: st.DrawFn) -> Encoded:
    body = draw(st.binary(max_size=120))
    return Encoded(
        draw(st.integers(0, 255)),
        draw(st.integers(0, 65535)),
        value(body),
        draw(int64),
        draw(int64),
        draw(int64),
        body,
    )


units = st.lists(st.lists(encoded(), min_size=1, max_size=4), min_size=1, max_size=4)


def laid_out(units: list[list[Encoded]]) -> list[Unit]:
    return [unit_of(unit) for unit in units]


def decode(data: bytes, segment_id: int, first_seq: int) -> tuple[Header, list[Encoded]]:
    """Prove and take apart a frame of rows, by the layout alone."""
    header = decode_header(data, 0, segment_id, first_seq, len(data))
    assert header is not None
    check_table(data, 0, header)
    check_frame(data, 0, header)
    found = []
    at = HEADER_BYTES + ROW_BYTES * header.records
    for row in range(header.records):
        kind, _, lane, size, crc, *times = ROW.unpack_from(data, HEADER_BYTES + ROW_BYTES * row)
        found.append(Encoded._make([kind, lane, crc, *times, data[at : at + size]]))
        at += size
    assert at + header.pad == header.length
    return header, found


@given(units, marks, marks, seqs)
def test_rows_come_back(units: list[list[Encoded]], segment_id: int, number: int, first_seq: int) -> None:
    data = encode_rows(laid_out(units), segment_id, number, first_seq)
    header, found = decode(data, segment_id, first_seq)
    assert found == [of for unit in units for of in unit]
    assert header.frame_number == number
    assert header.encoding == Encoding.ROWS
    assert len(data) == header.length == frame_bytes(sum(unit.content_bytes for unit in laid_out(units)))
    assert len(data) % 8 == 0


@given(units)
def test_numpy_reads_the_same_table(units: list[list[Encoded]]) -> None:
    data = encode_rows(laid_out(units), 1, 2, 3)
    flat = [of for unit in units for of in unit]
    fixed = np.frombuffer(data, FIXED, len(flat), HEADER_BYTES)
    assert FIXED.itemsize == ROW_BYTES == 36
    assert fixed.tolist() == [(of.kind, 0, of.lane, len(of.body), of.crc, *of[3:6]) for of in flat]


@given(units, st.binary(max_size=64), marks, seqs)
def test_garbage_after_a_frame_does_not_matter(
    units: list[list[Encoded]], garbage: bytes, segment_id: int, first_seq: int
) -> None:
    data = encode_rows(laid_out(units), segment_id, 0, first_seq)
    header = decode_header(data + garbage, 0, segment_id, first_seq, len(data) + len(garbage))
    assert header is not None
    check_frame(data + garbage, 0, header)
    assert header.length == len(data)


@given(units, st.binary(max_size=20))
def test_a_frame_is_found_at_any_place(units: list[list[Encoded]], before: bytes) -> None:
    data = before + encode_rows(laid_out(units), 1, 2, 3)
    header = decode_header(data, len(before), 1, 3, len(data) - len(before))
    assert header is not None
    check_table(data, len(before), header)
    check_frame(data, len(before), header)


@given(units)
def test_byte_by_byte_nothing_is_a_frame_before_its_last_byte(units: list[list[Encoded]]) -> None:
    """As it would be found if the write had stopped there: the rest of the segment is zeros."""
    data = encode_rows(laid_out(units), 1, 0, 1)
    assert decode_header(bytes(len(data)), 0, 1, 1, len(data)) is None
    for cut in range(1, len(data)):
        torn = data[:cut] + bytes(len(data) - cut)
        if torn == data:
            continue  # its last bytes are zeros
        with pytest.raises(BadFrame):
            header = decode_header(torn, 0, 1, 1, len(torn))
            assert header is not None
            check_frame(torn, 0, header)


@given(units, st.data())
def test_no_flipped_bit_passes(units: list[list[Encoded]], draw: st.DataObject) -> None:
    data = bytearray(encode_rows(laid_out(units), 1, 0, 1))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << draw.draw(st.integers(0, 7))
    flipped = bytes(data)
    with pytest.raises(BadFrame):
        header = decode_header(flipped, 0, 1, 1, len(flipped))
        assert header is not None
        check_frame(flipped, 0, header)


@given(st.binary(min_size=HEADER_BYTES, max_size=200), marks, seqs)
def test_random_bytes_are_no_frame(data: bytes, segment_id: int, first_seq: int) -> None:
    try:
        header = decode_header(data, 0, segment_id, first_seq, len(data))
    except BadFrame:
        return
    assert header is None
    assert not any(data[:HEADER_BYTES])


@given(units, marks, seqs)
def test_a_frame_that_belongs_elsewhere_is_no_frame(
    units: list[list[Encoded]], segment_id: int, seq: int
) -> None:
    data = encode_rows(laid_out(units), segment_id, 0, seq)
    for wrong_id, wrong_seq, room in (
        (segment_id ^ 1, seq, len(data)),
        (segment_id, seq + 1, len(data)),
        (segment_id, seq, len(data) - 8),
    ):
        with pytest.raises(BadFrame):
            decode_header(data, 0, wrong_id, wrong_seq, room)


@pytest.mark.parametrize(("count", "right"), [(1, Encoding.ROWS), (0, Encoding.SEAL)])
def test_no_other_encoding_is_a_frame(count: int, right: Encoding) -> None:
    frame = (
        encode_rows([unit_of([Encoded(1, 0, 0, 0, 0, 0, b"")])], 1, 0, 1) if count else encode_seal(1, 0, 1)
    )
    for encoding in range(256):
        data = frame[:28] + bytes([encoding]) + frame[29:]
        if encoding == right:
            assert decode_header(data, 0, 1, 1, len(data)) is not None
        else:
            with pytest.raises(BadFrame, match=f"encoding {encoding} "):
                decode_header(data, 0, 1, 1, len(data))


@given(marks, seqs)
def test_a_seal_holds_nothing(segment_id: int, next_seq: int) -> None:
    data = encode_seal(segment_id, 3, next_seq)
    header = decode_header(data, 0, segment_id, next_seq, len(data))
    assert header is not None
    check_frame(data, 0, header)
    assert (header.records, header.encoding, header.length) == (0, Encoding.SEAL, HEADER_BYTES)


@given(st.binary(min_size=16, max_size=16), st.sets(st.integers(1, 99_999_999), min_size=2, max_size=50))
def test_no_two_segments_of_a_ledger_have_the_same_mark(ledger_id: bytes, numbers: set[int]) -> None:
    assert len({segment_id_of(ledger_id, number) for number in numbers}) == len(numbers)
