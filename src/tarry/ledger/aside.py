"""Records that are set aside, for programs that read a ledger beside its server: the file `set-aside` among its segments.

The server says there at each start which seqs it goes on without; the registry is where it remembers them. A reader gets
these records with the flag `SET_ASIDE` in their kind: nobody takes them for what they were or reads their bodies, but
each has its seq, and what it ended or replaced stays so.
"""

import os
from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np

from tarry.core.errors import Damage
from tarry.ledger.replay import Frame

NAME: Final = "set-aside"
SET_ASIDE: Final = 0x80
"""The flag in the kind of a record that is set aside."""

_decode = msgspec.json.Decoder(frozenset[int]).decode


def publish(folder: str, seqs: Collection[int]) -> None:
    """Say which seqs are set aside."""
    path = os.path.join(folder, NAME)
    told = msgspec.json.encode(sorted(seqs))
    if _read(path) == (told if seqs else None):
        return
    beside = f"{path}.new"
    with open(beside, "wb") as file:
        file.write(told)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def published(folder: str) -> frozenset[int]:
    """The seqs that are set aside in a ledger's folder."""
    path = os.path.join(folder, NAME)
    told = _read(path)
    try:
        return frozenset() if told is None else _decode(told)
    except msgspec.DecodeError as error:
        raise Damage(path, 0, f"{error}; a start of the server writes it anew") from None


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def flagged(frame: Frame, seqs: Collection[int]) -> Frame:
    """The frame with its records at these seqs flagged; the frame itself if it has no such record."""
    rows = [seq - frame.first_seq for seq in seqs if 0 <= seq - frame.first_seq < frame.count]
    if not rows:
        return frame
    fixed = frame.fixed.copy()
    fixed["kind"][rows] |= np.uint8(SET_ASIDE)
    return Frame(frame.first_seq, fixed, frame.bodies, frame.place, 0, frame.count)
