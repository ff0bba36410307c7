"""Streams of a connection that ended lately, and the side that ended each: frames that still come for them mean different things.

A client that has ended a stream sends nothing more on it; one whose stream was ended from here may not know it yet. Only
the latest are remembered, and data of a stream that is forgotten are let pass: strictness serves nobody there.
"""

from collections import deque
from typing import Final

REMEMBERED: Final = 64
"""Streams that clients ended."""
REMEMBERED_CUT: Final = 1_000
"""Streams that were ended from here before their clients had sent all: as many as are open at once."""


class EndedStreams:
    """The numbers of streams that are over."""

    def __init__(self) -> None:
        self._by_client: deque[int] = deque(maxlen=REMEMBERED)
        self._cut: dict[int, None] = {}

    def add(self, id_: int, *, whole: bool) -> None:
        """A stream is over; `whole` says that its client will send nothing more on it."""
        if whole:
            self._by_client.append(id_)
            return
        self._cut[id_] = None
        if len(self._cut) > REMEMBERED_CUT:
            del self._cut[next(iter(self._cut))]

    def complete(self, id_: int) -> None:
        """The client of a stream that was cut has now ended it too."""
        if id_ in self._cut:
            del self._cut[id_]
            self._by_client.append(id_)

    def by_client(self, id_: int) -> bool:
        """Whether the client has ended this stream: nothing more may come on it."""
        return id_ in self._by_client

    def cut(self, id_: int) -> bool:
        """Whether the stream was ended from here: more may be on its way."""
        return id_ in self._cut
