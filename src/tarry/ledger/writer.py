"""The writer: takes whatever has queued, hands it to the log as one frame, and calls back once that is durable (R1, R2).

Where a frame becomes durable, and how many may be on their way to it, is the log's (`tarry.ledger.log`): with the disk it is
one. Nothing is called back before its frame is durable and the head is published, and then in the order of the seqs. A log
that fails stops the writer for good: after a failed sync the page cache may claim what the disk does not have, so it
never tries again. A shortage of open files or of memory before anything of a frame was written is no such failure: that
frame is held, and tried again.

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

from tarry.core.errors import TarryError, Unavailable
from tarry.core.time.clock import Clock
from tarry.ledger.disk import File
from tarry.ledger.frame import SEAL_BYTES, Unit, frame_bytes, rows_parts, segment_id_of
from tarry.ledger.head import DurableHead, encode_head
from tarry.ledger.log.frame_log import FrameLog, PlacedFrame
from tarry.ledger.segment import BLOCK_BYTES, Segment, SegmentHeader, usable_bytes
from tarry.ledger.segment_space import SegmentSpace
from tarry.ledger.spares import Spares
from tarry.ledger.wakeup import Wakeup

OnDurable = Callable[[TarryError | None], None]
Post = Callable[[Callable[[], None]], object]
"""Brings a callable to the engine's thread; what it returns is not used."""

Defer = Callable[[Callable[[], None]], object]
"""Calls something at the end of the present turn of the engine's thread."""

RETRY_PREPARING_S: Final = 1.0
LARGE_BYTES: Final = 128 * 1024
"""A unit of this size does not wait for others."""
RETRY_WRITING_S: Final = 1.0
"""After a shortage: so long until the held frame is tried again."""
SETTLE_S: Final = 0.002
"""So long it listens to a log that has frames on their way, until it looks again whether more has queued."""

log = logging.getLogger(__name__)


class Queued(Struct, frozen=True):
    """A unit on its way to the disk."""

    unit: Unit
    content_bytes: int
    done: OnDurable


class TakenUnits(Struct, frozen=True, gc=False):
    """The units of one frame, and whether they need a new segment."""

    batch: list[Queued]
    roll: bool


class SentUnits(Struct, frozen=True, gc=False):
    """The units of a frame that the log has, and is not known to be durable yet."""

    batch: list[Queued]
    last_seq: int


