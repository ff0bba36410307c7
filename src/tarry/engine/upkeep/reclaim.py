"""Reclaiming ledger segments (R12): the oldest ones go, once nobody needs their records.

A segment goes when both snapshots of the registry have passed it and nothing in it lives: no version that waits or
is on its way, no topic entry that somebody has yet to acknowledge. With an index, what waits is there, and a segment
goes once the index's cursor has passed it. Without one, all is kept from the first batch on: its staged files have
every message, and only the ledger says which of them have ended. Where little else lives, it is carried forward:
written again at the head, as the same version or with the same entry id, so that neither one message due in a year nor
one subscription that is never read keeps everybody's storage.

Slow work goes to another thread through `Offload`. It knows nothing of what is done with a message.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage, TarryError, Unavailable
from tarry.core.telemetry import faults
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Journal
from tarry.engine.records.versions import new_version
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import EngineState
from tarry.index.index import IndexView
from tarry.ledger.frame import ROW_BYTES
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Entry, Key, Put, Record, decode, encode
from tarry.ledger.segment import SegmentInfo
from tarry.registry.registry import Relied
from tarry.registry.snapshots import SNAPSHOTS

log = logging.getLogger(__name__)

SnapshotMade = Callable[[str, int, int], None]
"""Told of a new snapshot of the registry: its file, the seq that it has reached, and the first seq of the ledger before it was made."""

CARRY_LIMIT: Final = 200
"""Records carried forward at once: some milliseconds. Of two thousand it was a fifth of a second."""

CARRY_SEGMENTS: Final = 16
"""Segments that are emptied in one turn, at the most."""

WAITING_TOGETHER: Final = 100_000
"""Versions that are looked at in one step."""

CARRIED_TOGETHER: Final = 50_000
"""Records that are chosen to be carried in one turn, about; of a segment all."""

LIVE_SHARE: Final = 0.5
"""The oldest segments are worth carrying forward while at most this share of their records lives."""


class Living:
    """Seqs of what lives in segments, counted by segment."""

    def __init__(self, segments: list[SegmentInfo]) -> None:
        self._segments = segments
        self._last_seqs = np.array([segment.last_seq for segment in segments], np.int64)
        self._counts = np.zeros(len(segments), np.int64)
        self._seqs: list[NDArray[np.int64]] = []

    def add(self, seqs: NDArray[np.int64]) -> None:
        """Take seqs up to the end of the last segment; one may come twice."""
        seqs = seqs[seqs >= self._segments[0].first_seq]
        self._counts += np.bincount(np.searchsorted(self._last_seqs, seqs), minlength=len(self._counts))
        self._seqs.append(seqs)

    @property
    def unneeded(self) -> list[SegmentInfo]:
        """The first segments, as many as have nothing that lives."""
        return self._segments[: int(np.argmax(self._counts > 0)) if self._counts.any() else None]

    def worth_carrying_upto(self) -> int:
        """The last seq of the oldest segments that are worth carrying forward, or 0.

        They are taken together, so that one full segment does not keep a hundred empty ones behind it.
        """
        first_seq = self._segments[0].first_seq
        lives = np.cumsum(self._counts)
        worth = np.flatnonzero(lives <= (self._last_seqs - first_seq + 1) * LIVE_SHARE)
        if not len(worth):
            return 0
        few = max(1, int(np.searchsorted(lives, CARRIED_TOGETHER, "right")))
        return int(self._last_seqs[min(int(worth[-1]) + 1, CARRY_SEGMENTS, few) - 1])

    def upto(self, seq: int) -> list[int]:
        """Living seqs up to one, in order."""
        some = [seqs[seqs <= seq] for seqs in self._seqs]
        return np.unique(np.concatenate(some)).tolist() if some else []


class Reclaim:
    """Takes snapshots of the registry, carries forward what little lives, and deletes segments."""

    def __init__(
        self,
        *,
        journal: Journal,
        state: EngineState,
        ledger: Ledger,
        horizon: Horizon,
        bodies: Bodies,
        clock: Clock,
        isolation: Isolation,
        dispatcher: Dispatcher,
        settings: EngineSettings,
        offload: Offload,
        folder: str | None,
        flush: Callable[[], Answer[None]],
        reclaimed: Callable[[int], None],
        on_snapshot: SnapshotMade | None,
    ) -> None:
        self.held = 0
        """Backups and rebuilds that read the ledger now: while there are any, nothing is reclaimed."""
        self._journal = journal
        self._state = state
        self._ledger = ledger
        self._horizon = horizon
        self._bodies = bodies
        self._clock = clock
        self._isolation = isolation
        self._dispatcher = dispatcher
        self._settings = settings
        self._offload = offload
        self._folder = folder
        """Where snapshots of the registry go; None keeps none, and then nothing is reclaimed."""
        self._flush = flush
        self._reclaimed = reclaimed
        self._on_snapshot = on_snapshot
        self._next_snapshot_ms = 0
        self._snapshotting = False
        self._snapshot_seqs = [0, 0]
        """The seqs that the two newest snapshots have reached."""
        self._to_carry: deque[int] = deque()
        """Seqs of the oldest segment that are still to be written again."""
        self._busy = False
        """Records are being carried forward, or segments are about to go."""
        self._search: Iterator[bool] | None = None
        """The search for what lives, while one is under way."""

    def turn(self, now_ms: int) -> None:
        """Delete segments that nobody needs, or move towards that with the oldest one."""
        self._snapshot(now_ms)
        if self._busy or self._search is not None or not self._may_reclaim():
            return
        sealed = self._sealed()
        if sealed:
            self._search = self._look_at(sealed)
            self.step()

    @property
    def searching(self) -> bool:
        """Whether a search for what lives is under way: it goes on with each `step`."""
        return self._search is not None

    def step(self) -> None:
        """Take the next step of the search, if one is under way."""
        if self._search is not None and next(self._search, False) is False:
            self._search = None

    def _sealed(self) -> list[SegmentInfo]:
        """The segments that might go, as far as snapshots and index are concerned."""
        known = self._horizon.view.cursor if self._indexed else self._state.batches.first_adopt_seq - 1
        bound = min(*self._snapshot_seqs, known)
        return [segment for segment in self._ledger.segments()[:-1] if segment.last_seq <= bound]

    def _look_at(self, sealed: list[SegmentInfo]) -> Iterator[bool]:
        """Find what lives in segments, in steps, and then have them deleted or emptied.

        What comes to live meanwhile has later seqs. What is on its way is looked for in one turn with what waits, since it
        goes from the one to the other; and what ends meanwhile is taken to live still.
        """
        living = Living(sealed)
        for seqs in self._waiting(sealed[0].first_seq, sealed[-1].last_seq):
            living.add(seqs)
            yield True
        # After a seek back somebody may want entries that are gone already.
        for seqs in self._state.topics.needed_upto(sealed[-1].last_seq):
            living.add(seqs)
            yield True
        if self._busy or not self._may_reclaim() or self._sealed()[: len(sealed)] != sealed:
            return
        unneeded = living.unneeded
        if unneeded:
            # What is dead was decided when it was enqueued; only once that is durable may its bytes go (R2).
            self._busy = True
            self._rely(unneeded[-1].last_seq)
        elif upto_seq := living.worth_carrying_upto():
            under_way = set(self._dispatcher.open_between(sealed[0].first_seq, upto_seq))
            self._to_carry = deque(seq for seq in living.upto(upto_seq) if seq not in under_way)
            self._carry_on()

    def _may_reclaim(self) -> bool:
        dispatcher = self._dispatcher
        held = self.held or self._folder is None or not self._horizon.followed
        return not (held or dispatcher.holds_any or dispatcher.stuck)

    @property
    def _indexed(self) -> bool:
        """Whether there is an index: then it has the waiting versions of segments up to its cursor."""
        return bool(self._horizon.view.identity)

    def _rely(self, upto_seq: int) -> None:
        """Before segments go because the index has their versions, the registry says so; then they go."""
        journal, index = self._journal, self._horizon.view.identity
        if index:
            self._state.reliance.relied = Relied(max(upto_seq, self._state.reliance.relied.seq), index)

        def flushed(flush: Answer[None]) -> None:
            if flush.error() is not None:
                self._busy = False
            else:
                journal.when_durable(journal.next_seq - 1, durable)

        def durable(error: TarryError | None) -> None:
            if error is not None:
                self._busy = False
            elif index:
                self._delete(upto_seq)
            else:
                # A pipeline that has begun in the meantime counts on finding what was there.
                self._horizon.look(looked)

        def looked(newest: IndexView | None) -> None:
            if newest is None or newest.identity:
                self._busy = False
            else:
                self._delete(upto_seq)

        self._flush().then(flushed)

    def _delete(self, upto_seq: int) -> None:
        self._busy = False
        # A message of theirs may have become due meanwhile: it is read once more when it leaves.
        if not self._may_reclaim() or self._dispatcher.open_between(0, upto_seq):
            return
        count = self._ledger.reclaim(upto_seq)
        log.info("reclaimed %d ledger segments, up to seq %d", count, upto_seq)
        self._reclaimed(upto_seq)

    def _waiting(self, first_seq: int, last_seq: int) -> Iterator[NDArray[np.int64]]:
        """Seqs in a range of versions that wait or are on their way now."""
        if self._indexed:
            # What waits is in the index. The members of groups are wanted at once, when one of them is sent.
            waiting = np.array(
                [seq for seq in self._state.groups.seqs if first_seq <= seq <= last_seq], np.int64
            )
        else:
            parts = (self._horizon.wheel, self._horizon.tail)
            waiting = np.concatenate([part.seqs_between(first_seq, last_seq) for part in parts])
        yield np.array(list(self._dispatcher.open_between(first_seq, last_seq)), np.int64)
        for start in range(0, len(waiting), WAITING_TOGETHER):
            seqs = waiting[start : start + WAITING_TOGETHER]
            yield seqs if self._indexed else seqs[~self._state.dead.contains_many(seqs)]

    # Carrying forward

    def _carry_on(self) -> None:
        """Write the next records again, and go on when they are durable."""
        again = self._again()
        if not again:
            return
        self._busy = True

        def carried(error: TarryError | None) -> None:
            self._busy = False
            if error is None:
                for seq in again:
                    self._dispatcher.killed(seq)
                # A command that waits for an attempt of the old version looks at the new one.
                self._dispatcher.end_writer.settled(again)
                if self._to_carry and self._may_reclaim():
                    self._carry_on()
                else:
                    self.turn(self._clock.now_ms())

        try:
            self._journal.append(list(again.values()), carried)
        except Unavailable:
            self._busy = False

    def _again(self) -> dict[int, Record]:
        """The next versions and entries as new records that kill the old ones (R4), as many as fit a unit."""
        again: dict[int, Record] = {}
        room = self._journal.unit_max_bytes // 2
        open_ = set(self._dispatcher.open_between(0, self._to_carry[-1])) if self._to_carry else set()
        while self._to_carry and len(again) < CARRY_LIMIT:
            seq = self._to_carry[0]
            if seq in self._state.dead or seq in open_:
                self._to_carry.popleft()
                continue
            try:
                body = self._bodies.one(seq)
                if again and len(body) > room:
                    break
                room -= len(body)
                record = self._carried(seq, body)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this record
                self._isolation.check(error)
                # It stays where it is, and with it its segment: that is what backups are for.
                what = str(error) if isinstance(error, Damage) else faults.told(error)
                log.error("the record at seq %d cannot be carried forward: %s", seq, what)
                record = None
            self._to_carry.popleft()
            if record is not None:
                again[seq] = record
        return again

    def _carried(self, seq: int, body: bytes) -> Record | None:
        """A record as a new one that takes its place; None where nobody needs it any more."""
        record = decode(body)
        if isinstance(record, Entry):
            again: Record | None = self._state.topics.carried(record, seq)
        elif isinstance(record, Put):
            key = Key(record.fire_at_ms, seq)
            uncertain = record.uncertain or self._state.may_have_been_sent(key, record)
            again = new_version(record, key, record.fire_at_ms, uncertain=uncertain)
        else:
            again = record
        if again is not None:
            self._ledger.check_size(len(encode(again).body) + ROW_BYTES)
        return again

    # Snapshots of the registry

    def _snapshot(self, now_ms: int) -> None:
        if self._folder is None or self._snapshotting:
            return
        if self._next_snapshot_ms - now_ms > 2 * self._settings.snapshot_every_ms:
            self._next_snapshot_ms = 0
        meta = self._state.registry.meta
        if now_ms < self._next_snapshot_ms or meta is None or meta.applied_seq <= min(self._snapshot_seqs):
            return
        self._next_snapshot_ms = now_ms + self._settings.snapshot_every_ms
        self._snapshotting = True
        older = self._snapshot_seqs.index(min(self._snapshot_seqs))
        path = os.path.join(self._folder, SNAPSHOTS[older])
        # What is reclaimed from now on may rely on what this snapshot does not have yet.
        reached, first_seq = meta.applied_seq, self._ledger.first_seq

        def done(error: Exception | None) -> None:
            self._snapshotting = False
            if error is None:
                self._snapshot_seqs[older] = reached
                if self._on_snapshot is not None:
                    self._on_snapshot(path, reached, first_seq)
            else:
                log.warning("no snapshot of the registry could be made: %s", error)

        self._offload(lambda: self._state.registry.snapshot(path), done)
