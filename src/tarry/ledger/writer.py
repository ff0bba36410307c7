"""The writer: takes whatever has queued, writes it as one frame, syncs, publishes, calls back (R1, R2).

There is at most one unsynced frame. Nothing is called back before its frame is synced and the head is
published, and then in the order of the seqs. A write or sync that fails stops it for good: after a failed
sync the page cache may claim what the disk does not have, so it never tries again. A shortage of open files or of
memory before anything of a frame was written is no such failure: that frame is held, and tried again.

With `start` it has two threads, this one's and the preparer's of spare segments; without, `commit` is called
by hand and everything happens in that call.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from errno import EIO, EMFILE, ENFILE, ENOMEM
from functools import partial
from typing import Final

from msgspec import Struct

from tarry.core.clock import Clock
from tarry.core.errors import TarryError, Unavailable
from tarry.ledger.disk import Disk, File
from tarry.ledger.frame import SEAL_BYTES, Unit, encode_seal, frame_bytes, rows_parts
from tarry.ledger.head import DurableHead, encode_head
from tarry.ledger.reader import Reader
from tarry.ledger.segment import Segment, SegmentHeader, begin_segment, usable_bytes
from tarry.ledger.segment_space import SegmentSpace
from tarry.ledger.spares import Spares
from tarry.ledger.wakeup import Wakeup

Done = Callable[[TarryError | None], None]
Post = Callable[[Callable[[], None]], object]
"""Brings a callable to the engine's thread; what it returns is not used."""

Defer = Callable[[Callable[[], None]], object]
"""Calls something at the end of the present turn of the engine's thread."""

RETRY_PREPARING_S: Final = 1.0
LARGE_BYTES: Final = 128 * 1024
"""A unit of this size does not wait for others."""
RETRY_WRITING_S: Final = 1.0
"""After a shortage: so long until the held frame is tried again."""

log = logging.getLogger(__name__)


class Queued(Struct, frozen=True):
    """A unit on its way to the disk."""

    unit: Unit
    content_bytes: int
    done: Done


class TakenUnits(Struct, frozen=True):
    """The units of one frame, and whether they need a new segment."""

    batch: list[Queued]
    roll: bool


