"""Entries out of an event stream (`…/subscriptions/{name}/events`), without I/O."""

import msgspec

from tarry.client.call import Unreachable
from tarry.client.shapes import Received

_decode = msgspec.json.Decoder(Received).decode


class EventReader:
    """Cuts the bytes of one stream into entries; comments, by which the server keeps it alive, are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Received]:
        """The entries whose events this piece completes."""
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        entries = []
        for event in events:
            data = event.partition(b"data: ")[2]
            if data:
                try:
                    entries.append(_decode(data))
                except msgspec.DecodeError as error:
                    raise Unreachable(
                        f"the server's answer is not what this client expects: {error}"
                    ) from None
        return entries
