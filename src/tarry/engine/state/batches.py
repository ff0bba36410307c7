"""Batches: what the records of adopted batches add up to (R10).

The messages of a batch have no records of their own. They are numbered from `first_seq` on, beyond all seqs of the
ledger, and live in the files that were adopted. Kept here is what has to be known without reading these: which batch a seq
belongs to, how many messages of each holder are left, and that a batch was cancelled.

A message of a batch stands *apart* once records of the ledger speak of it alone: it has a newer version (it was restarted
or carried forward), or it was being sent when its batch was cancelled. Such a message ends by a record of its own; cancelling
the batch ends all the others at once.
"""

from bisect import bisect_right
from collections import Counter
from typing import Final

from msgspec.structs import replace

from tarry.core.limits import FINALISED_RETENTION_MS, HOUR_MS
from tarry.core.sets.deadset import DeadSet
from tarry.core.tenants.holder import UNSCOPED, Holder, by_holder, by_namespace
from tarry.ledger.record import FIRST_BATCH_SEQ, Adopt, CancelBatch, Key, StagedFile
from tarry.registry.registry import BatchRow, Registry

OVER_AFTER_MS: Final = HOUR_MS
"""How far the watermark is past a batch's last instant when the wheel is swept for it, so that its seqs can be forgotten."""


class Batch:
    """One batch that was adopted."""

    __slots__ = ("_unscoped", "adopt_seq", "apart", "files", "name", "row", "waiting")

    def __init__(self, name: str, row: BatchRow, files: list[StagedFile]) -> None:
        self.name = name
        self.row = row
        self.files = files
        """Empty once the index has them for good."""
        self.adopt_seq = row.adopt_seq
        self.waiting = by_holder(row.waiting)
        """By holder: the messages that are as they were adopted."""
        self.apart = by_holder(row.apart)
        """By holder: the messages that end by records of their own."""
        self._unscoped = UNSCOPED in row.waiting or UNSCOPED in row.apart
        """Whether it was adopted by an earlier version, which counted by owner alone."""

    @property
    def first_seq(self) -> int:
        """The seq of its first message."""
        return self.row.first_seq

    @property
    def count(self) -> int:
        """How many messages it had."""
        return self.row.count

    @property
    def last_seq(self) -> int:
        """The seq of its last message."""
        return self.row.first_seq + self.row.count - 1

    @property
    def floor_ms(self) -> int:
        """The instant before which no message of the batch fires."""
        return self.row.floor_ms

    @property
    def cancelled_at_ms(self) -> int | None:
        """When it was cancelled."""
        return self.row.cancelled_at_ms

    @property
    def remaining(self) -> int:
        """How many of its messages have not ended."""
        return self.waiting.total() + self.apart.total()

    def holder(self, namespace: str, owner: str) -> Holder:
        """The holder under whom a message of the batch is counted."""
        return Holder(UNSCOPED if self._unscoped else namespace, owner)

    def holds(self, seq: int) -> bool:
        """Whether a seq is that of one of its messages."""
        return self.row.first_seq <= seq < self.row.first_seq + self.row.count

    def stored(self) -> BatchRow:
        """The registry's row of the batch."""
        return replace(self.row, waiting=by_namespace(self.waiting), apart=by_namespace(self.apart))


