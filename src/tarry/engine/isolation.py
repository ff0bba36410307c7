"""Isolation: an error about one message ends that message, and never the process.

Whoever sees to many messages in one go does so without looking out for errors, and only when one escapes finds the
message that provokes it. That message ends as failed, with a reason and its place in the ledger, as a damaged one does.
Errors that are nobody's own stay faults: the machine's (memory, files), the registry's damage, a ledger that takes
nothing, and records that are in the ledger while memory does not follow them.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from tarry.core.errors import TarryError, Unavailable
from tarry.core.telemetry import faults
from tarry.registry.table import RegistryDamage

log = logging.getLogger(__name__)

FAULTS: Final = (MemoryError, OSError, RegistryDamage, Unavailable)
"""Errors that say nothing about a message."""


class Isolation:
    """Tells errors about one message from faults, and counts them."""

    def __init__(
        self, counters: "Counter[str]", on_error: Callable[[int, Exception], None] | None = None
    ) -> None:
        """`on_error` takes the seq and the error; an error that it raises is a fault."""
        self.fault: Exception | None = None
        """Set once the ledger holds a record that memory does not follow: from then on every error is a fault."""
        self._on_error = on_error
        self._counters = counters

    def check(self, error: Exception) -> None:
        """Raise an error again if it is a fault."""
        if self.fault is not None or isinstance(error, FAULTS):
            raise error

    def reason(self, seq: int, error: Exception, doing: str = "was dispatched") -> str:
        """The reason with which the message at a seq ends; raises the error again if it is a fault."""
        self.check(error)
        self._counters["isolated"] += 1
        log.error(
            "an error while the message at seq %d %s, which ends it: %s", seq, doing, faults.told(error)
        )
        if self._on_error is not None:
            self._on_error(seq, error)
        # The text of other errors may hold what somebody sent.
        what = str(error) if isinstance(error, TarryError) else type(error).__name__
        return f"an error while it {doing}, at seq {seq}: {what}"