class Writer:
    """Writes to the newest segment of one ledger."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        clock: Clock,
        ledger_id: bytes,
        head: File,
        reader: Reader,
        spares: Spares,
        *,
        sealed: bool,
        segment_bytes: int,
        max_records: int,
        max_bytes: int,
        spare_segments: int,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._clock = clock
        self._ledger_id = ledger_id
        self._head = head
        self._reader = reader
        self._spares = spares
        self._sealed = sealed
        self._segment_bytes = segment_bytes
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._spare_segments = spare_segments
        self.active: Segment = reader.segments[-1]
        self.durable_seq = self.active.last_seq
        self.failed: OSError | None = None
        self.queue: deque[Queued] = deque()
        self.lock = threading.Lock()
        """Held while taking from the queue, and while the list of segments is changed."""
        free_bytes = self.active.size_bytes - self.active.end - SEAL_BYTES
        self.space = SegmentSpace(free_bytes, usable_bytes(segment_bytes))
        self._in_flight: list[Queued] = []
        self._held: TakenUnits | None = None
        """A frame that could not be begun for want of open files or memory."""
        self._written = False
        """Whether anything of the present frame may be in its file."""
        self.on_failed: Callable[[OSError], None] | None = None
        """Called on the engine's thread once it has stopped for good."""
        self.finished_bytes = 0
        """Content bytes of all units that were ever called back."""
        self.on_room: Callable[[], None] | None = None
        """Called on the engine's thread when there may be more room than before, or never will be."""
        self._post: Post | None = None
        self._wake: Wakeup | None = None
        """The wake-up that the writer's thread waits for, if there is one."""
        self._nudged = False
        """Whether a nudge is on its way: then what is queued meanwhile goes with it."""
        self._defer: Defer | None = None
        self._stopping = False
        self._ending = threading.Event()
        """Set together with it, for who sleeps meanwhile."""
        self._threads: list[threading.Thread] = []
        self._prepare = threading.Event()

    def put(self, queued: Queued) -> None:
        """Queue a unit, for which room was promised."""
        self.queue.append(queued)
        if self._defer is None or queued.content_bytes >= LARGE_BYTES:
            self._nudge()
        elif not self._nudged:
            self._nudged = True
            self._defer(self._nudge)

    def _nudge(self) -> None:
        """Let the writer begin: for small units once for all that was queued in one turn of the engine's thread.

        Woken at the first of them, it would sync that one alone, and fight with the rest of the turn for the interpreter.
        """
        self._nudged = False
        if self._wake is not None:
            self._wake.ring()

    def plan_anew(self) -> None:
        """Make the plan of the engine's side exact again."""
        with self.lock:
            self.space.plan_anew(frame_bytes(queued.content_bytes) for queued in self.queue)

    def make_spare(self) -> bool:
        """Get one more spare made: now, if there is no preparer; else soon, and this is False."""
        if self._threads:
            self._prepare.set()
            return False
        return self._spares.prepare()

    def commit(self) -> int:
        """Make what has queued durable, up to the bounds, in one frame; return the number of records."""
        if self.failed is not None:
            self._abandon([])
            return 0
        taken = self._held or self._take()
        batch = self._in_flight = taken.batch
        if not batch:
            return 0
        records = 0
        self._written = False
        try:
            if taken.roll:
                self._roll()
                taken = TakenUnits(batch, roll=False)
            records = self._write(batch)
            self.publish()
        except (OSError, MemoryError) as error:
            if not self._written and _is_shortage(error) and not self._stopping:
                self._hold(taken, error)
                return 0
            self._fail(error if isinstance(error, OSError) else OSError(ENOMEM, "no memory"))
            if not records:
                self._abandon(batch)
                return 0
        self._held = None
        self.finished_bytes += sum([queued.content_bytes for queued in batch])
        self._call_back([queued.done for queued in batch], None)
        return records

    def _hold(self, taken: TakenUnits, error: Exception) -> None:
        """Keep a frame for the next attempt."""
        if self._held is None:
            log.warning("the ledger waits, and tries again: %r", error)
        self._held = taken

    def _take(self) -> TakenUnits:
        """Take whole units for one frame from the queue."""
        with self.lock:
            queue, room = self.queue, self.space
            if not queue:
                return TakenUnits([], roll=False)
            batch = [queue.popleft()]
            content, records = batch[0].content_bytes, batch[0].unit.records
            roll = room.needs_roll(frame_bytes(content))
            while queue:
                queued = queue[0]
                records += queued.unit.records
                total = content + queued.content_bytes
                if (
                    records > self._max_records
                    or total > self._max_bytes
                    or frame_bytes(total) > room.free_bytes
                ):
                    break
                content = total
                batch.append(queue.popleft())
            room.free_bytes -= frame_bytes(content)
            return TakenUnits(batch, roll)

    def _roll(self) -> None:
        """Begin the next segment. All frames of the one before have been synced."""
        # It stays the next one until it is a segment: each of these steps may be done again.
        spare = self._spares.next
        header = SegmentHeader(
            self._ledger_id,
            self.active.number + 1,
            self.durable_seq + 1,
            self._clock.now_ms(),
            self._segment_bytes,
        )
        segment = begin_segment(self._disk, self._folder, spare.path, spare.file, header)
        self._spares.take()
        with self.lock:
            self._reader.segments = [*self._reader.segments, segment]
        self._reader.opened(self.active)
        self.active = segment
        self._prepare.set()

    def _write(self, batch: list[Queued]) -> int:
        active, first_seq = self.active, self.durable_seq + 1
        units = [queued.unit for queued in batch]
        parts = rows_parts(units, active.segment_id, active.frames, first_seq)
        records = sum([unit.records for unit in units])
        self._written = True
        active.file.write_parts(parts, active.end)
        active.file.sync()
        active.add(first_seq, records, sum(map(len, parts)))
        self._sealed = False
        self.durable_seq += records
        return records

    def publish(self) -> None:
        """Write the head. Only what has been synced is in it (R1)."""
        active = self.active
        head = DurableHead(self._ledger_id, self.durable_seq, active.number, active.end)
        self._head.write(encode_head(head), 0)

    def seal(self) -> None:
        """Mark a clean end, unless it ends with a mark already. There is always room for it."""
        if self._sealed or self.failed is not None:
            return
        active = self.active
        frame = encode_seal(active.segment_id, active.frames, self.durable_seq + 1)
        try:
            active.file.write(frame, active.end)
            active.file.sync()
            active.add(self.durable_seq + 1, 0, len(frame))
            self.publish()
        except OSError as error:
            self._fail(error)
        self._sealed = True

    def _fail(self, error: OSError) -> None:
        self.failed = error
        log.critical("the ledger has stopped for good, because the disk failed: %s", error)
        if self.on_failed is not None and self._post is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to be told.
                self._post(partial(self.on_failed, error))

    def _abandon(self, batch: list[Queued]) -> None:
        """Tell everyone who waits that it is not known what became of theirs."""
        self._held = None
        with self.lock:
            batch = [*batch, *self.queue]
            self.queue.clear()
        if batch:
            reason = f"the disk failed ({self.failed}): the operation may or may not be stored"
            self.finished_bytes += sum([queued.content_bytes for queued in batch])
            self._call_back([queued.done for queued in batch], Unavailable(reason))

    def _call_back(self, dones: list[Done], error: TarryError | None) -> None:
        dones.append(self._tell_room)
        if self._post is None:
            _run(dones, error)
            return
        try:
            self._post(partial(_run, dones, error))
        except RuntimeError:
            log.warning("the event loop is closed: %d callbacks were dropped", len(dones))

    def _tell_room(self, _error: TarryError | None) -> None:
        if self.on_room is not None:
            self.on_room()

    def start(self, post: Post, defer: Defer | None = None) -> None:
        """Start the two threads."""
        self._post = post
        self._defer = defer
        self._wake = Wakeup()
        self._threads = [
            threading.Thread(
                target=self._write_on, args=[self._wake], name="tarry-ledger-writer", daemon=True
            ),
            threading.Thread(target=self._prepare_on, name="tarry-ledger-preparer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Write out all that has queued and end the threads."""
        self._stopping = True
        self._ending.set()
        if self._wake is not None:
            self._wake.ring()
        self._prepare.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        while self.queue or self._held:
            self.commit()

    def _write_on(self, wake: Wakeup) -> None:
        while True:
            # What queues while it writes brings a nudge of its own.
            while (self.queue or self._held) and (not self._nudged or self._stopping):
                self._commit_or_fail()
                if self._held is not None and not self._stopping:
                    self._ending.wait(RETRY_WRITING_S)
            if self._stopping:
                return
            wake.wait()

    def _commit_or_fail(self) -> None:
        """A fault in this program stops the writer as a fault of the disk does: never silently."""
        try:
            self.commit()
        except Exception as error:
            log.exception("the writer failed")
            failed = OSError(EIO, f"the writer failed: {error!r}")
            self._fail(failed)
            self._abandon(self._in_flight)

    def _prepare_on(self) -> None:
        while not self._stopping:
            wanted = self._spare_segments + self.space.plan_rolls
            if self.failed is None and self._spares.prepared < wanted:
                prepared = self._spares.prepare()
                self._call_back([], None)
                if prepared:
                    continue
            self._prepare.wait(RETRY_PREPARING_S if self._spares.error else None)
            self._prepare.clear()


def _is_shortage(error: OSError | MemoryError) -> bool:
    return isinstance(error, MemoryError) or error.errno in (EMFILE, ENFILE)


def _run(dones: list[Done], error: TarryError | None) -> None:
    """Call every one of them, whatever the others do; the first fault is raised at the end."""
    fault: Exception | None = None
    for done in dones:
        try:
            done(error)
        except Exception as raised:  # noqa: BLE001 - it is raised below, after all were called
            fault = fault or raised
    if fault is not None:
        raise fault
