"""A wakeup between two threads, on which one waits for the other (an eventfd).

Who rings it lets go of the interpreter meanwhile, so that who is woken finds it free. A queue or a lock wakes with the interpreter
held: the one that is woken sleeps again until it gets it, and a lone request, which is handed from thread to thread and back,
pays for being woken twice as often.
"""

import os


class Wakeup:
    """Rung any number of times before it is heard, it wakes once."""

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        """Readable once it is rung, for who waits for other things as well."""

    def ring(self) -> None:
        """Wake the thread that waits, or will wait next."""
        os.eventfd_write(self.fd, 1)

    def wait(self) -> None:
        """Return once it has been rung since the last time."""
        os.eventfd_read(self.fd)

    def __del__(self) -> None:
        os.close(self.fd)
