"""An alarm at an instant of the wall clock, exact to some microseconds.

The timers of an event loop count in milliseconds and round up, so that messages would be one or two of them late before
anything is done about it. This is Linux's timerfd; Python has calls for it from 3.13 on.
"""

import ctypes
import errno
import os
from contextlib import suppress
from typing import Final

_REALTIME: Final = 0
_ABSOLUTE: Final = 1
_CANCEL_ON_SET: Final = 2
"""The alarm rings as well when the clock is set."""


class _Timer(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Rings once, at the instant that it was set to last, or when the clock is set before."""

    def __init__(self) -> None:
        self.fd = _checked(_libc.timerfd_create(_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC))
        """Readable once it rings."""

    def set(self, at_ms: int) -> None:
        """Ring at an instant; at once if it is past."""
        # An instant of zero would be none at all.
        seconds, ms = divmod(max(1, at_ms), 1000)
        timer = _Timer(0, 0, seconds, ms * 1_000_000)
        try:
            _checked(_libc.timerfd_settime(self.fd, _ABSOLUTE | _CANCEL_ON_SET, ctypes.byref(timer), None))
        except OSError as error:
            # The clock was set and that was not heard yet; the alarm is set all the same.
            if error.errno != errno.ECANCELED:
                raise

    def heard(self) -> None:
        """Be still again."""
        # It may have been set anew since it rang; and where it was the clock that made it ring, the call says so.
        with suppress(BlockingIOError):
            try:
                os.read(self.fd, 8)
            except OSError as error:
                if error.errno != errno.ECANCELED:
                    raise

    def __del__(self) -> None:
        os.close(self.fd)


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
