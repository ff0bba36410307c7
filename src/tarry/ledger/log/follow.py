"""Following a ledger in a replicated log, by its records alone: for the pipeline, whose tasks read ranges of their own (R14).

    LogScan       reads the log once, with the fold of all readers, and keeps places: where the fold can be taken up again
    LogFollower   a reader by seq: it begins at the last place that is not behind the seq, and folds from there on

Places can be pickled (`KnownLog`): a task that is given them reads its range and nothing else. Nothing here writes. What was
trimmed is `NotFound`, what is not what was written is `Damage`, and what cannot be reached for a while `Unavailable`.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from tarry.core.errors import Damage, NotFound, Unavailable
from tarry.ledger.aside import flagged
from tarry.ledger.frame import FORMAT_VERSION, BadFrame, check_frame, decode_header
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import BEGINNING, Fold, LogPosition, ValidClaim, ValidFrame, folded
from tarry.ledger.log.partition import LogPartition, LogRecord
from tarry.ledger.replay import Frame, frames_of
from tarry.ledger.segment import BLOCK_BYTES, Scanned

READ_WAIT_S: Final = 1.0
PLACE_EVERY_BYTES: Final = 4 << 20
"""About so much of the log is read in vain before a range that begins anywhere."""
AGAIN_S: Final = 0.1
"""So long after an error the log is asked again."""


class LogBegin(Struct, frozen=True):
    """A place from which a log that was trimmed can be read, and whose ledger it is."""

    position: LogPosition
    claim: LogClaim
    """The last valid one before it."""


class KnownLog(Struct):
    """The places in a log that a reader knows. Travels to tasks."""

    places: list[LogPosition] = []
    """In order, each with a higher next seq than the one before; the first is where the log can be read from."""
    claim: LogClaim | None = None
    """The last valid one that was read."""
    next_seq: int = 0
    """Up to here, and without it, every seq is known to be in the log."""
    aside: frozenset[int] = frozenset()
    """Seqs of records that servers go on without."""

    def place_before(self, seq: int) -> LogPosition | None:
        """The last place at which a reader of this seq may begin; None if none is so early."""
        at = bisect_right(self.places, seq, key=lambda place: place.next_seq)
        return self.places[at - 1] if at else None

    def note(self, place: LogPosition) -> None:
        """Take note of a place; of two with one next seq the later one is kept, since the log may be trimmed to it."""
        while self.places and self.places[-1].next_seq >= place.next_seq:
            self.places.pop()
        self.places.append(place)

    def trimmed(self, first_offset: int) -> None:
        """Forget the places that the log does not have any more."""
        while self.places and self.places[0].offset < first_offset:
            self.places.pop(0)


Connect = Callable[[], LogPartition]


class LogNotes:
    """Facts that a log does not state and its readers need: without shared storage nobody knows them."""

    def begin(self, first_offset: int, end: int) -> LogBegin:
        """A place to begin at in a log that was trimmed up to an offset; raises `Unavailable`."""
        raise Unavailable(
            f"the log begins at offset {first_offset}, and only the snapshots in shared storage tell what it begins with: "
            "set cluster.shared, or give the source the option shared"
        )

    def set_aside(self) -> frozenset[int]:
        """The seqs of records that servers go on without; raises `Unavailable`."""
        return frozenset()


class LogScan:
    """One reading of a log, from its begin to its present end and on; for several threads."""

    def __init__(
        self, connect: Connect, notes: LogNotes | None = None, known: KnownLog | None = None
    ) -> None:
        """Begin at the last place of `known`, if there is one."""
        self.connect = connect
        self._notes = notes or LogNotes()
        self._lock = threading.Lock()
        self._known = known or KnownLog()
        self._fold: Fold | None = None
        self._position = BEGINNING
        """After the last valid record."""
        self._passed_bytes = 0
        """Read since the last place."""
        self._claimed_seq: int | None = None
        """The next seq of a claim after which no frame was read: its owner may not have told yet what it goes on without."""
        self._partition: LogPartition | None = None

    def known(self) -> KnownLog:
        """All that is known by now."""
        with self._lock:
            known = self._known
            return KnownLog(list(known.places), known.claim, known.next_seq, known.aside)

    def read_on(self, patience_s: float) -> KnownLog:
        """Read the newest records; a log that does not answer is asked again for so long. Gives all that is known then."""
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                with self._lock:
                    self._read_on()
                return self.known()
            except Unavailable:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(AGAIN_S)

    def _read_on(self) -> None:
        if self._partition is None:
            self._partition = self.connect()
        partition, known = self._partition, self._known
        first_offset, end = partition.ends()
        if self._fold is None:
            self._position = self._begin(first_offset, end)
        # Anew from the last valid record, lest an error of the last time has left something out.
        fold = self._fold = Fold(self._position)
        if end < fold.offset:
            raise Unavailable(
                f"{partition.name} ends at offset {end}, and was read up to {fold.offset}: the log has lost records, or "
                "the topic was made anew"
            )
        while fold.offset < end:
            records = partition.read(fold.offset, READ_WAIT_S)
            if not records:
                raise Unavailable(f"{partition.name} has records up to {end} and does not give them")
            for record in records:
                self._take(fold, record, partition.name)
        known.trimmed(first_offset)
        if not known.places:
            known.note(self._position)
        if self._claimed_seq is not None:
            known.aside = self._notes.set_aside()
            if known.next_seq > self._claimed_seq:
                self._claimed_seq = None
        if known.claim is not None and known.claim.moving:
            raise Unavailable(
                f"{partition.name}: the ledger is being moved, or was moved away, by {known.claim.node}: read it where it is"
            )

    def _begin(self, first_offset: int, end: int) -> LogPosition:
        known = self._known
        if not known.places and first_offset == 0:
            known.note(BEGINNING)
        elif not known.places:
            begin = self._notes.begin(first_offset, end)
            known.claim = begin.claim
            known.note(begin.position)
        position = known.places[-1]
        known.next_seq = position.next_seq
        if position.epoch:
            self._claimed_seq = position.next_seq
        return position

    def _take(self, fold: Fold, record: LogRecord, name: str) -> None:
        valid = folded(fold, *record, name)
        known = self._known
        self._passed_bytes += len(record.data)
        if isinstance(valid, ValidClaim):
            if not self._position.epoch:
                # Where the ledger begins is only known now.
                known.places.clear()
                known.note(valid.position)
            known.claim = _checked(valid, known.claim, name)
            self._claimed_seq = valid.position.next_seq
        elif isinstance(valid, ValidFrame) and (
            # The log is trimmed to where a segment begins.
            valid.offset == 0 or self._passed_bytes >= PLACE_EVERY_BYTES
        ):
            known.note(self._position)
            self._passed_bytes = 0
        if valid is not None:
            self._position = valid.position
            known.next_seq = valid.position.next_seq


def _checked(valid: ValidClaim, before: LogClaim | None, name: str) -> LogClaim:
    claim = valid.claim
    if claim.format_version > FORMAT_VERSION:
        raise Unavailable(
            f"{name}: the owner, {claim.node}, writes format version {claim.format_version}; this program reads up to "
            f"version {FORMAT_VERSION}: run the newer program"
        )
    if before is not None and before.ledger_id != claim.ledger_id:
        raise Unavailable(f"{name}: {claim.node} has claimed it for another ledger than it was of before")
    if claim.next_seq > valid.position.next_seq:
        raise Damage(
            name,
            valid.position.offset - 1,
            f"{claim.node} claimed it at seq {claim.next_seq}, and it has records only below seq {valid.position.next_seq}: "
            "the log has lost records",
        )
    return claim


class LogFollower:
    """A reader of the ledger in a log, as `tarry.ledger.follow.Follower` says."""

    def __init__(self, scan: LogScan, patience_s: float) -> None:
        """A log that does not answer, or does not give what it has, is asked again for so long."""
        self._scan = scan
        self._patience_s = patience_s

    def ledger_id(self) -> bytes:
        """Whose records these are."""
        claim = self._scan.read_on(self._patience_s).claim
        if claim is None:
            raise Unavailable("there is no ledger in the log yet; start a server first")
        return claim.ledger_id

    def durable_seq(self) -> int:
        """The last valid seq."""
        known = self._scan.read_on(self._patience_s)
        return known.next_seq - 1

    def first_seq(self) -> int:
        """The first seq that has not been trimmed."""
        return self.bounds()[0]

    def bounds(self) -> list[int]:
        """The seqs of known places."""
        return [place.next_seq for place in self._scan.read_on(self._patience_s).places]

    def place_of(self, seq: int) -> LogPosition | None:
        """Where a reader of this seq may begin."""
        return self._scan.known().place_before(seq)

    def set_aside(self) -> frozenset[int]:
        """The seqs of records that servers go on without."""
        return self._scan.read_on(self._patience_s).aside

    def frames(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        """Every record of a range."""
        known = self._scan.known()
        if not known.places or upto_seq >= known.next_seq:
            known = self._scan.read_on(self._patience_s)
        upto_seq = min(upto_seq, known.next_seq - 1)
        if from_seq > upto_seq:
            return
        place = known.place_before(from_seq)
        if place is None:
            raise NotFound(
                f"seq {from_seq} of the ledger has been reclaimed; {known.places[0].next_seq} is the first there is"
            )
        partition = self._scan.connect()
        try:
            proved = self._proved(partition, place, from_seq, upto_seq)
            for frame in frames_of(proved, partition.name, from_seq, upto_seq):
                yield flagged(frame, known.aside)
        finally:
            partition.close()

    def _proved(
        self, partition: LogPartition, place: LogPosition, from_seq: int, upto_seq: int
    ) -> Iterator[Scanned]:
        """The valid frames of a range, each with its offset in the log."""
        fold = Fold(place)
        while fold.position.next_seq <= upto_seq:
            for record in self._records(partition, fold.offset, upto_seq):
                valid = folded(fold, *record, partition.name)
                if isinstance(valid, ValidFrame) and valid.header.records:
                    if valid.position.next_seq > from_seq:
                        yield _proved_frame(valid, record.offset, partition.name)
                    if valid.position.next_seq > upto_seq:
                        break

    def _records(self, partition: LogPartition, offset: int, upto_seq: int) -> Sequence[LogRecord]:
        """The next records, of which there are some."""
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                records = partition.read(offset, READ_WAIT_S)
                if records:
                    return records
                trouble = Unavailable(
                    f"{partition.name} has records up to seq {upto_seq} and does not give them"
                )
            except Unavailable as error:
                trouble = error
            if time.monotonic() >= deadline_s:
                raise trouble
            time.sleep(AGAIN_S)


def _proved_frame(valid: ValidFrame, at_offset: int, name: str) -> Scanned:
    at = 0 if valid.offset else BLOCK_BYTES
    header, data = valid.header, valid.data
    try:
        decode_header(data, at, header.segment_id, header.first_seq, len(data) - at)
        check_frame(data, at, header)
    except BadFrame as bad:
        raise Damage(name, at_offset, str(bad)) from None
    return Scanned(at_offset, header, data, at)
