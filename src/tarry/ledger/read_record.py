"""Records as their readers need them: decoded only as far as somebody looks, and many in one call.

The structs are the beginnings from which those of `tarry.ledger.record` are made; decoding skips what follows.
"""

from collections.abc import Sequence

from msgspec.msgpack import Decoder

from tarry.ledger.record import PutHead, ReadEntry, ReadPut

__all__ = [
    "PutHead",
    "ReadEntry",
    "ReadPut",
    "decode_head",
    "decode_heads",
    "read_due",
    "read_entries",
    "read_entry",
]


_head_decoder = Decoder(PutHead)
_heads_decoder = Decoder(list[PutHead])
_entry_decoder = Decoder(ReadEntry)
_entries_decoder = Decoder(list[ReadEntry])
_due_decoder = Decoder(list[ReadPut | ReadEntry])


def decode_head(body: bytes) -> PutHead:
    """Read the beginning of the body of a `Put`."""
    return _head_decoder.decode(body)


def decode_heads(bodies: Sequence[bytes]) -> list[PutHead]:
    """Read the beginnings of the bodies of many `Put`s in one call; raises if one is anything else."""
    return _heads_decoder.decode(_as_array(bodies))


def read_due(bodies: Sequence[bytes]) -> list[ReadPut | ReadEntry]:
    """Read the bodies of what may become due, messages and delayed entries, in one call; raises if one is neither."""
    return _due_decoder.decode(_as_array(bodies))


def read_entry(body: bytes) -> ReadEntry:
    """Read the body of an `Entry` for a consumer."""
    return _entry_decoder.decode(body)


def read_entries(bodies: Sequence[bytes]) -> list[ReadEntry]:
    """Read the bodies of many `Entry`s in one call."""
    return _entries_decoder.decode(_as_array(bodies))


def _as_array(bodies: Sequence[bytes]) -> bytes:
    # 0xdd: an array whose length follows in four bytes.
    return b"".join((b"\xdd" + len(bodies).to_bytes(4, "big"), *bodies))