class Batches:
    """All batches that are not forgotten, in the order of their seqs."""

    def __init__(self, dead: DeadSet) -> None:
        self.by_name: dict[str, Batch] = {}
        self.next_seq = FIRST_BATCH_SEQ
        """The seq of the next batch's first message. It only grows, also when batches are forgotten."""
        self._dead = dead
        self._ordered: list[Batch] = []
        self._firsts: list[int] = []
        self._changed: set[str] = set()
        self._files_changed: set[str] = set()
        self._last: Batch | None = None
        """The batch that was asked for last: its messages end in droves."""

    @property
    def changed(self) -> bool:
        """Whether the registry lacks anything."""
        return bool(self._changed or self._files_changed)

    def decide(self, seq: int, record: Adopt | CancelBatch) -> Counter[Holder]:
        """Take a record into the state; gives how many pending messages each holder has got, or lost."""
        if isinstance(record, Adopt):
            return self._adopt(seq, record)
        batch = self.by_name.get(record.name)
        if batch is None or batch.cancelled_at_ms is not None:
            return Counter()
        return self._cancel(batch, record)

    def _adopt(self, seq: int, record: Adopt) -> Counter[Holder]:
        known = self.by_name.get(record.name)
        if known is not None:
            # A name is taken once: what a crash left of this one had been forgotten when the record was written.
            self.let_go([known])
            self._remove(known)
        high_ms = max([record.floor_ms, *(file.high_ms for file in record.files)])
        row = BatchRow(
            seq, record.first_seq, record.count, record.floor_ms, record.adopted_at_ms, high_ms, record.fingerprint,
            record.namespaces, record.held or {UNSCOPED: record.owners}, trace=record.trace,
        )  # fmt: skip
        batch = Batch(record.name, row, record.files)
        self._add(batch)
        self.next_seq = max(self.next_seq, record.first_seq + record.count)
        self._changed.add(record.name)
        self._files_changed.add(record.name)
        return batch.waiting.copy()

    def _cancel(self, batch: Batch, record: CancelBatch) -> Counter[Holder]:
        spared = Counter(batch.holder(one.namespace, one.owner) for one in record.spared)
        ended = batch.waiting - spared
        batch.waiting.clear()
        batch.apart.update(spared)
        batch.row = replace(
            batch.row,
            cancelled_at_ms=record.cancelled_at_ms,
            cancelled=ended.total(),
            spared=[one.key for one in record.spared],
        )
        self._kill(batch)
        self._changed.add(batch.name)
        return Counter({holder: -count for holder, count in ended.items()})

    def _kill(self, batch: Batch) -> None:
        self._dead.add_range(batch.first_seq, batch.count)
        for key in batch.row.spared:
            self._dead.discard(key.seq)

    def _add(self, batch: Batch) -> None:
        self.by_name[batch.name] = batch
        self._ordered.append(batch)
        self._firsts.append(batch.first_seq)

    # Single messages

    def in_order(self) -> list[Batch]:
        """All batches, the newest first."""
        return self._ordered[::-1]

    def of(self, seq: int) -> Batch | None:
        """The batch of a message, by its seq."""
        if self._last is not None and self._last.holds(seq):
            return self._last
        at = bisect_right(self._firsts, seq) - 1
        if at < 0 or not self._ordered[at].holds(seq):
            return None
        self._last = self._ordered[at]
        return self._last

    def accepted_by(self, seq: int) -> int:
        """The seq of the record by which a version is in the ledger: its own, or that which adopted its batch."""
        if seq < FIRST_BATCH_SEQ:
            return seq
        batch = self.of(seq)
        return 0 if batch is None else batch.adopt_seq

    def trace_of(self, seq: int) -> bytes | None:
        """The trace of the acceptance of the batch of a message, by its first seq."""
        batch = self.of(seq) if seq >= FIRST_BATCH_SEQ else None
        return None if batch is None else batch.row.trace

    def moved(self, origin_seq: int, namespace: str, owner: str) -> None:
        """A message has got its first version of its own."""
        batch = self.of(origin_seq)
        holder = None if batch is None else batch.holder(namespace, owner)
        if batch is not None and holder is not None and batch.waiting[holder]:
            _less(batch.waiting, holder)
            batch.apart[holder] += 1
            self._changed.add(batch.name)

    def revived(self, origin_seq: int, namespace: str, owner: str) -> None:
        """A message that had failed is retried, by a version of its own."""
        batch = self.of(origin_seq)
        if batch is not None:
            batch.apart[batch.holder(namespace, owner)] += 1
            self._changed.add(batch.name)

    def ended(self, origin_seq: int, namespace: str, owner: str, *, apart: bool = False) -> Holder:
        """A message has ended by a record of its own; `apart` if it had a version of its own before. Gives whose it was."""
        batch = self.of(origin_seq)
        if batch is None:
            return Holder(namespace, owner)
        holder = batch.holder(namespace, owner)
        # Of a cancelled batch only those that stand apart are left.
        _less(batch.apart if apart or batch.cancelled_at_ms is not None else batch.waiting, holder)
        self._changed.add(batch.name)
        return holder

    # For the horizon

    @property
    def first_adopt_seq(self) -> int:
        """The seq of the record by which the oldest batch was adopted; beyond all seqs if there is none."""
        return min((batch.adopt_seq for batch in self._ordered), default=FIRST_BATCH_SEQ)

    def unindexed(self, cursor: int, effective_seq: int) -> list[Batch]:
        """Batches above the index's cursor of which anything is left: their files are part of the tail.

        Those whose adoption has not taken effect are part of nothing yet (R2).
        """
        adopted = [batch for batch in self._ordered if cursor < batch.adopt_seq <= effective_seq]
        return [batch for batch in adopted if batch.files and batch.remaining]

    def lowest_entering_ms(self, effective_seq: int) -> int | None:
        """The instant before which no message fires of batches whose adoption has not taken effect."""
        entering = [batch.floor_ms for batch in self._ordered if batch.adopt_seq > effective_seq]
        return min(entering, default=None)

    def indexed(self, cursor: int) -> None:
        """A version of the index with this cursor is here to stay: let go of the files that it has."""
        for batch in self._ordered:
            if batch.adopt_seq <= cursor and batch.files:
                self._drop_files(batch)

    def _drop_files(self, batch: Batch) -> None:
        batch.files = []
        self._files_changed.add(batch.name)

    # The registry

    def save(self, registry: Registry) -> None:
        """Put the changed batches into a flush."""
        for name in self._changed:
            if name in self.by_name:
                registry.batches.put((name,), self.by_name[name].stored())
            else:
                registry.batches.remove(name)
        for name in self._files_changed:
            if name in self.by_name and self.by_name[name].files:
                registry.batch_files.put((name,), self.by_name[name].files)
            else:
                registry.batch_files.remove(name)
        self._changed.clear()
        self._files_changed.clear()

    def load(self, registry: Registry) -> None:
        """Begin with what the registry has."""
        files = {name: of for (name,), of in registry.batch_files.rows()}
        rows = sorted(registry.batches.rows(), key=lambda of: of[1].first_seq)
        for (name,), row in rows:
            batch = Batch(name, row, files.get(name, []))
            self._add(batch)
            self.next_seq = max(self.next_seq, row.first_seq + row.count)
            if row.cancelled_at_ms is not None and not row.past:
                self._kill(batch)
        if registry.meta is not None:
            self.next_seq = max(self.next_seq, registry.meta.next_batch_seq)

    def past(self, watermark: Key) -> list[Batch]:
        """Batches of which every version is dead, and whose seqs are not forgotten yet."""
        over_ms = watermark.fire_at_ms - OVER_AFTER_MS
        return [batch for batch in self._ordered if not batch.row.past and batch.row.high_ms < over_ms]

    def let_go(self, past: list[Batch]) -> None:
        """Forget the seqs of batches that are past. No entry of the wheel may have any of them: it would fire."""
        for batch in past:
            self._dead.drop_range(batch.first_seq, batch.count)
            batch.row = replace(batch.row, past=True)
            self._changed.add(batch.name)
            self._drop_files(batch)

    def forget(self, watermark: Key, retention_ms: int = FINALISED_RETENTION_MS) -> None:
        """Forget batches that are past when the ends of their messages are forgotten."""
        for batch in [batch for batch in self._ordered if batch.row.past and not batch.apart.total()]:
            if watermark.fire_at_ms - batch.row.high_ms > retention_ms:
                self._remove(batch)

    def _remove(self, batch: Batch) -> None:
        at = self._ordered.index(batch)
        del self._ordered[at], self._firsts[at], self.by_name[batch.name]
        self._last = None
        self._changed.add(batch.name)
        self._files_changed.add(batch.name)


def _less(counts: Counter[Holder], holder: Holder) -> None:
    """One less; a holder without any is not kept."""
    if counts[holder] > 1:
        counts[holder] -= 1
    else:
        del counts[holder]