class Writer:
    """Writes the frames of one ledger to its log."""

    def __init__(
        self,
        clock: Clock,
        ledger_id: bytes,
        head: File,
        log: FrameLog,
        spares: Spares,
        *,
        segment_bytes: int,
        max_records: int,
        max_bytes: int,
        spare_segments: int,
    ) -> None:
        self._clock = clock
        self._ledger_id = ledger_id
        self._head = head
        self._log = log
        self._spares = spares
        self._segment_bytes = segment_bytes
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._spare_segments = spare_segments
        active = log.active
        self.durable_seq = active.last_seq
        self._number = active.number
        """The number of the segment that the next frame goes to."""
        self._segment_id = active.segment_id
        self._frames = active.frames
        """The number of the next frame in its segment."""
        self._end = active.end
        """Where in its segment the next frame goes."""
        self._sent_seq = active.last_seq
        """The last seq that the log was given."""
        self.failed: OSError | None = None
        self.queue: deque[Queued] = deque()
        self.lock = threading.Lock()
        """Held while taking from the queue."""
        free_bytes = active.size_bytes - active.end - SEAL_BYTES
        self.space = SegmentSpace(free_bytes, usable_bytes(segment_bytes))
        self._sent: deque[SentUnits] = deque()
        """The frames on their way to be durable."""
        self._held: TakenUnits | None = None
        """A frame that the log was not given yet: for want of open files or memory, or because a segment must be whole first."""
        self._short = False
        """Whether it is for a shortage."""
        self._written = False
        """Whether anything of the present frame may be in its file."""
        self.on_failed: Callable[[OSError], None] | None = None
        """Called on the engine's thread once it has stopped for good."""
        self.finished_bytes = 0
        """Content bytes of all units that were ever called back."""
        self.on_space: Callable[[], None] | None = None
        """Called on the engine's thread when there may be more space than before, or never will be."""
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
        """Queue a unit, for which space was promised."""
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

    @property
    def active(self) -> Segment:
        """The newest segment."""
        return self._log.active

    @property
    def settled(self) -> bool:
        """Whether no frame is on its way."""
        return not self._sent

    def commit(self, wait_s: float = 0.0) -> int:
        """Give the log queued units as one frame, up to the bounds, if it takes one more; call back for durable ones.

        Waits up to so long for a log that says later what has become durable. Returns the number of durable records.
        """
        if self.failed is not None:
            self._abandon()
            return 0
        sent, before, durable = self._sent, self.durable_seq, 0
        try:
            if not sent or (len(sent) < self._log.in_flight and not self._nudged):
                self._written = False
                self._send()
            if sent:
                self._written = True
                durable = self._log.settle(wait_s)
                if durable:
                    self.durable_seq = sent[durable - 1].last_seq
                    self.publish()
        except (OSError, MemoryError) as error:
            if not self._written and _is_shortage(error) and not self._stopping:
                self._hold(error)
                return 0
            self._fail(error if isinstance(error, OSError) else OSError(ENOMEM, "no memory"))
            if not durable:
                self._abandon()
                return 0
        if durable:
            batch = sent.popleft().batch
            for _ in range(durable - 1):
                batch = [*batch, *sent.popleft().batch]
            self.finished_bytes += sum([queued.content_bytes for queued in batch])
            self._call_back([queued.done for queued in batch], None)
        return self.durable_seq - before

    def _hold(self, error: Exception) -> None:
        """Keep the frame that could not be begun for the next attempt."""
        if not self._short:
            log.warning("the ledger waits, and tries again: %r", error)
        self._short = True

    def _send(self) -> None:
        """Give the log the held frame, or a frame of queued units."""
        if self._held is None and self.queue:
            self._held = self._take()
        taken = self._held
        if taken is None or (taken.roll and self._sent):
            return
        if taken.roll:
            self._roll()
            taken = self._held = TakenUnits(taken.batch, roll=False)
        units = [queued.unit for queued in taken.batch]
        first_seq = self._sent_seq + 1
        pieces = rows_parts(units, self._segment_id, self._frames, first_seq)
        records = sum([unit.records for unit in units])
        length = sum(map(len, pieces))
        self._written = True
        self._log.append(PlacedFrame(first_seq, records, self._number, self._end, length, pieces))
        self._held = None
        self._short = False
        self._frames += 1
        self._end += length
        self._sent_seq += records
        self._sent.append(SentUnits(taken.batch, self._sent_seq))

    def _take(self) -> TakenUnits:
        """Take whole units for one frame from the queue, which is not empty."""
        with self.lock:
            queue, room = self.queue, self.space
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
        """Let the next frame begin a new segment. All frames before are durable."""
        number = self._number + 1
        header = SegmentHeader(
            self._ledger_id, number, self._sent_seq + 1, self._clock.now_ms(), self._segment_bytes
        )
        self._log.begin(header)
        self._number, self._segment_id = number, segment_id_of(self._ledger_id, number)
        self._frames, self._end = 0, BLOCK_BYTES
        self._prepare.set()

    def publish(self) -> None:
        """Write the head. Only what is durable is in it (R1)."""
        active = self._log.active
        log_offset, epoch, _ = self._log.position
        head = DurableHead(self._ledger_id, self.durable_seq, active.number, active.end, epoch, log_offset)
        self._head.write(encode_head(head), 0)

    def seal(self) -> None:
        """Mark a clean end, and let go of the log."""
        if self.failed is None:
            try:
                if self._log.finish(self.durable_seq + 1):
                    self.publish()
            except OSError as error:
                self._fail(error)
        self._log.close()

    def _fail(self, error: OSError) -> None:
        self.failed = error
        log.critical("the ledger has stopped for good, because the %s failed: %s", self._log.medium, error)
        if self.on_failed is not None and self._post is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody is left to be told.
                self._post(partial(self.on_failed, error))

    def _abandon(self) -> None:
        """Fail every waiting unit: nobody knows whether it became durable."""
        batch = [queued for frame in self._sent for queued in frame.batch]
        self._sent.clear()
        if self._held is not None:
            batch += self._held.batch
            self._held = None
        with self.lock:
            batch += self.queue
            self.queue.clear()
        if batch:
            reason = f"the {self._log.medium} failed ({self.failed}): the operation may or may not be stored"
            self.finished_bytes += sum([queued.content_bytes for queued in batch])
            self._call_back([queued.done for queued in batch], Unavailable(reason))

    def _call_back(self, dones: list[OnDurable], error: TarryError | None) -> None:
        dones.append(self._tell_space)
        if self._post is None:
            _run(dones, error)
            return
        try:
            self._post(partial(_run, dones, error))
        except RuntimeError:
            log.warning("the event loop is closed: %d callbacks were dropped", len(dones))

    def _tell_space(self, _error: TarryError | None) -> None:
        if self.on_space is not None:
            self.on_space()

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
        while self.queue or self._held or self._sent:
            self.commit(SETTLE_S)

    def _write_on(self, wake: Wakeup) -> None:
        while True:
            # What queues while it writes brings a nudge of its own.
            while self._sent or ((self.queue or self._held) and (not self._nudged or self._stopping)):
                self._commit_or_fail()
                if self._short and not self._stopping:
                    self._ending.wait(RETRY_WRITING_S)
            if self._stopping:
                return
            wake.wait()

    def _commit_or_fail(self) -> None:
        """A fault in this program stops the writer as a fault of the disk does: never silently."""
        room = len(self._sent) + 1 < self._log.in_flight
        try:
            self.commit(0.0 if self.queue and room else SETTLE_S)
        except Exception as error:
            log.exception("the writer failed")
            failed = OSError(EIO, f"the writer failed: {error!r}")
            self._fail(failed)
            self._abandon()

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


def _run(dones: list[OnDurable], error: TarryError | None) -> None:
    """Call every callback, whatever the others do; the first fault is raised at the end."""
    fault: Exception | None = None
    for done in dones:
        try:
            done(error)
        except Exception as raised:  # noqa: BLE001 - it is raised below, after all were called
            fault = fault or raised
    if fault is not None:
        raise fault
