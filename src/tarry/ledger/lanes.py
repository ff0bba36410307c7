"""Lanes: a small number beside each key that tells which door a message came through, and spreads owners.

A record stores its lane. Owners take turns by their lanes, and what is coming is counted by door, both without reading a
body. Three bits are the door, thirteen a hash of the owner within its namespace: two owners share a lane, and so a turn, once
in eight thousand.
"""

import zlib
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

OWNER_BITS: Final = 13

DOORS: Final = ("other", "http", "matrix", "dapr", "pulsar", "bulk")
"""The doors by the number that a lane has for them. Numbers are stored: a new door takes the next one, up to 7."""

_NUMBERS: Final = {door: number for number, door in enumerate(DOORS)}


@lru_cache(maxsize=65536)
def lane_of(namespace: str, owner: str, door: str) -> int:
    """The lane of the messages of an owner, within a namespace, that came through a door."""
    number = _NUMBERS.get(door, 0)
    return number << OWNER_BITS | zlib.crc32(f"{namespace}\0{owner}".encode()) & (1 << OWNER_BITS) - 1


def doors_of(lanes: NDArray[Any]) -> NDArray[np.intp]:
    """The numbers of the doors of lanes."""
    doors = (lanes >> OWNER_BITS).astype(np.intp)
    # What a later version has written.
    doors[doors >= len(DOORS)] = 0
    return doors
