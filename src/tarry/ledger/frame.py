"""How records are laid out in a frame: the unit that is written, synced and lost as a whole (R1).

A frame is a header, a table with the fixed part of each record, and the bodies:

    header    magic, crc, table_crc, length, count, frame number, segment id, encoding, pad, first seq
    table     count x FIXED
    bodies    one after another, sized in the table
    pad       zeros, so that every frame begins at a multiple of eight

`crc` is CRC-32C over everything that follows it, to the end of the pad; `table_crc` over what follows it
to the end of the table, so that one record can be read and proved without reading the whole frame.
A header of zeros (length 0) is the end. docs/formats.md gives the bytes.

This module is pure: bytes in, bytes out. It knows nothing of files, and nothing of what bodies mean.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct as Layout
from typing import Any, Final, NamedTuple

import numpy as np
from google_crc32c import extend, value
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.timers.run import Due
from tarry.ledger.record import Encoded

FORMAT_VERSION: Final = 1
"""The version of everything in a segment file. How to change it is said in `record.py`."""

FIXED: Final = np.dtype(
    [
        ("kind", "<u1"),
        ("flags", "<u1"),
        ("lane", "<u2"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("fire_at_ms", "<i8"),
        ("kills_seq", "<i8"),
        ("kills_fire_at_ms", "<i8"),
    ]
)
"""The fixed part of a record, readable as columns without decoding."""

ROW: Final = Layout("<BBHIIqqq")
ROW_BYTES: Final = ROW.size
_FIRE: Final = 5
_LAST: Final = (1 << 63) - 1
MAGIC: Final = b"TYfr"
HEADER: Final = Layout("<4sIIIIIIBBHQ")
HEADER_BYTES: Final = HEADER.size
END: Final = bytes(HEADER_BYTES)
SKIM: Final = Layout("<12xII4xI4xQ")
"""Only the length, the number of records, the segment id and the first seq: enough to walk to the next header."""
_CRC_FROM: Final = 8
_TABLE_CRC_FROM: Final = 12
_REST: Final = Layout("<IIIIBBHQ")
"""The header from the length on."""
_PADS: Final = tuple(bytes(n) for n in range(8))


class Encoding(IntEnum):
    """The encoding of a frame's content. The number 2 is not used."""

    ROWS = 1
    """Records, each with a body of msgpack."""
    SEAL = 3
    """No records: the ledger was closed cleanly here."""


class Header(NamedTuple):
    """A frame header, field by field as on disk."""

    magic: bytes
    crc: int
    table_crc: int
    length: int
    records: int
    frame_number: int
    segment_id: int
    encoding: int
    pad: int
    reserved: int
    first_seq: int


class BadFrame(Exception):
    """An error: these bytes are not the frame that belongs here. The caller decides what follows."""


def segment_id_of(ledger_id: bytes, number: int) -> int:
    """The mark that every frame of a segment carries: no frame of another segment or ledger passes.

    CRC-32C never maps two numbers of one ledger to the same mark; the full ledger id is in the
    segment's header.
    """
    mark: int = value(ledger_id + number.to_bytes(4, "little"))
    return mark


def frame_bytes(content: int) -> int:
    """The length of a frame with that many bytes of table and bodies."""
    return (HEADER_BYTES + content + 7) & ~7


class Unit(Struct, frozen=True, gc=False):
    """Records that are stored together or not at all, laid out as they will stand in a frame.

    Whether they were encoded one by one (`unit_of`) or as columns (`ledger.puts`), the ledger gets this and
    knows no other shape.
    """

    records: int
    table: bytes
    """`FIXED` for each record."""
    bodies: bytes
    """One after another, sized in the table."""

    @property
    def content_bytes(self) -> int:
        """How many bytes of a frame it takes."""
        return len(self.table) + len(self.bodies)

    @property
    def fixed(self) -> NDArray[np.void]:
        """The fixed parts, an array of dtype FIXED."""
        return np.frombuffer(self.table, FIXED)

    def rows(self) -> Iterator[tuple[int, ...]]:
        """The fixed parts one by one, each as `FIXED` has its fields: for a few records quicker than columns."""
        return ROW.iter_unpack(self.table)

    @property
    def lowest_fire_ms(self) -> int:
        """The first fire instant in it; 0 if there is none."""
        if self.records == 1:
            return int(ROW.unpack(self.table)[_FIRE])
        fires = self.fixed["fire_at_ms"]
        return int(fires.min(where=fires > 0, initial=_LAST)) if fires.any() else 0

    def due(self, first_seq: int) -> Due:
        """The records that have a fire instant, if its first record has this seq; not in the order of their keys."""
        fixed = self.fixed
        places = np.flatnonzero(fixed["fire_at_ms"])
        return Due(fixed["fire_at_ms"][places], places + first_seq, fixed["lane"][places])

    def body(self, place: int) -> bytes:
        """The body of one record."""
        if self.records == 1:
            return self.bodies
        sizes = self.fixed["size"][: place + 1]
        end = int(sizes.sum(dtype=np.int64))
        return self.bodies[end - int(sizes[place]) : end]


