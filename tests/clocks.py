"""A wall clock that is stepped under a real process by libfaketime, while elapsed time goes on as it does."""

from pathlib import Path

from tests.processes import need

LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"
"""The dynamic linker puts the machine's own folder in."""


class SteppedClock:
    """The clock of every process that is started with its variables; the test is skipped where it cannot be had."""

    def __init__(self, folder: Path) -> None:
        need("faketime", "faketime")
        self._offset = folder / "offset"
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock so far ahead of the real one."""
        self._offset.write_text(f"{seconds:+d}")

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that has this clock."""
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
