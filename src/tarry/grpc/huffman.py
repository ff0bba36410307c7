"""The Huffman code of HPACK (RFC 7541, appendix B), for reading only. Pure.

The code is canonical: which symbols have how many bits says all of it.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_SYMBOLS: Final[dict[int, bytes]] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf"
    b"\xc5\xe7\xef",
    24: b"\x09\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
    b"\x7f\xdc\xf9",
    30: b"\x0a\x0d\x16",
}
"""The symbols by the length of their codes. The last code of 30 bits, all ones, is the end, and never in a string."""
LONGEST_BITS: Final = 30


def _codes() -> Iterator[tuple[int, int]]:
    code = last = 0
    for bits, symbols in _SYMBOLS.items():
        code <<= bits - last
        last = bits
        for symbol in symbols:
            yield 1 << bits | code, symbol
            code += 1


_SYMBOL_OF: Final = dict(_codes())
"""By code, with a one in front so that codes of different lengths differ."""


@lru_cache(maxsize=512)
def decode(data: bytes) -> bytes:
    """The string; raises `ValueError` for bits that are no code."""
    text = bytearray()
    code = 1
    for byte in data:
        for shift in (7, 6, 5, 4, 3, 2, 1, 0):
            code = code << 1 | byte >> shift & 1
            symbol = _SYMBOL_OF.get(code)
            if symbol is not None:
                text.append(symbol)
                code = 1
        if code >> LONGEST_BITS:
            raise ValueError("an unknown Huffman code")
    # What is left fills the last byte, with ones.
    bits = code.bit_length() - 1
    if bits > 7 or code != (2 << bits) - 1:
        raise ValueError("a string that ends within a code")
    return bytes(text)
