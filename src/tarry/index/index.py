"""The index as the server reads it: scheduled versions by due time, without a JVM.

The pipeline is the index's only writer. The server asks it for keys in a range and for the records at
keys; until there is a pipeline, `NoIndex` stands here and the un-indexed tail serves everything.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tarry.core.wheel import Due
from tarry.ledger.record import Key


class Index(Protocol):
    """A pinned view of the index at one version."""

    def cursor(self) -> int:
        """The seq up to which it is complete; 0 if it holds nothing."""

    def keys(self, low: Key, high: Key) -> Due:
        """Every version with low <= key < high that is not known here to be dead, in order."""

    def bodies(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The bodies of versions, checked (R3); None where the index does not hold one."""


class NoIndex:
    """The index before there is a pipeline: complete up to nothing."""

    def cursor(self) -> int:
        """Nothing is indexed."""
        return 0

    def keys(self, low: Key, high: Key) -> Due:
        """No keys."""
        return Due(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint16))

    def bodies(self, keys: Sequence[Key]) -> list[bytes | None]:
        """No bodies."""
        return [None] * len(keys)
