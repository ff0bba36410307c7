"""The frames of the Pulsar binary protocol: cutting a stream into them, and building them.

A frame is `u32 total | u32 command size | command`, big endian; SEND and MESSAGE have the message behind the command:
`0x0e01 | crc32c | u32 metadata size | metadata | payload`. That part is kept as it came and given out as it came.

Pure. What cannot be a frame raises `Malformed`. The few frames of which there is one for each message are built by hand: that is
several times as quick as a message object.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np

from tarry.doors.pulsar import wire_pb2 as wire

NO_ID: Final = (1 << 64) - 1
"""-1, as an unsigned number: no such entry, or no request."""
MAX_COMMAND_BYTES: Final = 256 * 1024
"""Commands are small; only what follows one may be as large as a message."""

MANY: Final = 16
"""Frames of a kind from which on they are built together."""

_CHECKSUMMED: Final = b"\x0e\x01"
_HEAD: Final = struct.Struct(">II")
_crc: Callable[[bytes], int] = google_crc32c.value


class Malformed(Exception):
    """Bytes that are no frame; the connection ends with this reason."""


class BadChecksum(Exception):
    """A message whose bytes do not fit its checksum."""


class Frames:
    """Cuts a stream of bytes into frames, however they come."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        """The size of the largest frame; it may grow once it is known who sends."""
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Each whole frame, as its command and what follows that; raises `Malformed` at the first malformed frame."""
        if self._parts:
            self._parts.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return
            data = b"".join(self._parts)
            self._parts = []
        at, end = 0, len(data)
        needed = 8
        while end - at >= 8:
            total, size = _HEAD.unpack_from(data, at)
            if total > self.max_frame_bytes or not 0 < size <= total - 4 or size > MAX_COMMAND_BYTES:
                self._refuse(total, size)
            stop = at + 4 + total
            if stop > end:
                needed = stop - at
                break
            middle = at + 8 + size
            yield data[at + 8 : middle], data[middle:stop]
            at = stop
        if at < end:
            self._parts = [data[at:]]
            self._held_bytes = end - at
            self._needed_bytes = needed

    def _refuse(self, total: int, size: int) -> None:
        if total > self.max_frame_bytes:
            raise Malformed(f"a frame of {total} bytes; the largest is {self.max_frame_bytes}")
        if not 0 < size <= total - 4:
            raise Malformed(f"a command of {size} bytes in a frame of {total}")
        raise Malformed(f"a command of {size} bytes; the largest is {MAX_COMMAND_BYTES}")


def metadata_of(message: bytes) -> bytes:
    """The metadata of a message as it came behind a SEND; raises `Malformed`, or `BadChecksum` where its checksum is wrong."""
    if len(message) >= 10 and message.startswith(_CHECKSUMMED):
        crc, size = _HEAD.unpack_from(message, 2)
        if _crc(message[6:]) != crc:
            raise BadChecksum
        start = 10
    else:
        size = int.from_bytes(message[:4], "big")
        start = 4
    stop = start + size
    if len(message) < start or stop > len(message):
        raise Malformed("a message that ends within its metadata")
    return message[start:stop]


def payload_of(message: bytes) -> bytes:
    """The bytes after the metadata of a message, which `metadata_of` could read."""
    start = 10 if message.startswith(_CHECKSUMMED) else 4
    return message[start + int.from_bytes(message[start - 4 : start], "big") :]


def with_checksum(metadata: bytes, payload: bytes) -> bytes:
    """A message as it stands behind a command."""
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    return _CHECKSUMMED + _crc(body).to_bytes(4, "big") + body


def frame(command: wire.BaseCommand, message: bytes = b"") -> bytes:
    """The frame of a command."""
    body = command.SerializeToString()
    return _HEAD.pack(4 + len(body) + len(message), len(body)) + body + message


def text(field: object) -> str:
    """A field that is to be text: protobuf gives bytes where it is no UTF-8; raises `Malformed`."""
    if not isinstance(field, str):
        raise Malformed("text that is no UTF-8")
    return field


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    if number < 0x80:
        return _ONE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x20_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_ONE: Final = [bytes([number]) for number in range(0x80)]
_NOWHERE: Final = b"\x08" + varint(NO_ID) + b"\x10" + varint(NO_ID)
"""The id of a message that was there already."""


class Places(NamedTuple):
    """The message ids of one topic on the wire: the bytes before the entry id, and those behind it."""

    head: bytes
    tail: bytes


def places_of(ledger: int, partition: int = -1) -> Places:
    """The message ids of a ledger, and of the partition that it is, if it is one."""
    return Places(b"\x08" + varint(ledger) + b"\x10", b"\x18" + varint(partition) if partition >= 0 else b"")


