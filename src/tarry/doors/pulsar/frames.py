"""The frames of the Pulsar binary protocol: cutting a stream into them, and building them.

A frame is `u32 total | u32 command size | command`, big endian; SEND and MESSAGE have the message behind the command:
`0x0e01 | crc32c | u32 metadata size | metadata | payload`. That part is kept as it came and given out as it came.

Pure. What cannot be a frame raises `Malformed`. The few frames of which there is one for each message are built by hand: that is
several times as quick as a message object.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import google_crc32c

from tarry.doors.pulsar import wire_pb2 as wire

LEDGER_ID: Final = 1
"""Clients know a message by the ledger and the entry; a topic here is one ledger."""
NO_ID: Final = (1 << 64) - 1
"""-1, as an unsigned number: no such entry, or no request."""
MAX_COMMAND_BYTES: Final = 256 * 1024
"""Commands are small; only what follows one may be as large as a message."""

_CHECKSUMMED: Final = b"\x0e\x01"
_HEAD: Final = struct.Struct(">II")
_crc: Callable[[bytes], int] = google_crc32c.value


class Malformed(Exception):
    """Bytes that are no frame; the connection ends with this reason."""


class BadChecksum(Exception):
    """A message that is not what was sent."""


class Frames:
    """Cuts a stream of bytes into frames, however they come."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Each whole frame, as its command and what follows that; raises `Malformed` at the first that is none."""
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
            self._check(total, size)
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

    def _check(self, total: int, size: int) -> None:
        if total > self._max_frame_bytes:
            raise Malformed(f"a frame of {total} bytes; the largest is {self._max_frame_bytes}")
        if not 0 < size <= total - 4:
            raise Malformed(f"a command of {size} bytes in a frame of {total}")
        if size > MAX_COMMAND_BYTES:
            raise Malformed(f"a command of {size} bytes; the largest is {MAX_COMMAND_BYTES}")


def metadata_of(message: bytes) -> bytes:
    """The metadata of a message as it came behind a SEND; raises `Malformed`, or `BadChecksum` where its checksum is wrong."""
    at = 0
    if message.startswith(_CHECKSUMMED):
        if _crc(message[6:]) != int.from_bytes(message[2:6], "big"):
            raise BadChecksum
        at = 6
    size = int.from_bytes(message[at : at + 4], "big")
    stop = at + 4 + size
    if len(message) < at + 4 or stop > len(message):
        raise Malformed("a message that ends within its metadata")
    return message[at + 4 : stop]


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
_LEDGER: Final = b"\x08" + varint(LEDGER_ID) + b"\x10"
"""The beginning of a message id; the entry follows."""
_NOWHERE: Final = b"\x08" + varint(NO_ID) + b"\x10" + varint(NO_ID)
"""The id of a message that was there already."""


def receipt_frame(producer: bytes, sequence: int, highest: int, entry_id: int) -> bytes:
    """The frame of a SEND_RECEIPT; `producer` is the id of the producer as a `varint`."""
    place = _LEDGER + varint(entry_id) if entry_id >= 0 else _NOWHERE
    receipt = b"\x08" + producer + b"\x10" + varint(sequence) + b"\x1a" + _ONE[len(place)] + place
    if highest:
        receipt += b"\x20" + varint(highest)
    size = 4 + len(receipt)
    return _HEAD.pack(4 + size, size) + b"\x08\x07\x3a" + _ONE[len(receipt)] + receipt


def message_head(
    consumer: bytes, entry_id: int, redeliveries: int, ack_set: Sequence[int], epoch: int | None, size: int
) -> bytes:
    """The beginning of a MESSAGE frame; the message, of `size` bytes, follows."""
    place = _LEDGER + varint(entry_id)
    command = b"\x08" + consumer + b"\x12" + _ONE[len(place)] + place
    if redeliveries:
        command += b"\x18" + varint(redeliveries)
    if ack_set:
        command += b"".join([b"\x20" + varint(word & NO_ID) for word in ack_set])
    if epoch is not None:
        command += b"\x28" + varint(epoch)
    body = b"\x08\x09\x4a" + varint(len(command)) + command
    return _HEAD.pack(4 + len(body) + size, len(body)) + body
