"""The places that are paused, as the records say. An entry of the catalogue's records each."""

from collections import Counter
from functools import lru_cache
from typing import Final

import msgspec

from tarry.core.messages.pause import PausablePlace, Pause, PlaceKind, places_of
from tarry.ledger.record import Catalogued

PAUSE: Final = "pause"
"""The sort of catalogue records that are about pauses."""

_decoder = msgspec.json.Decoder(Pause)
_places = lru_cache(maxsize=4096)(places_of)


class Pauses:
    """All pauses by place."""

    sorts = (PAUSE,)

    def __init__(self) -> None:
        self.by_place: dict[PausablePlace, Pause] = {}
        self.by_namespace: Counter[str] = Counter()
        self._holding: set[PausablePlace] = set()

    def __bool__(self) -> bool:
        """Whether anything is paused: asked for every batch of due messages."""
        return bool(self._holding)

    def take(self, sort: str, name: str, value: bytes | None) -> None:
        """Take the pause of a place; None ends it."""
        place = PausablePlace.parse(name)
        self._holding.discard(place)
        before = self.by_place.pop(place, None)
        self.by_namespace[place.namespace] += (value is not None) - (before is not None)
        if not self.by_namespace[place.namespace]:
            del self.by_namespace[place.namespace]
        if value is None:
            return
        pause = self.by_place[place] = _decoder.decode(value)
        if not pause.resumed:
            self._holding.add(place)

    def at(self, namespace: str, destination: str, owner: str) -> PlaceKind | None:
        """The kind of place by which a message is held; None if it may go out."""
        if not self._holding:
            return None
        return next(
            (one.kind for one in _places(namespace, destination, owner) if one in self._holding), None
        )

    @property
    def resumed(self) -> list[PausablePlace]:
        """Places whose messages are on their way back."""
        return [place for place, pause in self.by_place.items() if pause.resumed]


def paused(place: PausablePlace, pause: Pause | None) -> Catalogued:
    """The record of a pause, or of its end."""
    return Catalogued(PAUSE, place.full, None if pause is None else msgspec.json.encode(pause))