def unit_of(records: Sequence[Encoded]) -> Unit:
    """Lay out records that were encoded one by one."""
    if len(records) == 1:
        return Unit(1, _row(*records[0]), records[0].body)
    table = b"".join([_row(*encoded) for encoded in records])
    return Unit(len(records), table, b"".join([encoded.body for encoded in records]))


FixedColumn = Sequence[int] | NDArray[Any]


def unit_of_columns(
    kind: int, sizes: FixedColumn, crcs: FixedColumn, bodies: bytes, **fixed: FixedColumn
) -> Unit:
    """Lay out records of one kind, whose bodies are one after another. `fixed` has other columns of `FIXED`; the rest are zero."""
    table = np.zeros(len(sizes), FIXED)
    table["kind"] = kind
    table["size"] = sizes
    table["crc"] = crcs
    for name, column in fixed.items():
        table[name] = column
    return Unit(len(sizes), table.tobytes(), bodies)


def joined_units(units: Sequence[Unit]) -> Unit:
    """One unit of the records of several."""
    if len(units) == 1:
        return units[0]
    records = sum([unit.records for unit in units])
    return Unit(records, b"".join([unit.table for unit in units]), b"".join([unit.bodies for unit in units]))


def _row(
    kind: int, lane: int, crc: int, fire_at_ms: int, kills_seq: int, kills_fire_at_ms: int, body: bytes
) -> bytes:
    return ROW.pack(kind, 0, lane, len(body), crc, fire_at_ms, kills_seq, kills_fire_at_ms)


def _parts(units: Sequence[Unit], encoding: int, segment_id: int, number: int, first_seq: int) -> list[bytes]:
    content = sum([unit.content_bytes for unit in units])
    length = frame_bytes(content)
    pad = length - HEADER_BYTES - content
    records = sum([unit.records for unit in units])
    table = b"".join(
        (
            _REST.pack(length, records, number, segment_id, encoding, pad, 0, first_seq),
            *[unit.table for unit in units],
        )
    )
    table_crc = value(table).to_bytes(4, "little")
    crc: int = extend(value(table_crc), table)
    for unit in units:
        crc = extend(crc, unit.bodies)
    crc = extend(crc, _PADS[pad])
    head = b"".join((MAGIC, crc.to_bytes(4, "little"), table_crc, table))
    return [head, *[unit.bodies for unit in units], _PADS[pad]]


def rows_parts(units: Sequence[Unit], segment_id: int, number: int, first_seq: int) -> list[bytes]:
    """The parts of a frame of whole units, in order. The bodies are megabytes at times, and are not copied."""
    return _parts(units, Encoding.ROWS, segment_id, number, first_seq)


def encode_rows(units: Sequence[Unit], segment_id: int, number: int, first_seq: int) -> bytes:
    """A frame of whole units, in order."""
    return b"".join(rows_parts(units, segment_id, number, first_seq))


def encode_seal(segment_id: int, number: int, next_seq: int) -> bytes:
    """The frame that a clean shutdown leaves. `next_seq` is the seq that the next record will get."""
    return b"".join(_parts((), Encoding.SEAL, segment_id, number, next_seq))


SEAL_BYTES: Final = frame_bytes(0)


def decode_header(data: bytes, at: int, segment_id: int, first_seq: int, room: int) -> Header | None:
    """Read the header that is at `at`, or None for the end; raise `BadFrame` if it cannot belong here.

    It must be of this segment, begin with the seq that is next, and fit into `room` bytes.
    Only the checksums prove it; see `check_table` and `check_frame`.
    """
    header = HEADER.unpack_from(data, at)
    magic, _, _, length, count, _, owner, encoding, pad, _, seq = header
    if magic != MAGIC:
        if data[at : at + HEADER_BYTES] == END:
            return None
        raise BadFrame("there is no frame header")
    if owner != segment_id:
        raise BadFrame("the frame belongs to another segment")
    if seq != first_seq:
        raise BadFrame(f"the frame begins with seq {seq}, but {first_seq} is next")
    if length % 8 or pad > 7 or not HEADER_BYTES + ROW_BYTES * count + pad <= length <= room:
        raise BadFrame(f"the frame's length of {length} bytes is impossible")
    if encoding != (1 if count else 3):
        raise BadFrame(f"the frame's encoding {encoding} with {count} records is impossible")
    return Header._make(header)


def check_table(data: bytes, at: int, header: Header) -> None:
    """Prove the header and the table, which are in `data` at `at`."""
    if value(data[at + _TABLE_CRC_FROM : at + HEADER_BYTES + ROW_BYTES * header.records]) != header.table_crc:
        raise BadFrame("the checksum of the frame's table does not match")


def check_frame(data: bytes, at: int, header: Header) -> None:
    """Prove the whole frame, which is in `data` at `at`."""
    if value(data[at + _CRC_FROM : at + header.length]) != header.crc:
        raise BadFrame("the frame's checksum does not match")
