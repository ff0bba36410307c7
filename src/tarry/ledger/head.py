"""The published durable head: what is on disk for sure, for recovery and for readers in other processes.

It is written after each sync and never synced itself (R1): whatever of it survives a power
loss was true, if old. A torn head therefore tells nothing, and is no error.
"""

from struct import Struct as Layout
from typing import Final, NamedTuple

from google_crc32c import value

HEAD_NAME: Final = "head"
HEAD_BYTES: Final = 64
_MAGIC: Final = b"TYhd"
_SUMS: Final = Layout("<4sI")
_LAYOUT: Final = Layout("<16sQQQQQ")


class DurableHead(NamedTuple):
    """Every frame that ends at or before `offset` of `segment` is durable, and so every seq up to `seq`."""

    ledger_id: bytes
    seq: int
    segment: int
    offset: int
    epoch: int = 0
    """The owner's epoch in the replicated log; 0 for a ledger on this machine's disk."""
    log_offset: int = 0
    """Where a reader of the replicated log goes on after that seq."""


def encode_head(head: DurableHead) -> bytes:
    """The head file."""
    block = _LAYOUT.pack(*head)
    return _SUMS.pack(_MAGIC, value(block)) + block


def decode_head(block: bytes) -> DurableHead | None:
    """Read the head file; None if it is torn."""
    if len(block) != HEAD_BYTES:
        return None
    magic, crc = _SUMS.unpack_from(block)
    if magic != _MAGIC or value(block[_SUMS.size :]) != crc:
        return None
    return DurableHead._make(_LAYOUT.unpack_from(block, _SUMS.size))
