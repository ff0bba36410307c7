"""How a frame, a claim or a release is laid out as records of a partition: an envelope of 32 bytes, then the content.

    envelope    magic, version, kind, part, parts, zero, epoch, segment number, offset in the segment, crc
    content     of a frame: its bytes, cut into parts of at most `PART_BYTES`; of a claim or release: msgpack

`crc` is CRC-32C over the envelope without it and the content. The frame that begins a segment comes with the block of the
segment's header in front of it, at offset 0: so the log has every byte of the segments. docs/formats.md gives the bytes.

This module is pure. It knows nothing of which records are valid.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct as Layout
from typing import Final, Literal, NamedTuple

import msgspec
from google_crc32c import extend, value
from msgspec import Struct

LOG_VERSION: Final = 1
"""The version of the envelope and of what follows it."""
PART_BYTES: Final = (1 << 20) - 4096
"""Most content of one record: with its envelope and the log's own headers it is below the 1 MiB that most services allow."""

_MAGIC: Final = b"TYlg"
_FIELDS: Final = Layout("<4sBBHHHQII")
_CRC: Final = Layout("<I")
ENVELOPE_BYTES: Final = _FIELDS.size + _CRC.size


class EnvelopeKind(IntEnum):
    """The kind of a log record."""

    CLAIM = 1
    FRAME = 2
    RELEASE = 3


_KINDS: Final = {int(kind): kind for kind in EnvelopeKind}


class BadEnvelope(Exception):
    """An error: a record of the log bears Tarry's mark and is not what was written."""


class NewerEnvelope(Exception):
    """An error: a record of the log was written by a newer program, in a version that this one does not know."""


class Envelope(NamedTuple):
    """The envelope of a log record, without its checksum."""

    kind: EnvelopeKind
    epoch: int
    part: int = 0
    """Which part of the frame it is, from 0."""
    parts: int = 1
    segment: int = 0
    offset: int = 0
    """Where the frame begins in its segment; 0 if the block of the segment's header is in front of it."""


Moving = Literal["", "in", "out"]


class LogClaim(Struct, array_like=True, frozen=True):
    """A node's claim to own the ledger from here on, under the epoch of its envelope."""

    node: str
    nonce: bytes
    """Random: by it a node knows its own claim again."""
    ledger_id: bytes
    id_check: bytes
    """Shows which id key the node has, and tells nothing of it: ids of another key would not be understood."""
    format_version: int
    """The version of the frames that the owner will write."""
    next_seq: int
    """Where the log begins; only the claim of epoch 1 is asked for it."""
    clock_ms: int
    """The node's clock at the claim."""
    addresses: Mapping[str, str] = {}
    """Where clients reach its doors, by door."""
    moving: Moving = ""
    """Whether the ledger is only being moved into the log, or was moved out of it: then nobody else may claim it."""


class LogRelease(Struct, array_like=True, frozen=True):
    """The word of an owner that it appends no more: another may claim at once."""

    node: str
    clock_ms: int


_decode_claim = msgspec.msgpack.Decoder(LogClaim).decode
_decode_release = msgspec.msgpack.Decoder(LogRelease).decode


def encode_record(envelope: Envelope, content: bytes) -> bytes:
    """One record of the log."""
    kind, epoch, part, parts, segment, offset = envelope
    fields = _FIELDS.pack(_MAGIC, LOG_VERSION, kind, part, parts, 0, epoch, segment, offset)
    return b"".join((fields, _CRC.pack(extend(value(fields), content)), content))


def encode_claim(epoch: int, claim: LogClaim) -> bytes:
    """The record of a claim."""
    return encode_record(Envelope(EnvelopeKind.CLAIM, epoch), msgspec.msgpack.encode(claim))


def encode_release(epoch: int, release: LogRelease) -> bytes:
    """The record of a release."""
    return encode_record(Envelope(EnvelopeKind.RELEASE, epoch), msgspec.msgpack.encode(release))


def encode_frame(
    epoch: int, segment: int, offset: int, pieces: Sequence[bytes], part_bytes: int = PART_BYTES
) -> list[bytes]:
    """The records of a frame, in order: one, or as many parts as it takes."""
    data = b"".join(pieces)
    parts = max(1, -(-len(data) // part_bytes))
    if parts == 1:
        return [encode_record(Envelope(EnvelopeKind.FRAME, epoch, 0, 1, segment, offset), data)]
    return [
        encode_record(
            Envelope(EnvelopeKind.FRAME, epoch, part, parts, segment, offset),
            data[part * part_bytes : (part + 1) * part_bytes],
        )
        for part in range(parts)
    ]


def decode_record(data: bytes) -> tuple[Envelope, bytes] | None:
    """The envelope and the content of a record; None if it does not bear Tarry's mark.

    Raises `BadEnvelope` if it does and is not what was written, `NewerEnvelope` if its version is not known.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        return None
    if len(data) < ENVELOPE_BYTES:
        raise BadEnvelope(f"the record ends after {len(data)} bytes")
    _, version, kind, part, parts, _, epoch, segment, offset = _FIELDS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    content = data[ENVELOPE_BYTES:]
    if extend(value(data[: _FIELDS.size]), content) != crc:
        raise BadEnvelope("the checksum does not match")
    if version > LOG_VERSION:
        raise NewerEnvelope(
            f"the record has version {version} and this program reads up to {LOG_VERSION}: run the newer one"
        )
    if kind not in _KINDS or part >= parts:
        raise BadEnvelope(f"kind {kind}, part {part} of {parts} is impossible")
    return Envelope(_KINDS[kind], epoch, part, parts, segment, offset), content


def decode_claim(content: bytes) -> LogClaim:
    """The claim in a record; raises `BadEnvelope`."""
    try:
        return _decode_claim(content)
    except msgspec.DecodeError as error:
        raise BadEnvelope(f"the claim cannot be read: {error}") from None


def decode_release(content: bytes) -> LogRelease:
    """The release in a record; raises `BadEnvelope`."""
    try:
        return _decode_release(content)
    except msgspec.DecodeError as error:
        raise BadEnvelope(f"the release cannot be read: {error}") from None
