"""Shared parts of the tests of the ledger: records, a clock that stands still, and the checker."""

from random import Random

import numpy as np
from google_crc32c import value

from tarry.core.errors import TarryError
from tarry.ledger.disk import Disk
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import Encoded

FOLDER = "ledger"
SMALL = LedgerSettings(segment_bytes=4096 + 3072, spare_segments=1)
LEDGER_ID = bytes(range(16))


class StandingClock:
    """Always the same instant."""

    def now_ms(self) -> int:
        return 1_700_000_000_000


def record(n: int, size: int = 40) -> Encoded:
    """A record whose every field follows from `n`."""
    body = (b"%d." % n * (size // 2 + 1))[:size]
    return Encoded(1 + n % 11, n * 7 % 65536, value(body), n * 1000, n // 2, n * 500, body)


def open_ledger(disk: Disk, settings: LedgerSettings = SMALL) -> Ledger:
    return Ledger.open(disk, FOLDER, settings, StandingClock(), new_ledger_id=LEDGER_ID)


def contents(ledger: Ledger) -> list[Encoded]:
    """Every record, by replay; dense from the first seq to the durable head."""
    found: list[Encoded] = []
    seq = ledger.first_seq
    for frame in ledger.frames(seq):
        assert frame.first_seq == seq
        assert frame.count == len(frame.fixed) > 0
        assert frame.bodies == b"".join(map(frame.body, range(frame.count)))
        for i, (kind, _, lane, _, _, fire_at_ms, kills_seq, kills_fire_at_ms) in enumerate(
            frame.fixed.tolist()
        ):
            body = frame.body(i)
            found.append(Encoded(kind, lane, value(body), fire_at_ms, kills_seq, kills_fire_at_ms, body))
        seq += frame.count
    assert seq == ledger.durable_seq + 1 == ledger.next_seq
    return found


class Model:
    """A model of the ledger's content, told of every append and every answer."""

    def __init__(self) -> None:
        self.units: list[tuple[int, list[Encoded]]] = []
        """(first seq, records), in order, since the last restart and before."""
        self.answered_seq = 0
        """Everything up to here was answered as durable."""
        self.failures: list[TarryError] = []
        self.reclaimed_upto = 0

    def append(self, ledger: Ledger, unit: list[Encoded], essential: bool = False) -> None:
        """Append, and take note of the answer when it comes."""
        last_seq = ledger.next_seq + len(unit) - 1

        def done(error: TarryError | None) -> None:
            if error is not None:
                self.failures.append(error)
                return
            assert last_seq > self.answered_seq, "answers come in the order of the seqs"
            assert ledger.durable_seq >= last_seq, "an answer comes after the durable head has passed it"
            self.answered_seq = last_seq

        first_seq = ledger.append(unit, done, essential=essential)
        assert first_seq == (self.units[-1][0] + len(self.units[-1][1]) if self.units else 1)
        self.units.append((first_seq, unit))

    def check_after_restart(self, ledger: Ledger) -> list[Encoded]:
        """Nothing answered is lost, units are whole, and every record is what was appended."""
        durable_seq = ledger.durable_seq
        assert durable_seq >= self.answered_seq, f"answered up to {self.answered_seq}, found {durable_seq}"
        assert ledger.first_seq <= self.reclaimed_upto + 1, "more was reclaimed than was asked for"
        ends = [0, *(first + len(unit) - 1 for first, unit in self.units)]
        assert durable_seq in ends, "a unit was torn apart"
        del self.units[ends.index(durable_seq) :]
        self.answered_seq = durable_seq
        appended = [encoded for _, unit in self.units for encoded in unit]
        found = contents(ledger)
        assert found == appended[ledger.first_seq - 1 :]
        return found

    def check(self, ledger: Ledger) -> None:
        """A running ledger holds exactly what was answered, read in every way there is."""
        appended = [encoded for _, unit in self.units for encoded in unit]
        first, last = ledger.first_seq, ledger.durable_seq
        assert last == self.answered_seq
        bodies = ledger.bodies(np.arange(first, last + 1))
        assert [encoded.body for encoded in appended[first - 1 : last]] == bodies
        for seq in Random(last).sample(range(first, last + 1), min(20, last + 1 - first)):
            stored, expected = ledger.read(seq), appended[seq - 1]
            assert stored == (seq, expected.kind, expected.lane, expected.fire_at_ms, expected.body)
