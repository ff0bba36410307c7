"""The seqs of records that are set aside, at this start or earlier ones (`tarry.engine.dispatch.setting_aside`)."""

import logging
from typing import Final

from tarry.core.errors import Damage, Unavailable
from tarry.core.telemetry import faults
from tarry.engine.isolation import FAULTS

log = logging.getLogger(__name__)

REASON: Final = "set aside at a start, because it could not be processed"
"""The reason of messages that end because their record was set aside."""


class Aside:
    """The seqs that are set aside."""

    def __init__(self) -> None:
        self.seqs: set[int] = set()
        self.known: frozenset[int] = frozenset()
        """Seqs that the registry remembered from earlier starts."""
        self.skipped: set[int] = set()
        """Seqs that were not replayed at this start."""

    def warnings(self) -> list[str]:
        """The seqs, in words."""
        if not self.seqs:
            return []
        return [f"records set aside at a start, by their seqs: {', '.join(map(str, sorted(self.seqs)))}"]


class Unprocessable(Unavailable):
    """A record of the ledger cannot be replayed: the start is refused, and says how to go on without it."""

    def __init__(self, seq: int, error: Exception) -> None:
        super().__init__(
            f"the record at seq {seq} of the ledger cannot be processed ({type(error).__name__}; the log has its place"
            f" in the code): `tarry serve --set-aside {seq}` starts without it"
        )


def explained(seq: int, error: Exception) -> Exception:
    """The error to raise while a record is replayed: how to go on without it, if it is about the record."""
    if isinstance(error, (*FAULTS, Damage)):
        return error
    log.critical("the record at seq %d cannot be processed: %s", seq, faults.told(error))
    return Unprocessable(seq, error)
