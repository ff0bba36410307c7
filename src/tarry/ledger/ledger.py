"""The ledger: append a unit, and be told once it is durable.

The engine's thread appends; a unit gets its seqs at once and waits in a queue. The writer takes whatever
has queued, up to a bound, writes it as one frame, syncs, publishes the head, and only then calls back
(R1, R2). A unit is in one frame, so it is stored as a whole or not at all.

    engine's thread        append → queue                              done ← post
    writer's thread                   └→ commit: frame, sync, head ───────────┘
    preparer's thread      zero-filled segments ahead of use

Without `start` there are no threads: `commit` is called by hand and calls back by itself.
It knows nothing of what records mean.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import Invalid, NotFound, TooLarge, Unavailable
from tarry.core.time.clock import Clock
from tarry.ledger.copy import COPY_NAME
from tarry.ledger.disk import Disk
from tarry.ledger.frame import HEADER_BYTES, Unit, frame_bytes, unit_of
from tarry.ledger.head import HEAD_NAME
from tarry.ledger.log.frame_log import FrameLog
from tarry.ledger.log.local_log import LocalLog
from tarry.ledger.log.replicated_log import ReplicatedLog
from tarry.ledger.reader import Reader, StoredRecord, Stretch
from tarry.ledger.record import Encoded
from tarry.ledger.recovery import Recovered, recover
from tarry.ledger.replay import Frame
from tarry.ledger.segment import BLOCK_BYTES, SegmentHeader, SegmentInfo, begin_segment
from tarry.ledger.spares import Spares
from tarry.ledger.writer import Defer, OnDurable, Post, Queued, Writer

MIN_SEGMENT_BYTES: Final = BLOCK_BYTES + 512
MAX_SEGMENT_BYTES: Final = 1 << 31

log = logging.getLogger(__name__)


class LedgerSettings(Struct, frozen=True):
    """Settings of the ledger."""

    segment_bytes: int = 64 << 20
    commit_max_records: int = 8192
    """Maximum number of records of one frame; a larger unit is a frame of its own."""
    commit_max_bytes: int = 8 << 20
    queue_max_bytes: int = 256 << 20
    """Maximum bytes that wait to be written; beyond it only essential units are taken."""
    spare_segments: int = 2
    """Kept zero-filled ahead of use: the next one, and the reserve (R2)."""


class Ledger:
    """One ledger folder, open for appending."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        settings: LedgerSettings,
        clock: Clock,
        found: Recovered,
        replicated: ReplicatedLog | None = None,
    ) -> None:
        """Use `open`."""
        self._disk = disk
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._spares = Spares(disk, folder, settings.segment_bytes)
        self._reader = Reader(found.segments) if replicated is None else replicated.copy.reader
        self._head = disk.open(f"{folder}/{HEAD_NAME}", create=True)
        self._log: FrameLog = replicated or LocalLog(
            disk, folder, self._reader, self._spares, sealed=found.sealed
        )
        if replicated is not None:
            replicated.copy.spares = self._spares
        self.ledger_id = found.ledger_id
        self._writer = self._writer_at_the_end()
        self.notes = found.notes
        """Findings of the recovery that an operator may want to know."""
        self.next_seq = self._writer.durable_seq + 1
        """The seq that the next appended record gets."""
        self._appended_bytes = 0
        self._closed = False
        self._followed: ReplicatedLog | None = None
        """The log of a ledger that another server owns."""
        self._removal_synced = True
        """Whether the last segment that was removed is gone for good."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        """Callbacks that wait for space, each with how much."""

    def _writer_at_the_end(self) -> Writer:
        """A writer that goes on where the log ends."""
        settings = self._settings
        writer = Writer(
            self._clock,
            self.ledger_id,
            self._head,
            self._log,
            self._spares,
            segment_bytes=settings.segment_bytes,
            max_records=settings.commit_max_records,
            max_bytes=settings.commit_max_bytes,
            spare_segments=settings.spare_segments,
        )
        writer.on_space = self._tell_space
        return writer

    def on_failed(self, callback: Callable[[OSError], None]) -> None:
        """Have this called on the engine's thread once the writer has stopped for good."""
        self._writer.on_failed = callback

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        settings: LedgerSettings,
        clock: Clock,
        *,
        new_ledger_id: bytes | None = None,
        log: ReplicatedLog | None = None,
    ) -> "Ledger":
        """Recover the ledger in this folder, or begin a new one if there is none.

        With a log, which was claimed, the folder is its copy and needs no recovery. The caller holds the lock of the
        folder. Raises `Damage` or `Unavailable`, in words for the operator.
        """
        if not MIN_SEGMENT_BYTES <= settings.segment_bytes <= MAX_SEGMENT_BYTES:
            reason = f"must be from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}"
            raise Invalid("segment_bytes", reason)
        try:
            disk.make_folder(folder)
            if log is not None:
                found = _copied(log, settings, clock)
            elif disk.exists(f"{folder}/{COPY_NAME}"):
                raise Unavailable(
                    f"{folder} is the copy of a replicated log, which may know more: configure that log; or, to go on "
                    f"with the folder alone, stop all servers of the log and remove the file {COPY_NAME} from it"
                )
            else:
                found = recover(disk, folder) or _begin(disk, folder, settings, clock, new_ledger_id)
            ledger = cls(disk, folder, settings, clock, found, log)
            ledger._publish()
        except OSError as error:
            raise Unavailable(f"the ledger in {folder} cannot be opened: {error}") from error
        return ledger

    def _publish(self) -> None:
        """Write the first head of this life, and prepare for appending."""
        self._spares.find()
        # The newest segment's name may never have been synced: before the head names it, it is.
        self._disk.sync_folder(self._folder)
        self._writer.publish()
        self._disk.sync_folder(self._folder)
        if not self._spares.prepared:
            self._spares.prepare()

    @classmethod
    def follow(
        cls, disk: Disk, folder: str, settings: LedgerSettings, clock: Clock, log: ReplicatedLog
    ) -> "Ledger":
        """Open the copy of a log that another server owns, for reading, once there is something in it.

        `look` takes note of what has come since, and `own` makes it a ledger for appending.
        """
        copy = log.copy
        assert copy.ledger_id is not None, "something is in the copy"
        ledger = cls(
            disk, folder, settings, clock, Recovered(copy.ledger_id, copy.reader.segments, False, []), log
        )
        ledger._followed = log
        return ledger

    def look(self) -> None:
        """Make the frames readable that have come into a followed copy."""
        if self._followed is not None:
            self._writer.durable_seq = self._followed.copy.last_seq
            self.next_seq = self._writer.durable_seq + 1

    def own(self) -> None:
        """Append from now on: the log was claimed, and nobody else writes to the copy. Raises `Unavailable`."""
        self._followed = None
        self._writer = self._writer_at_the_end()
        self.next_seq = self._writer.durable_seq + 1
        try:
            self._publish()
        except OSError as error:
            raise Unavailable(f"the ledger in {self._folder} cannot be opened: {error}") from error

    @property
    def replicated(self) -> bool:
        """Whether another server may become its owner while this one runs (R14)."""
        return isinstance(self._log, ReplicatedLog)

    @property
    def settled(self) -> bool:
        """Whether nothing that was given to its log is waited for."""
        return self._writer.settled

    @property
    def durable_seq(self) -> int:
        """The durable head: every seq up to this one is on disk."""
        return self._writer.durable_seq

    @property
    def first_seq(self) -> int:
        """The first seq that has not been reclaimed."""
        return self._reader.segments[0].first_seq

    @property
    def unit_max_bytes(self) -> int:
        """Maximum bytes of the bodies of one unit, with `ROW_BYTES` for each: it must fit a segment."""
        return self._writer.space.segment_bytes - HEADER_BYTES - 7

    @property
    def failed(self) -> OSError | None:
        """Why the writer stopped for good, if it did (R2)."""
        return self._writer.failed

    @property
    def low_space(self) -> bool:
        """Whether no spare segment could be prepared: only essential units are taken."""
        return self._spares.error is not None

    def append(self, records: Sequence[Encoded], done: OnDurable, *, essential: bool = False) -> int:
        """Append records as one unit; see `append_unit`."""
        return self.append_unit(unit_of(records), done, essential=essential)

    def append_unit(self, unit: Unit, done: OnDurable, *, essential: bool = False) -> int:
        """Give a unit its seqs, queue it, and return the first of them.

        The unit is stored as a whole or not at all. `done(None)` is called once it is durable, in the order of
        the seqs; `done(error)` if that can never be known. An essential unit (finalise, cancel,
        acknowledge, mark) may use the reserve. Raises `Unavailable` or `TooLarge`, and then nothing was queued.
        """
        writer, spares = self._writer, self._spares
        if not unit.records:
            raise ValueError("a unit has at least one record")
        content_bytes = unit.content_bytes
        need_bytes = self.check_size(content_bytes)
        if (
            writer.failed is not None
            or self._closed
            or self._followed is not None
            or (spares.error is not None and not essential)
        ):
            raise self._refusal()
        queued_bytes = self._appended_bytes - writer.finished_bytes + content_bytes
        if queued_bytes > self._settings.queue_max_bytes and not essential:
            raise Unavailable(f"{queued_bytes:,} bytes would wait to be written; try again in a moment")
        if not writer.space.promise_here(need_bytes, spares.prepared, essential):
            self._promise_space(need_bytes, essential)
        first_seq = self.next_seq
        self.next_seq += unit.records
        self._appended_bytes += content_bytes
        writer.put(Queued(unit, content_bytes, done))
        return first_seq

    def check_size(self, content_bytes: int) -> int:
        """How many bytes a unit with that content takes in its segment; raises `TooLarge` if no segment holds it."""
        need_bytes = frame_bytes(content_bytes)
        if need_bytes > self._writer.space.segment_bytes:
            raise TooLarge("the operation", self._writer.space.segment_bytes)
        return need_bytes

    def when_space(self, content_bytes: int, callback: Callable[[], None]) -> None:
        """Call back once a unit with so many bytes would be taken; also when waiting does not help any more.

        A request that can be made to wait need not be refused because the disk is behind for a moment.
        """
        if self._has_space(content_bytes):
            callback()
        else:
            self._waiting.append((content_bytes, callback))

    def _tell_space(self) -> None:
        waiting, self._waiting = self._waiting, []
        for content_bytes, callback in waiting:
            self.when_space(content_bytes, callback)

    def _has_space(self, content_bytes: int) -> bool:
        writer, spares = self._writer, self._spares
        if writer.failed is not None or self._closed or spares.error is not None:
            return True
        queued_bytes = self._appended_bytes - writer.finished_bytes
        if queued_bytes and queued_bytes + content_bytes > self._settings.queue_max_bytes:
            return False
        need_bytes = min(frame_bytes(content_bytes), writer.space.segment_bytes)
        if writer.space.fits(need_bytes, spares.prepared):
            return True
        writer.plan_anew()
        while not writer.space.fits(need_bytes, spares.prepared):
            if not writer.make_spare():
                # Without a preparer that was the answer; with one, it tells.
                return spares.error is not None
        return True

    def _promise_space(self, need_bytes: int, essential: bool) -> None:
        """Promise space by planning exactly, or by preparing a spare; raise `Unavailable` if there is none."""
        writer, spares = self._writer, self._spares
        writer.plan_anew()
        while not writer.space.promise(need_bytes, spares.prepared, essential):
            if not writer.make_spare():
                raise self._refusal()

    def _refusal(self) -> Unavailable:
        if self._writer.failed is not None:
            return Unavailable(
                f"the {self._log.medium} failed ({self._writer.failed}); nothing is accepted any more"
            )
        if self._followed is not None:
            return Unavailable("this server stands by; ask the owner of the ledger")
        if self._closed:
            return Unavailable("the server is stopping; try again in a moment")
        if self._spares.error is not None:
            return Unavailable(f"there is no space for another segment: {self._spares.error}")
        return Unavailable("the disk is slower than the requests; try again in a moment")

    def commit(self, wait_s: float = 0.0) -> int:
        """Make queued units durable, up to the bounds, as one frame; return the number of records.

        By hand, if there is no thread for it. A log on other machines may need more calls, and waits up to so long.
        """
        if self.low_space:
            self._writer.make_spare()
        return self._writer.commit(wait_s)

    def start(self, post: Post, defer: Defer | None = None) -> None:
        """Start the threads. `post` brings a callable to the engine's thread; `defer`, to the end of its turn."""
        self._writer.start(post, defer)

    def close(self) -> None:
        """Write queued units, seal the ledger, and close its files. What was read stays readable."""
        if self._closed:
            return
        self._closed = True
        self._tell_space()
        self._writer.stop()
        self._writer.seal()
        self._spares.close()
        self._head.close()
        for segment in self._reader.segments:
            segment.close()

    def read(self, seq: int) -> StoredRecord:
        """One durable record; raises `NotFound` if it was reclaimed, `Damage` if its bytes are damaged."""
        if seq > self._writer.durable_seq:
            raise NotFound(f"seq {seq} is not durable yet")
        return self._reader.read(seq)

    def bodies(self, seqs: NDArray[np.int64]) -> list[bytes]:
        """The bodies of durable records, in the order asked for."""
        if len(seqs) and int(seqs.max()) > self._writer.durable_seq:
            raise NotFound(f"seq {int(seqs.max())} is not durable yet")
        return self._reader.bodies(seqs)

    def frames(self, from_seq: int) -> Iterator[Frame]:
        """Replay every record from `from_seq` up to the durable head, in order."""
        return self._reader.frames(from_seq, self._writer.durable_seq)

    def stretch(self, from_seq: int, upto_seq: int) -> Stretch:
        """Where the frames of a range are, within one segment and up to the durable head; for readers elsewhere."""
        durable_seq = self._writer.durable_seq
        if from_seq > durable_seq:
            raise NotFound(f"seq {from_seq} is not durable yet")
        return self._reader.stretch(from_seq, max(from_seq, min(upto_seq, durable_seq)))

    def segments(self) -> list[SegmentInfo]:
        """The segments on disk, oldest first."""
        active = self._writer.active
        return [segment.info(segment is not active) for segment in self._reader.segments]

    def reclaim(self, upto_seq: int) -> int:
        """Delete whole segments that end at or before `upto_seq`, oldest first; return how many (R12).

        Each removal is made durable before the next, and one that fails is tried again before any other: a
        segment that is missing in the middle would be damage at the next start. What is removed is not read any more,
        durably or not.
        """
        reclaimed = 0
        try:
            for segment in self._reader.segments[:-1]:
                if segment.last_seq > upto_seq:
                    break
                self._sync_removal()
                if self._disk.exists(segment.path):
                    self._disk.remove(segment.path)
                self._removal_synced = False
                self._reader.forget(segment)
                reclaimed += 1
            self._sync_removal()
        except OSError as error:
            log.warning("a segment of the ledger could not be removed: %s", error)
        if reclaimed:
            self._log.trim(self.first_seq - 1)
        if self.low_space:
            self._writer.make_spare()
        return reclaimed

    def reclaim_trimmed(self, upto_seq: int) -> int:
        """Delete the segments that the owner has had trimmed from the log that is followed, as `reclaim` does."""
        return 0 if self._followed is None else self.reclaim(min(upto_seq, self._followed.trimmed_seq))

    def _sync_removal(self) -> None:
        """Make the last removal of a segment durable, if it is not."""
        if not self._removal_synced:
            self._disk.sync_folder(self._folder)
            self._removal_synced = True


def _begin(
    disk: Disk, folder: str, settings: LedgerSettings, clock: Clock, ledger_id: bytes | None
) -> Recovered:
    """Make the first segment of a new ledger."""
    spares = Spares(disk, folder, settings.segment_bytes)
    spares.find()
    if not spares.prepared and not spares.prepare():
        assert spares.error is not None
        raise spares.error
    spare = spares.take()
    header = SegmentHeader(ledger_id or os.urandom(16), 1, 1, clock.now_ms(), settings.segment_bytes)
    segment = begin_segment(disk, folder, spare.path, spare.file, header)
    spares.close()
    return Recovered(header.ledger_id, [segment], False, [])


def _copied(log: ReplicatedLog, settings: LedgerSettings, clock: Clock) -> Recovered:
    """The ledger in the copy of a log that was claimed."""
    copy = log.copy
    assert copy.ledger_id is not None, "a claim says the ledger's id"
    if not copy.reader.segments:
        next_seq = copy.position.next_seq
        header = SegmentHeader(copy.ledger_id, 1, next_seq, clock.now_ms(), settings.segment_bytes)
        log.begin_first(header)
    return Recovered(copy.ledger_id, copy.reader.segments, False, copy.notes)
