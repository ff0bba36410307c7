"""Several servers with whole engines on one replicated log, for hundreds of seeds; and each rule broken on purpose, seen red (R14, R15)."""

from collections import Counter
from collections.abc import Callable

import pytest

from tarry.core.errors import TarryError
from tarry.engine.answer import Answer
from tarry.engine.bodies.bodies import BodyNotAtHand
from tarry.engine.flights.flights import Flights
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.finding import Finding
from tarry.engine.topics.pumping import Pumping
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.log import replicated_log
from tarry.ledger.log.envelope import EnvelopeKind, LogClaim, decode_record
from tarry.ledger.log.fold import Fold, LogPosition, Valid, ValidClaim
from tarry.ledger.log.ownership import Ownership, SentFrame
from tarry.ledger.log.replicated_log import ReplicatedLog
from tests.simulation.checker import Violation
from tests.simulation.coverage import REPLICATED_KINDS
from tests.simulation.run import Failure, run_seed
from tests.simulation.test_simulation import quiet  # noqa: F401 - a fixture

NOBODY = LogClaim("nobody", b"", b"", b"", 1, 1, 0)
SEEDS = 250
STEPS = 100
BUSY = {"take_over": 30, "wake": 60, "schedule": 30, "publish": 20}
"""The weights of every other run, in which takeovers come again and again."""
BOUND = 400
"""A sabotage must be noticed within so many seeds."""


def acknowledge_without_looking_at_the_offset(patch: pytest.MonkeyPatch) -> None:
    """R14: a frame is answered once the log has taken it, wherever it stands."""

    def taken(self: Ownership, frame: SentFrame) -> bool:
        return len(frame.offsets) == len(frame.tickets)

    patch.setattr(Ownership, "_follows", taken)


def give_up_at_any_gap(patch: pytest.MonkeyPatch) -> None:
    """R14: an owner takes the last frames of the former one for a newer owner."""
    read = Ownership.read

    def alarmed(self: Ownership, offset: int, data: bytes) -> bool:
        decoded = decode_record(data)
        if decoded is not None and decoded[0].epoch != self.position.epoch:
            self.superseded = self.superseded or ValidClaim(self.position, NOBODY)
        return read(self, offset, data)

    patch.setattr(Ownership, "read", alarmed)


def take_void_frames(patch: pytest.MonkeyPatch) -> None:
    """R14: a reader does not look at epochs."""

    class Credulous(Fold):
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
    """R14: what the former owner got in before the claim is passed over."""

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


def trim_before_the_upload(patch: pytest.MonkeyPatch) -> None:
    """R12: the log forgets what was reclaimed, although no shared snapshot goes without it."""
    trim = ReplicatedLog._trim

    def hasty(self: ReplicatedLog) -> None:
        self.trimmable_seq = self._trim_to
        trim(self)

    patch.setattr(ReplicatedLog, "_trim", hasty)


def own_with_any_id_key(patch: pytest.MonkeyPatch) -> None:
    """A server that was given another id key claims the ledger."""
    patch.setattr(LedgerCopy, "claim", None)


def depart_without_a_record(patch: pytest.MonkeyPatch) -> None:
    """R15: an owner that wakes after a takeover sends."""

    def at_once(self: Flights, fresh: object, now_ms: int) -> None:
        departures, self._unrecorded = self._unrecorded, []
        for departure in departures:
            self._send(departure)

    patch.setattr(Flights, "_record_departures", at_once)


def show_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """R15: an owner that wakes long after a takeover shows messages as it knew them."""
    patch.setattr(Journal, "in_doubt", False)


def list_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """R15: an owner that wakes long after a takeover lists what its registry has."""

    def after_flush(self: Finding, read: Callable[[], object]) -> Answer[object]:
        return self._upkeep.flush().map(lambda _: read())

    patch.setattr(Finding, "after_flush", after_flush)


def give_out_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """R15: an owner that wakes long after a takeover gives entries to its consumers."""
    patch.setattr(Pumping, "may_give_out", lambda self: True)


SABOTAGES: dict[Callable[[pytest.MonkeyPatch], None], dict[str, float]] = {
    acknowledge_without_looking_at_the_offset: {},
    give_up_at_any_gap: {},
    take_void_frames: {},
    do_not_read_up_to_the_own_claim: {},
    own_with_any_id_key: {},
    trim_before_the_upload: {},
    depart_without_a_record: {},
    show_without_a_proof: {"take_over": 20, "wake": 60},
    list_without_a_proof: {"take_over": 20, "wake": 60},
    give_out_without_a_proof: {"take_over": 20, "wake": 60, "publish": 30, "attach": 20, "subscribe": 10},
}
"""The broken rule, and the weights with which a run notices it soon."""


def test_nothing_answered_by_any_owner_is_lost_and_every_fault_happens() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = run_seed(seed, STEPS, focus=BUSY if seed % 2 else {}, replicated=True)
        met += simulation.coverage.ended(simulation)
    assert not [kind for kind in REPLICATED_KINDS if not met[kind]], "a kind of fault never happened"


def test_a_seed_gives_the_same_run_again() -> None:
    def trace() -> list[str]:
        lines: list[str] = []
        run_seed(7, STEPS, lines.append, replicated=True)
        return [line for line in lines if " object at 0x" not in line]

    first = trace()
    assert len(first) > 50
    assert trace() == first


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_the_judge_notices(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    for seed in range(BOUND):
        try:
            run_seed(seed, STEPS, focus=SABOTAGES[sabotage], replicated=True)
        except Failure as failure:
            # It must be the judge that notices, or a reader whose record is gone, and not some accident.
            if not isinstance(failure.__cause__, Violation | TarryError | BodyNotAtHand):
                raise
            return
    pytest.fail(f"nobody noticed in {BOUND} seeds: {sabotage.__doc__}")
