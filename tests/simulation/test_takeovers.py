"""Several servers and one replicated log, for some hundreds of seeds; and each rule broken on purpose, seen red (R14)."""

from collections import Counter
from collections.abc import Callable

import pytest

from tarry.core.errors import Damage
from tarry.ledger.log import replicated_log
from tarry.ledger.log.envelope import EnvelopeKind, LogClaim, decode_record
from tarry.ledger.log.fold import Fold, LogPosition, Valid, ValidClaim
from tarry.ledger.log.ownership import Ownership, SentFrame
from tarry.ledger.log.replicated_log import ReplicatedLog
from tests.simulation.takeovers import KINDS, Wrong, run_seed

SEEDS = 1_000
NOBODY = LogClaim("nobody", b"", b"", b"", 1, 1, 0)
BOUND = 400
"""Seeds within which every sabotage must be noticed."""


def test_nothing_answered_by_anybody_is_missing() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        met += run_seed(seed)
    assert not [kind for kind in KINDS if not met[kind]], "a kind of fault never happened"
    assert met["answered"] > 10 * SEEDS


def acknowledge_without_looking_at_the_offset(patch: pytest.MonkeyPatch) -> None:
    def taken(self: Ownership, frame: SentFrame) -> bool:
        return len(frame.offsets) == len(frame.tickets)

    patch.setattr(Ownership, "_follows", taken)


def give_up_at_any_gap(patch: pytest.MonkeyPatch) -> None:
    read = Ownership.read

    def alarmed(self: Ownership, offset: int, data: bytes) -> bool:
        decoded = decode_record(data)
        if decoded is not None and decoded[0].epoch != self.position.epoch:
            self.superseded = self.superseded or ValidClaim(self.position, NOBODY)
        return read(self, offset, data)

    patch.setattr(Ownership, "read", alarmed)


def take_void_frames(patch: pytest.MonkeyPatch) -> None:
    class Credulous(Fold):
        """A reader that does not look at epochs."""

        __slots__ = ()

        def take(self, offset: int, data: bytes) -> Valid | None:
            decoded = decode_record(data)
            if decoded is None or decoded[0].kind is not EnvelopeKind.FRAME:
                return super().take(offset, data)
            epoch, self._epoch = self._epoch, decoded[0].epoch
            try:
                valid = super().take(offset, data)
            finally:
                self._epoch = epoch
            return None if valid is None else valid._replace(position=self.position)

    patch.setattr(replicated_log, "Fold", Credulous)


def do_not_read_up_to_the_own_claim(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: ReplicatedLog, epoch: int, nonce: bytes) -> list[Valid]:
        _, _, next_seq = self._fold.position
        for one in self._partition.read(self._partition.ends()[1] - 1, 0):
            valid = Fold(LogPosition(one.offset, epoch - 1, next_seq)).take(*one)
            if isinstance(valid, ValidClaim):
                self.copy.take(valid)
                self._fold = Fold(valid.position)
                self._ownership = Ownership(valid.position)
        return []

    patch.setattr(ReplicatedLog, "_read_own_claim", at_once)


def trim_what_somebody_needs(patch: pytest.MonkeyPatch) -> None:
    trim = ReplicatedLog._trim

    def hasty(self: ReplicatedLog) -> None:
        self.trimmable_seq = self._trim_to
        trim(self)

    patch.setattr(ReplicatedLog, "_trim", hasty)


@pytest.mark.parametrize(
    "sabotage",
    [
        acknowledge_without_looking_at_the_offset,
        give_up_at_any_gap,
        take_void_frames,
        do_not_read_up_to_the_own_claim,
        trim_what_somebody_needs,
    ],
)
def test_the_judge_notices(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    for seed in range(BOUND):
        try:
            run_seed(seed)
        except (Wrong, Damage):
            # The judge, or a reader: any other exception is no notice of it.
            return
    pytest.fail(f"{sabotage.__name__} went unnoticed in {BOUND} seeds")
