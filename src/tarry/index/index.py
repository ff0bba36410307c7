"""The index as the server reads it: scheduled versions by due time, without a JVM.

The pipeline is the index's only writer. The server pins one version of it, a *view*, and asks that for keys in a
range and for the bodies at keys. Until there is a pipeline that view is empty and the un-indexed tail serves everything.

Everything here may be called from a worker thread; a view does not change.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.core.timers.run import Due
from tarry.ledger.record import Key, StagedFile

NOTHING = Due(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint16))


class IndexMoved(Exception):
    """A file of this version is gone: a newer version has replaced it. Pin that one and read again (R8)."""


class StagedBatch(Protocol):
    """A batch whose files are in the index's folder but in no version of the index (R10)."""

    @property
    def name(self) -> str:
        """The batch's name, as its owner gave it."""

    @property
    def adopt_seq(self) -> int:
        """The seq of the record that adopted it."""

    @property
    def first_seq(self) -> int:
        """The seq of its first row."""

    @property
    def floor_ms(self) -> int:
        """The instant before which no message of the batch fires."""

    @property
    def files(self) -> Sequence[StagedFile]:
        """Its files, in the order of their seqs."""


class LoadedRows(NamedTuple):
    """The rows of a view in a range, as far as it was read."""

    due: Due
    """In the order of keys."""
    upto: Key
    """Everything below this key is in it."""


class SlotFigures(NamedTuple):
    """A slot of the index, and how full it is."""

    size_ms: int
    start_ms: int
    files: int
    versions: int
    """Number of waiting versions, those included whose ends are among the dels."""
    dels: int
    size_bytes: int


class IndexView(Protocol):
    """The index at one version, with the files of batches that it does not hold yet."""

    @property
    def cursor(self) -> int:
        """The seq up to which it is complete; 0 if it holds nothing."""

    @property
    def identity(self) -> str:
        """Which table this is; another one in the same place has another."""

    def load(self, low: Key, high: Key, limit: int) -> LoadedRows:
        """The versions with low <= key < high that are not known here to be dead, in a piece of about `limit` at most.

        Raises `IndexMoved`, `Damage`, or `Unavailable` if it cannot be read now.
        """

    def may_hold(self, low: Key, high: Key) -> bool:
        """Whether there may be anything in a range. Quick: no file is opened."""

    def bodies(self, keys: Sequence[Key], max_bytes: int) -> list[bytes | Damage | None]:
        """The bodies of the first of these versions, at least one, as many as fit.

        Each is checked (R3): `Damage` in the place of one that is not what was written, None of one that is not here
        or is dead. Raises `IndexMoved`, or `Unavailable` if it cannot be read now.
        """

    def with_batches(self, batches: Sequence[StagedBatch]) -> "IndexView":
        """A view that has the staged files of batches as well (R10)."""

    def tallies(
        self, from_ms: int, edges: NDArray[np.int64], cancelled: Sequence[tuple[int, int]]
    ) -> Iterator[NDArray[np.float64]]:
        """How many versions wait from an instant on between each two edges, by door; in pieces that are added up.

        An estimate, without reading rows. Of batches that were cancelled the first and last seqs are given.
        """

    def slots(self) -> list[SlotFigures]:
        """Its slots, and how full they are. Quick: no file is opened."""

    def last_fire_at_ms(self) -> int:
        """The last instant that it has, or 0."""


class Index(Protocol):
    """The place of the index, whose versions can be followed."""

    def newest(self) -> IndexView:
        """A view of the newest version; an empty one while there is none, the same one while there is no newer.

        Raises `Unavailable`.
        """

    def staged(self, batches: Sequence[StagedBatch]) -> IndexView:
        """A view of the staged files of batches alone."""


class NoView:
    """The view of an index that holds nothing."""

    cursor = 0
    identity = ""

    def load(self, low: Key, high: Key, limit: int) -> LoadedRows:
        """Nothing, in all of the range."""
        return LoadedRows(NOTHING, high)

    def may_hold(self, low: Key, high: Key) -> bool:
        """Never."""
        return False

    def bodies(self, keys: Sequence[Key], max_bytes: int) -> list[bytes | Damage | None]:
        """No bodies."""
        return [None] * len(keys)

    def with_batches(self, batches: Sequence[StagedBatch]) -> "IndexView":
        """This view: batches are staged in an index's folder, and there is none."""
        return self

    def tallies(
        self, from_ms: int, edges: NDArray[np.int64], cancelled: Sequence[tuple[int, int]]
    ) -> Iterator[NDArray[np.float64]]:
        """Nothing."""
        return iter(())

    def slots(self) -> list[SlotFigures]:
        """None."""
        return []

    def last_fire_at_ms(self) -> int:
        """There is none."""
        return 0
