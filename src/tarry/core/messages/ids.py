"""Ids that find their message.

An id is one AES block: the encryption, under a key of this installation, of where the message's
first version is: seq (48 bits), fire instant (48 bits) and 32 bits that are zero, or the mark of a kind. So it is

- unguessable: of the 2^128 ids only those that were given out mean anything, and without the key they look
  like uniformly random ones (a block cipher is a pseudo-random permutation);
- found without a row in any index: decrypting tells the key that the wheel, the ledger and the
  index are ordered by (R13);
- cheap in batches: a million ids are one call of the cipher.

A made-up id decrypts to noise: those bits refuse all but one in 2^32 at once, and the rest name a seq
and instant at which no such message is (the caller compares both).
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES: Final = 32
ID_CHARS: Final = 32
"""Hexadecimal digits: an id can be typed, selected with a double click and put on any command line."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_MASK48: Final = (1 << 48) - 1


class Ids:
    """Makes ids and reads them back. Holds the secret key; never log it or an id."""

    def __init__(self, key: bytes, mark: int = 0) -> None:
        """`mark` is what the last 32 bits of a block are: ids of other kinds, under another key, have another one."""
        if len(key) != KEY_BYTES:
            raise ValueError("the id key is 32 bytes")
        self._mark = mark
        # ECB over one block each is the bare permutation: every block holds a different seq.
        cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305
        self._encrypt = cipher.encryptor().update
        self._decrypt = cipher.decryptor().update

    def make(self, seq: int, fire_at_ms: int) -> str:
        """The id of the message whose first version has this key."""
        return self._encrypt((seq << 80 | fire_at_ms << 32 | self._mark).to_bytes(16, "big")).hex()

    def make_all(self, keys: Iterable[tuple[int, int]]) -> list[str]:
        """The ids of a few messages, each given by its fire instant and its seq."""
        blocks = [(seq << 80 | at_ms << 32 | self._mark).to_bytes(16, "big") for at_ms, seq in keys]
        text = self._encrypt(b"".join(blocks)).hex()
        return [text[at : at + ID_CHARS] for at in range(0, len(text), ID_CHARS)]

    def secret(self, purpose: str) -> bytes:
        """A key of its own for another purpose, the same at every start: 32 bytes.

        They are blocks whose last bits are not zero, so that none of them is ever an id.
        """
        seed = hashlib.blake2b(purpose.encode(), digest_size=12).digest()
        return self._encrypt(seed + b"\0\0\0\1" + seed + b"\0\0\0\2")

    def make_many(self, seqs: NDArray[np.int64], fire_at_ms: NDArray[np.int64]) -> NDArray[np.bytes_]:
        """The ids of many messages, as an array of ASCII strings."""
        words = np.empty((len(seqs), 2), dtype=">u8")
        seq = seqs.astype(np.uint64)
        fire = fire_at_ms.astype(np.uint64)
        words[:, 0] = seq << np.uint64(16) | fire >> np.uint64(32)
        words[:, 1] = (fire & np.uint64(0xFFFFFFFF)) << np.uint64(32) | np.uint64(self._mark)
        return np.frombuffer(self._encrypt(words.tobytes()).hex().encode(), f"S{ID_CHARS}")

    def read(self, id_: str) -> tuple[int, int] | None:
        """The (seq, fire_at_ms) that an id stands for; None if it is not one of ours."""
        # Lower case only: one id has one spelling.
        if not _ID.fullmatch(id_):
            return None
        value = int.from_bytes(self._decrypt(bytes.fromhex(id_)), "big")
        if value & 0xFFFFFFFF != self._mark:
            return None
        return value >> 80, value >> 32 & _MASK48