Rows = np.ndarray[Any, np.dtype[np.uint8]]
"""Frames that differ in numbers of the same width: one a row."""


def _width(numbers: Sequence[int]) -> int:
    """The bytes of each of the numbers as a `varint`; 0 if they differ, or cannot be in a table."""
    lowest, highest = min(numbers), max(numbers)
    width = len(varint(lowest)) if lowest >= 0 and highest < 1 << 63 else 0
    return width if width and len(varint(highest)) == width else 0


def _rows(first: bytes, count: int) -> Rows:
    return np.tile(np.frombuffer(first, np.uint8), (count, 1))


def _write_varints(rows: Rows, at: int, width: int, numbers: Sequence[int]) -> None:
    """Write a number into each row."""
    left = np.array(numbers, np.int64)
    for place in range(at, at + width):
        rows[:, place] = left & 0x7F | (0x80 if place + 1 < at + width else 0)
        left >>= 7


def receipt_frames(
    producer: bytes, places: Places, sequences: Sequence[int], entry_ids: Sequence[int]
) -> bytes:
    """The frames of the SEND_RECEIPTs of single messages; `producer` is the id of the producer as a `varint`."""
    sequence_width = entry_width = 0
    if len(sequences) >= MANY:
        sequence_width, entry_width = _width(sequences), _width(entry_ids)
    if not sequence_width or not entry_width:
        return b"".join(
            [receipt_frame(producer, places, *pair) for pair in zip(sequences, repeat(0), entry_ids)]
        )
    first = receipt_frame(producer, places, sequences[0], 0, entry_ids[0])
    rows = _rows(first, len(sequences))
    entry_at = len(first) - len(places.tail) - entry_width
    _write_varints(rows, entry_at, entry_width, entry_ids)
    # Between the two there is the beginning of the message id, with its own.
    _write_varints(rows, entry_at - len(places.head) - 2 - sequence_width, sequence_width, sequences)
    return rows.tobytes()


def receipt_frame(producer: bytes, places: Places, sequence: int, highest: int, entry_id: int) -> bytes:
    """The frame of a SEND_RECEIPT; `producer` is the id of the producer as a `varint`."""
    place = places.head + varint(entry_id) + places.tail if entry_id >= 0 else _NOWHERE
    receipt = b"\x08" + producer + b"\x10" + varint(sequence) + b"\x1a" + _ONE[len(place)] + place
    if highest:
        receipt += b"\x20" + varint(highest)
    size = 4 + len(receipt)
    return _HEAD.pack(4 + size, size) + b"\x08\x07\x3a" + _ONE[len(receipt)] + receipt


def message_head(
    consumer: bytes,
    places: Places,
    entry_id: int,
    redeliveries: int,
    ack_set: Sequence[int],
    epoch: int | None,
    size: int,
) -> bytes:
    """The beginning of a MESSAGE frame; the message, of `size` bytes, follows."""
    place = places.head + varint(entry_id) + places.tail
    command = b"\x08" + consumer + b"\x12" + _ONE[len(place)] + place
    if redeliveries:
        command += b"\x18" + varint(redeliveries)
    if ack_set:
        command += b"".join([b"\x20" + varint(word & NO_ID) for word in ack_set])
    if epoch is not None:
        command += b"\x28" + varint(epoch)
    body = b"\x08\x09\x4a" + varint(len(command)) + command
    return _HEAD.pack(4 + len(body) + size, len(body)) + body


def message_heads(
    consumer: bytes, places: Places, entry_ids: Sequence[int], epoch: int | None, sizes: Sequence[int]
) -> list[bytes]:
    """The beginnings of the MESSAGE frames of entries that come for the first time, and whole."""
    width = _width(entry_ids) if len(entry_ids) >= MANY else 0
    if not width:
        return [
            message_head(consumer, places, entry_id, 0, (), epoch, size)
            for entry_id, size in zip(entry_ids, sizes, strict=True)
        ]
    first = message_head(consumer, places, entry_ids[0], 0, (), epoch, 0)
    rows = _rows(first, len(entry_ids))
    rows[:, :4] = (
        (np.array(sizes, ">u4") + np.uint32(len(first) - 4)).astype(">u4").view(np.uint8).reshape(-1, 4)
    )
    after = len(places.tail) + (0 if epoch is None else 1 + len(varint(epoch)))
    _write_varints(rows, len(first) - after - width, width, entry_ids)
    table, step = rows.tobytes(), len(first)
    return [table[at : at + step] for at in range(0, len(table), step)]
