"""The effect of changed bytes on a CRC-32C.

A CRC is linear: of two texts that are equally long, the CRCs differ by something that depends only on where the texts differ, and
on how many bytes follow. Differences are combined by exclusive or, so that those of single bytes, in tables, give all others; and
tables are looked up for many texts at once.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from google_crc32c import extend, value
from numpy.typing import NDArray

CrcTables = NDArray[np.uint32]
"""For each byte of a number, from the least one on, and each value of it: the difference that it makes."""


def _tables(bits: Sequence[int]) -> CrcTables:
    """From the differences that single bits make."""
    return np.array([_sums(bits[at : at + 8]) for at in range(0, len(bits), 8)], np.uint32)


def _sums(bits: Sequence[int]) -> list[int]:
    sums = [0]
    for bit in bits:
        sums += [one ^ bit for one in sums]
    return sums


NUMBERS: CrcTables = _tables([value((1 << bit).to_bytes(8, "big")) ^ value(bytes(8)) for bit in range(64)])
"""The effect of an unsigned number of eight bytes in the place of zeros, at the end of a text."""


@lru_cache(maxsize=1024)
def followed_by(size: int) -> CrcTables:
    """The effect of a difference when so many more bytes follow."""
    more = bytes(size)
    return _tables([extend(1 << bit, more) ^ extend(0, more) for bit in range(32)])


@lru_cache(maxsize=1024)
def number_followed_by(size: int) -> CrcTables:
    """The effect of an unsigned number of eight bytes in the place of zeros, when so many bytes follow it."""
    return looked_up(followed_by(size), NUMBERS.ravel()).reshape(NUMBERS.shape)


def looked_up(
    tables: CrcTables, numbers: NDArray[np.integer], which: "NDArray[np.intp] | int" = 0
) -> NDArray[np.uint32]:
    """The differences that numbers make; `which` is where the table of each begins, if several stand side by side."""
    places = (
        numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(numbers), -1)
    )
    found = np.zeros(len(numbers), np.uint32)
    for place, table in enumerate(tables):
        found ^= table.take(places[:, place] + which)
    return found
