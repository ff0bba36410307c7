"""Records as their readers need them: decoded only as far as somebody looks, and many in one call.

The structs are beginnings of those in `tarry.ledger.record`, field by field; decoding skips what follows.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.msgpack import Decoder

from tarry.ledger.record import Key, Kind


class PutHead(Struct, tag=int(Kind.PUT), array_like=True, frozen=True, gc=False):
    """The beginning of a `Put`: all that deciding about it needs. Decoding skips the rest."""

    fire_at_ms: int
    due_at_ms: int | None
    accepted_at_ms: int
    namespace: str
    destination: str
    key: str | None
    owner: str
    door: str
    group: str | None
    ttl_ms: int | None
    origin: Key | None
    attempts: int
    listed: bool


class ReadPut(PutHead, tag=int(Kind.PUT), array_like=True, frozen=True, gc=False):
    """The beginning of a `Put`, up to the headers, for whoever gets the message. Decoding skips the rest."""

    payload: bytes
    headers: dict[str, str]


class ReadEntry(Struct, tag=int(Kind.ENTRY), array_like=True, frozen=True, gc=False):
    """An `Entry` as a consumer reads it: the version that it fired is read with it."""

    topic: str
    fire_at_ms: int
    published_at_ms: int
    entry_id: int
    fired: Key | None
    put: ReadPut | None
    payload: bytes = b""
    headers: dict[str, str] = {}
    key: str | None = None
    producer: str | None = None
    producer_sequence: int = -1
    due_at_ms: int | None = None
    owner: str = ""
    door: str = ""
    ttl_ms: int | None = None
    carries: Key | None = None
    messages: int = 1


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
