"""The pipeline's knowledge beside the rows: carried from commit to commit of the index, in the commit itself.

Small, and made from the ledger alone: the watermark, the granularities of namespaces, the batches that were cancelled,
how many messages were accepted, and where the ledger began when the index did.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from numpy.typing import NDArray

from tarry.ledger.record import Key, Lower, Mark
from tarry.ledger.watermark import Ceiling, Watermark


class Cancelled(Struct, frozen=True, array_like=True):
    """A batch that was cancelled as a whole."""

    first_seq: int
    count: int
    high_ms: int
    """The last of its fire instants: when the watermark has passed it, nothing of the batch is left."""
    spared: list[int] = []
    """The seqs of messages that were being sent: each ends by a record of its own (R11)."""

    def covers(self, low_seq: int, high_seq: int) -> bool:
        """Whether some seqs from the one to the other may belong to it."""
        return high_seq >= self.first_seq and low_seq < self.first_seq + self.count

    def ends_all(self, first_seq: int, count: int) -> bool:
        """Whether so many messages from a seq on belong to it, and all ended with it."""
        inside = self.first_seq <= first_seq and first_seq + count <= self.first_seq + self.count
        return inside and not any(first_seq <= seq < first_seq + count for seq in self.spared)


class Seen(Struct, frozen=True):
    """Facts that some records of the ledger state beside their rows, in the order of the ledger."""

    marks: list[tuple[int, Mark | Lower]] = []
    """Records about the watermark, with their seqs: the last mark, every record that lowered it, and the mark before each of those."""
    policies: list[tuple[str, int | None]] = []
    """Granularities that were set, or with None removed: by namespace, and for the broker under the empty name."""
    cancelled: list[Cancelled] = []
    accepted: int = 0
    """Messages: first versions, those of adopted batches, and those that are older than the index."""


class CommitState(Struct, frozen=True):
    """The state as of one commit."""

    watermark: tuple[int, int] = (0, 0)
    granularity: dict[str, int] = {}
    """By namespace; that of the broker stands under the empty name."""
    cancelled: list[Cancelled] = []
    default_ms: int = 0
    """The granularity of the configuration when this was committed."""
    revised_at_ms: int = 0
    """When a granularity last became finer or a batch was last cancelled: files that were written up to then may hold
    rows that do not belong there any more."""
    accepted: int = 0
    """How many messages were accepted, ever: by it an audit knows that none is missing when the ledger has let go of them."""
    began: int | UnsetType = UNSET
    """The last seq that the ledger had let go of when the index began, if it had. A message that is older counts as
    accepted when the index first hears of it: by the record that ends or replaces a version up to here."""
    ceilings: list[Ceiling] | UnsetType = UNSET
    """Ceilings of the watermark, where it was lowered (`tarry.ledger.watermark`)."""

    @property
    def passed(self) -> Watermark:
        """The versions that are dead by their keys."""
        return Watermark(Key(*self.watermark), tuple(self.ceilings or ()))

    def finest_ms(self, default_ms: int) -> int:
        """The finest granularity of any namespace."""
        return min([self.granularity.get("", default_ms), *self.granularity.values()])

    def namespaces(self) -> dict[str, int]:
        """The granularity of each namespace that has its own."""
        return {name: size for name, size in self.granularity.items() if name}

    def other_ms(self, default_ms: int) -> int:
        """The granularity of every other namespace."""
        return self.granularity.get("", default_ms)

    def is_cancelled(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these seqs belong to a batch that was cancelled."""
        dead = np.zeros(len(seqs), np.bool_)
        for batch in self.cancelled:
            inside = (seqs >= batch.first_seq) & (seqs < batch.first_seq + batch.count)
            dead |= inside & ~np.isin(seqs, batch.spared)
        return dead

    def after(self, parts: Sequence[Seen], default_ms: int, now_ms: int) -> "CommitState":
        """The state after some more records."""
        passed = self.passed
        for part in parts:
            for seq, record in part.marks:
                passed = passed.after(seq, record)
        granularity = dict(self.granularity)
        for part in parts:
            for name, size in part.policies:
                if size is None:
                    granularity.pop(name, None)
                else:
                    granularity[name] = size
        added = [batch for part in parts for batch in part.cancelled]
        cancelled = [batch for batch in (*self.cancelled, *added) if batch.high_ms >= passed.key.fire_at_ms]
        accepted = self.accepted + sum(part.accepted for part in parts)
        after = CommitState(
            (passed.key.fire_at_ms, passed.key.seq), granularity, cancelled, default_ms, self.revised_at_ms, accepted, self.began,
            list(passed.ceilings) or UNSET,
        )  # fmt: skip
        finer = any(
            after._of(name, default_ms) < self._of(name, self.default_ms or default_ms)
            for name in {"", *self.granularity, *granularity}
        )
        if finer or added:
            return replace(after, revised_at_ms=now_ms)
        return after

    def _of(self, namespace: str, default_ms: int) -> int:
        return self.granularity.get(namespace, self.other_ms(default_ms))
