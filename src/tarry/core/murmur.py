"""MurmurHash3, 32 bits, seed 0: the hash by which Pulsar spreads keys over consumers and partitions."""

from typing import Final

_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_MASK: Final = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def murmur3_32(data: bytes) -> int:
    """The hash of some bytes, as an unsigned number of 32 bits."""
    state = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _C1 & _MASK
        state ^= _rotate(word, 15) * _C2 & _MASK
        state = _rotate(state, 13) * 5 + 0xE6546B64 & _MASK
    if len(data) > whole:
        word = int.from_bytes(data[whole:], "little") * _C1 & _MASK
        state ^= _rotate(word, 15) * _C2 & _MASK
    state ^= len(data)
    state ^= state >> 16
    state = state * 0x85EBCA6B & _MASK
    state ^= state >> 13
    state = state * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
