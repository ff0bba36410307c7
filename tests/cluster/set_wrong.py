"""Tarry's command line with a wall clock that a file sets wrong, by so many milliseconds, while elapsed time goes on as it does.

libfaketime does that to a whole process, and with a clock that is behind has every `time.sleep` fail; here it is the server's clock
alone, and the alarm that rings by it.
"""

import os
from pathlib import Path
from typing import Final

from tarry.cli.app import main
from tarry.core.time.clock import SystemClock
from tarry.engine.loop import driver
from tarry.engine.loop.alarm import Alarm
from tarry.serve.composition import matrix, server

FILE: Final = "CLOCK_WRONG_BY"
"""The variable that names the file."""
LOOK_EVERY_MS: Final = 100


class WrongClock(SystemClock):
    """The machine's wall clock, wrong by what the file says."""

    def __init__(self) -> None:
        self._file = Path(os.environ[FILE])
        self._looked_ms = -LOOK_EVERY_MS
        self._wrong_ms = 0

    @property
    def wrong_ms(self) -> int:
        """By how much it is wrong now; ahead if that is positive."""
        if (elapsed_ms := self.elapsed_ms()) - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = elapsed_ms
            self._wrong_ms = int(self._file.read_text() or 0)
        return self._wrong_ms

    def now_ms(self) -> int:
        """The instant that it shows."""
        return super().now_ms() + self.wrong_ms


class WrongAlarm(Alarm):
    """Rings by a wrong clock, as it is when the alarm is set; never for long, so that a step is seen."""

    def __init__(self, clock: WrongClock) -> None:
        super().__init__()
        self._clock = clock

    def set(self, at_ms: int) -> None:
        """Ring at an instant that the clock shows."""
        super().set(at_ms - self._clock.wrong_ms)


if __name__ == "__main__":
    wrong = WrongClock()
    for module in (server, matrix):
        vars(module).update(SystemClock=lambda: wrong)
    vars(driver).update(Alarm=lambda: WrongAlarm(wrong))
    main()
