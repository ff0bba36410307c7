"""The judge of a replicated log: it folds every record as it comes in, and holds owners to what is valid there (R14)."""

from errno import ESTALE

from tarry.ledger.log.envelope import EnvelopeKind, LogClaim, decode_record
from tarry.ledger.log.fold import Fold, Valid, ValidClaim, ValidFrame
from tarry.ledger.log.partition import LogRecord
from tarry.testing.world import World
from tests.simulation.checker import Violation


class LogJudge:
    """The frames of a log as they read to whoever reads all of it, in order."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.frames: list[ValidFrame] = []
        self.parts = 0
        """How many records were parts of frames."""
        self._ends: dict[int, int] = {}
        """By epoch: the last seq that is valid in it."""
        self._id_check: bytes | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the present owner."""
        return self.fold.position.epoch

    def take(self, record: LogRecord) -> Valid | None:
        """Take the record that came into the log; return what is valid by it, if anything is."""
        valid = self.fold.take(*record)
        decoded = decode_record(record.data)
        if decoded is not None and decoded[0].kind is EnvelopeKind.FRAME:
            self.parts += decoded[0].parts > 1
        if isinstance(valid, ValidClaim):
            self._check_key(valid.claim)
        elif isinstance(valid, ValidFrame):
            self._check_dense(valid)
        self._ends[self.epoch] = self.fold.position.next_seq - 1
        return valid

    def _check_key(self, claim: LogClaim) -> None:
        if self._id_check is not None and claim.id_check != self._id_check:
            raise Violation(f"{claim.node} claimed the ledger with another id key than its own")
        self._id_check = claim.id_check

    def _check_dense(self, frame: ValidFrame) -> None:
        before = self.frames[-1] if self.frames else None
        follows = before.first_seq + before.header.records if before is not None else 1
        if frame.first_seq != follows:
            raise Violation(f"in the log seq {frame.first_seq} follows {follows - 1}")
        self.frames.append(frame)

    def check(self, world: World) -> None:
        """Frames that this server takes for durable, and may have answered, are valid in the log by its epoch; if it gave up, it had to."""
        assert world.side is not None
        epoch, ledger = world.side.epoch, world.ledger
        valid_upto = self._ends.get(epoch, 0)
        if ledger.durable_seq > valid_upto:
            raise Violation(
                f"{world.node} takes seq {ledger.durable_seq} for durable, and the log is valid up to {valid_upto} in epoch {epoch}"
            )
        if ledger.failed is not None and ledger.failed.errno == ESTALE and self.epoch == epoch:
            raise Violation(f"{world.node} gave up in epoch {epoch}, and nobody has claimed the log since")

    def check_copy(self, world: World) -> None:
        """The segments of a server are the frames that are valid in the log, byte for byte."""
        assert world.side is not None
        segments = {one.number: one for one in world.side.copy.reader.segments}
        for frame in self.frames:
            segment = segments.get(frame.segment)
            if segment is not None and segment.file.read(len(frame.data), frame.offset) != frame.data:
                raise Violation(
                    f"{world.node} has other bytes than the log at {frame.offset} of {segment.path}"
                )
