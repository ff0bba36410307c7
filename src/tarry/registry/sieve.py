"""Which keys a table cannot have: a look-up for one that was never put is answered without SQLite.

An idempotency key is almost always one that nobody has seen, and to find that out was a tenth of what scheduling with one costs.
A Bloom filter knows: two bits for a key, never taken back. It may say of a key that is not there that it could be, more often
the more keys there were; of one that is there it never says that it is not.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

_BITS: Final = 25
_MASK: Final = (1 << _BITS) - 1

ENOUGH_KEYS: Final = 4_000_000
"""With so many one look-up in twenty is made for nothing: time for another sieve, with the keys that are left."""

LEARNED_AT_ONCE: Final = 4_000
"""Keys that are read in one flush, of those that SQLite has already."""

RowKeys = Iterable[tuple[Any, ...]]


class Bits:
    """Four megabytes of bits, two for each key."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray(1 << _BITS - 3)

    def add(self, key: tuple[Any, ...]) -> None:
        """Set the two bits of a key."""
        # The interpreter's own hash, which is another one at every start: nobody can choose keys that fill it.
        found, hashed = self._bytes, hash(key)
        one, other = hashed & _MASK, hashed >> _BITS & _MASK
        found[one >> 3] |= 1 << (one & 7)
        found[other >> 3] |= 1 << (other & 7)

    def lack(self, key: tuple[Any, ...]) -> bool:
        """Whether this key was never added."""
        found, hashed = self._bytes, hash(key)
        one, other = hashed & _MASK, hashed >> _BITS & _MASK
        return not found[one >> 3] >> (one & 7) & found[other >> 3] >> (other & 7) & 1

    def join(self, others: "Bits") -> None:
        """Set all bits that are set in another."""
        mine = np.frombuffer(self._bytes, np.uint64)
        mine |= np.frombuffer(others._bytes, np.uint64)


class Sieve:
    """The keys of one table: those that are put, and those that SQLite had before, which are read a few at each flush.

    Until these are read to the end, any key could be there. Used on the engine's thread, but for `learn`.
    """

    def __init__(self, table: str, keys: tuple[str, ...], enough_keys: int = ENOUGH_KEYS) -> None:
        columns, marks = ", ".join(keys), ", ".join("?" * len(keys))
        self._first = f"SELECT {columns} FROM {table} ORDER BY {columns} LIMIT {LEARNED_AT_ONCE}"
        self._next = self._first.replace(" ORDER", f" WHERE ({columns}) > ({marks}) ORDER")
        self._enough_keys = enough_keys
        self.begin(())

    def begin(self, keys: RowKeys) -> None:
        """Begin anew, with keys that are on their way to SQLite."""
        self._bits, self._read, self._added = Bits(), Bits(), 0
        self._read_upto: tuple[Any, ...] = ()
        self._read_all = False
        self._complete = False
        for key in keys:
            self.add(key)

    def add(self, key: tuple[Any, ...]) -> None:
        """A key is put."""
        self._added += 1
        self._bits.add(key)

    def lacks(self, key: tuple[Any, ...]) -> bool:
        """Whether SQLite surely does not have this key, nor ever will without `add`."""
        return self._complete and self._bits.lack(key)

    def learn(self, connection: sqlite3.Connection) -> None:
        """Read some more keys. On the registry's thread, in a flush."""
        if self._read_all:
            return
        found = connection.execute(self._next if self._read_upto else self._first, self._read_upto).fetchall()
        for key in found:
            self._read.add(key)
        if len(found) == LEARNED_AT_ONCE:
            self._read_upto = found[-1]
        else:
            self._read_all = True

    def flushed(self, changes: RowKeys) -> None:
        """A flush is done, and these keys are for the next one."""
        if self._read_all and not self._complete:
            self._bits.join(self._read)
            self._read = Bits()
            self._complete = True
        elif self._complete and self._added >= self._enough_keys:
            self.begin(changes)
