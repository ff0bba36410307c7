"""A count of frames that lead to nothing: floods of them end the connection (CVE-2019-9512 to 9518, CVE-2023-44487).

Each such frame is cheap, and a connection's reader takes thousands of them from one packet; so their number within about a
second is bounded. A call that is served costs nothing here.
"""

from typing import Final

from tarry.grpc.frames import Broken, ErrorCode

MAX_STRAIN: Final = 10_000
"""The strain that a client may cause between two calls of `forgive`. Clients that read a stream as fast as they can cause
about 3,000 a second: each 16 KiB that they read bring two updates of windows."""
RESET_STRAIN: Final = 5
"""The strain of a call that is begun and given up. Clients cancel whole crowds of calls at once."""
REFUSED_STRAIN: Final = 20
"""The strain of a call that is refused or malformed; of any other frame it is 1."""


class Calm:
    """The strain on one connection."""

    def __init__(self) -> None:
        self._strain = 0

    def strain(self, more: int = 1) -> None:
        """Count a frame that leads to nothing; raises `Broken` when there were too many."""
        self._strain += more
        if self._strain > MAX_STRAIN:
            raise Broken(
                ErrorCode.ENHANCE_YOUR_CALM, "more control frames, resets and refused calls than are taken"
            )

    def forgive(self) -> None:
        """Begin to count anew: a second has passed."""
        self._strain = 0
