"""Records of the replicated log: what is encoded decodes to the same, and nothing else decodes."""

import pytest
from google_crc32c import extend, value

from tarry.ledger.log.envelope import (
    ENVELOPE_BYTES,
    PART_BYTES,
    BadEnvelope,
    Envelope,
    EnvelopeKind,
    LogRelease,
    NewerEnvelope,
    decode_claim,
    decode_record,
    decode_release,
    encode_claim,
    encode_frame,
    encode_record,
    encode_release,
)
from tests.compat.make_log_golden import CLAIM


def test_claims_and_releases_come_back() -> None:
    decoded = decode_record(encode_claim(7, CLAIM))
    assert decoded is not None
    envelope, content = decoded
    assert envelope == Envelope(EnvelopeKind.CLAIM, 7)
    assert decode_claim(content) == CLAIM
    release = LogRelease("a", 5)
    decoded = decode_record(encode_release(7, release))
    assert decoded is not None
    assert decode_release(decoded[1]) == release


@pytest.mark.parametrize(
    ("size", "parts"), [(1, 1), (PART_BYTES, 1), (PART_BYTES + 1, 2), (3 * PART_BYTES, 3)]
)
def test_a_large_frame_is_cut_in_parts_below_a_mebibyte(size: int, parts: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    records = encode_frame(3, 5, 4096, [data[: size // 2], data[size // 2 : size]])
    assert len(records) == parts
    assert max(map(len, records)) <= PART_BYTES + ENVELOPE_BYTES < (1 << 20) - 1024
    decoded = [decode_record(one) for one in records]
    assert [one and one[0] for one in decoded] == [
        Envelope(EnvelopeKind.FRAME, 3, part, parts, 5, 4096) for part in range(parts)
    ]
    assert b"".join(one[1] for one in decoded if one) == data[:size]


def test_every_flipped_bit_is_noticed() -> None:
    """In the first bytes it becomes a record that is not Tarry's; anywhere else it is bad."""
    record = encode_claim(7, CLAIM)
    for at in range(len(record)):
        flipped = bytearray(record)
        flipped[at] ^= 0x10
        if at < 4:
            assert decode_record(bytes(flipped)) is None
        else:
            with pytest.raises(BadEnvelope):
                decode_record(bytes(flipped))


def test_a_record_that_ends_early_or_late_is_noticed() -> None:
    record = encode_claim(7, CLAIM)
    for size in range(4, len(record)):
        with pytest.raises(BadEnvelope):
            decode_record(record[:size])
    with pytest.raises(BadEnvelope):
        decode_record(record + b"\0")
    assert decode_record(b"") is None


def test_a_newer_version_is_named_and_not_taken_for_damage() -> None:
    record = bytearray(encode_record(Envelope(EnvelopeKind.FRAME, 1), b"x"))
    record[4] = 2
    with pytest.raises(BadEnvelope, match="checksum"):
        decode_record(bytes(record))
    fields, content = bytes(record[:28]), b"x"
    record[28:32] = extend(value(fields), content).to_bytes(4, "little")
    with pytest.raises(NewerEnvelope, match="version 2"):
        decode_record(bytes(record))


def test_nonsense_behind_a_right_checksum_is_bad() -> None:
    for envelope in (
        Envelope(9, 1),  # type: ignore[arg-type]
        Envelope(EnvelopeKind.FRAME, 1, 2, 2),
    ):
        with pytest.raises(BadEnvelope, match="impossible"):
            decode_record(encode_record(envelope, b""))
    for decode in (decode_claim, decode_release):
        with pytest.raises(BadEnvelope):
            decode(b"\xc1")
