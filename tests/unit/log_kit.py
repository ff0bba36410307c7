"""Shared parts of the tests of a ledger on a replicated log: nodes with disks of their own."""

from tarry.core.errors import TarryError
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog
from tarry.ledger.record import Encoded
from tarry.testing.disk import SimulatedDisk
from tarry.testing.log import SimulatedLog
from tests.unit.ledger_kit import FOLDER, LEDGER_ID, SMALL, StandingClock, record

UNITS = [[record(n, 10 * n), record(n + 1)] for n in range(40)]


class Node:
    """A server with a disk of its own."""

    def __init__(
        self, log: SimulatedLog, name: str, disk: SimulatedDisk | None = None, key: bytes = b"key"
    ) -> None:
        self.disk = disk or SimulatedDisk()
        self.partition = log.connect(name)
        self.log = ReplicatedLog(self.partition, LedgerCopy.open(self.disk, FOLDER), LogNode(name, key))
        self.name = name

    def own(self, settings: LedgerSettings = SMALL) -> Ledger:
        self.log.claim(0, self.name.encode(), LEDGER_ID)
        return Ledger.open(self.disk, FOLDER, settings, StandingClock(), log=self.log)

    def follow(self) -> None:
        while self.log.lag():
            self.log.follow()

    def files(self) -> dict[str, bytes]:
        return {
            name: self.disk.open(f"{FOLDER}/{name}").read(1 << 30, 0)
            for name in self.disk.listdir(FOLDER)
            if name[0] == "0"
        }


def fill(ledger: Ledger, units: list[list[Encoded]]) -> list[TarryError | None]:
    """Append units and see them answered."""
    answers: list[TarryError | None] = []
    for unit in units:
        ledger.append(unit, answers.append)
        while ledger.commit(0.1):
            pass
    return answers
