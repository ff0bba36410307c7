"""A random life of a ledger, from a seed: everything that can happen to it, in any order."""

from errno import EIO, ENOSPC
from random import Random

import pytest

from tarry.core.errors import TarryError, Unavailable
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.testing.disk import SimulatedCrash, SimulatedDisk
from tests.unit.ledger_kit import Model, open_ledger, record

SEEDS = 250
TURNS = 60


class Life:
    """One ledger and the model of it, driven by one generator."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.settings = LedgerSettings(
            segment_bytes=4096 + self.random.choice((600, 1500, 4000)),
            commit_max_records=self.random.choice((3, 1000)),
            commit_max_bytes=self.random.choice((400, 1 << 20)),
            spare_segments=1,
        )
        self.disk = SimulatedDisk(
            self.random, self.random.choice((None, None, 5 * self.settings.segment_bytes))
        )
        self.model = Model()
        self.n = 0
        self.ledger: Ledger | None = None

    def live(self) -> None:
        """Turn by turn; whatever ends the process, it is started again and checked."""
        for _ in range(TURNS):
            try:
                self.turn()
            except SimulatedCrash:
                self.end(self.disk.crash)
        self.end(self.disk.crash)
        self.start()

    def turn(self) -> None:
        random = self.random
        if self.ledger is None:
            self.start()
            return
        if self.ledger.failed is not None:
            assert not self.ledger.commit()
            self.end(random.choice((self.disk.crash, self.disk.kill)))
            return
        act = random.choices(
            (
                self.append,
                self.commit,
                self.reclaim,
                self.close,
                self.crash,
                self.kill,
                self.fault,
                self.plot,
            ),
            (10, 10, 1, 1, 1, 1, 1, 2),
        )[0]
        act(self.ledger)

    def start(self) -> None:
        try:
            self.ledger = open_ledger(self.disk, self.settings)
        except Unavailable:
            # A fault that was waiting hit the start, or there is no space for a first segment.
            self.end(self.random.choice((self.disk.crash, self.disk.kill)))
            return
        self.model.check_after_restart(self.ledger)

    def end(self, how: object) -> None:
        assert callable(how)
        how()
        self.ledger = None

    def append(self, ledger: Ledger) -> None:
        size = self.random.choice((1, 1, 3))
        try:
            unit = [record(self.n + i, self.random.choice((0, 30, 150))) for i in range(size)]
            self.model.append(ledger, unit, essential=self.random.random() < 0.3)
        except TarryError:
            return
        self.n += size

    def commit(self, ledger: Ledger) -> None:
        while ledger.commit() and self.random.random() < 0.7:
            pass
        assert ledger.durable_seq == self.model.answered_seq

    def reclaim(self, ledger: Ledger) -> None:
        upto = self.random.randint(0, ledger.durable_seq)
        self.model.reclaimed_upto = max(self.model.reclaimed_upto, upto)
        ledger.reclaim(upto)

    def close(self, ledger: Ledger) -> None:
        ledger.close()
        assert ledger.failed or ledger.durable_seq == ledger.next_seq - 1 == self.model.answered_seq
        self.ledger = None

    def crash(self, ledger: Ledger) -> None:
        self.end(self.disk.crash)

    def kill(self, ledger: Ledger) -> None:
        self.end(self.disk.kill)

    def fault(self, ledger: Ledger) -> None:
        operation = self.random.choice(("write", "sync", "rename", "sync_folder", "create", "remove"))
        self.disk.fail_next(operation, self.random.choice((EIO, ENOSPC)))

    def plot(self, ledger: Ledger) -> None:
        self.disk.crash_at(self.random.randint(1, 15))


def live(seed: int) -> None:
    life = Life(seed)
    try:
        life.live()
    except BaseException as error:
        error.add_note(f"seed {seed}; {list(life.disk.recent)[-12:]}")
        raise


@pytest.mark.parametrize("tens", range(10))
def test_lives(tens: int) -> None:
    for seed in range(tens * SEEDS // 10, (tens + 1) * SEEDS // 10):
        live(seed)


@pytest.mark.soak
def test_many_lives() -> None:
    for seed in range(20_000):
        live(seed)
