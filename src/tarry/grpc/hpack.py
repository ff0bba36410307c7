"""Header compression (RFC 7541): blocks of fields read with the table that both ends keep, and written without it. Pure.

Calls of one client have mostly the same fields, which come as the same few bytes: a block that leaves the table as it is
gives the same fields until the table changes, and is read once.
"""

from collections import deque
from typing import Final

from tarry.grpc import huffman

Field = tuple[bytes, bytes]
HeaderFields = tuple[Field, ...]

TABLE_BYTES: Final = 4096
"""Maximum bytes of a client's table: the size in force if nothing is said."""
MAX_KNOWN: Final = 64
ENTRY_BYTES: Final = 32
"""Bytes that a field counts beside its text."""

_NAMES: Final = (
    ":authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204|"
    ":status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|"
    "accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|"
    "content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|"
    "cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|"
    "last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|"
    "server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
STATIC: Final[HeaderFields] = tuple(
    (name.encode(), value.encode()) for name, _, value in (one.partition(" ") for one in _NAMES.split("|"))
)
"""The fields that every table begins with; the first has number 1."""


class BadBlock(Exception):
    """Bytes that are no block of fields. The table is lost with it: the connection has to end."""


class TooManyFields(Exception):
    """A sound block whose fields are larger than allowed; the table is as the client has it."""


class BlockReader:
    """Reads the blocks of one connection, in the order in which they came."""

    def __init__(self, max_fields_bytes: int) -> None:
        self._max_fields_bytes = max_fields_bytes
        self._table: deque[Field] = deque()
        self._table_bytes = 0
        self._limit_bytes = TABLE_BYTES
        self._known: dict[bytes, HeaderFields] = {}
        """Blocks that were read since the table last changed."""

    def read(self, block: bytes) -> HeaderFields:
        """The fields of a block; raises `BadBlock` or `TooManyFields`."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields, changed = self._read(block)
        except (IndexError, ValueError) as error:
            raise BadBlock(str(error)) from None
        if sum([len(name) + len(value) + ENTRY_BYTES for name, value in fields]) > self._max_fields_bytes:
            raise TooManyFields
        if changed or len(self._known) >= MAX_KNOWN:
            self._known.clear()
        if not changed:
            self._known[block] = fields
        return fields

    def _read(self, block: bytes) -> tuple[HeaderFields, bool]:
        fields: list[Field] = []
        changed = False
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            if first & 0x80:
                number, at = _number(block, at, 0x7F)
                fields.append(self._field(number))
            elif first & 0xE0 == 0x20:
                size, at = _number(block, at, 0x1F)
                if size > TABLE_BYTES or fields:
                    raise ValueError("a size of the table that was not agreed on")
                self._limit_bytes, changed = size, True
                self._shrink()
            else:
                kept = first & 0x40
                number, at = _number(block, at, 0x3F if kept else 0x0F)
                if number:
                    name = self._field(number)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                fields.append((name, value))
                if kept:
                    self._keep(fields[-1])
                    changed = True
        return tuple(fields), changed

    def _field(self, number: int) -> Field:
        if number <= len(STATIC):
            if not number:
                raise ValueError("a field without a number")
            return STATIC[number - 1]
        return self._table[number - len(STATIC) - 1]

    def _keep(self, field: Field) -> None:
        self._table.appendleft(field)
        self._table_bytes += _size_bytes(field)
        self._shrink()

    def _shrink(self) -> None:
        while self._table_bytes > self._limit_bytes:
            self._table_bytes -= _size_bytes(self._table.pop())


def _size_bytes(field: Field) -> int:
    return len(field[0]) + len(field[1]) + ENTRY_BYTES


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """The number that begins in the last bits of a byte, and where it ends."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in (0, 7, 14, 21):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number that is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] & 0x80
    size, at = _number(block, at, 0x7F)
    stop = at + size
    if stop > len(block):
        raise ValueError("a string that does not end")
    text = block[at:stop]
    return huffman.decode(text) if coded else text, stop


def written(*fields: Field) -> bytes:
    """A block of fields. Nothing of it goes into the client's table: what we say differs from call to call."""
    parts: list[bytes] = []
    for name, value in fields:
        parts += (b"\x00", _size(name), name, _size(value), value)
    return b"".join(parts)


def _size(text: bytes) -> bytes:
    left = len(text)
    if left < 0x7F:
        return bytes((left,))
    left -= 0x7F
    said = bytearray(b"\x7f")
    while left > 0x7F:
        said.append(left & 0x7F | 0x80)
        left >>= 7
    said.append(left)
    return bytes(said)
