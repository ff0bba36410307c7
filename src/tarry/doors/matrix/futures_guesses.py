"""Guessing tokens: whoever shows too many wrong ones in a row is not listened to for a while.

Pure; memory is bounded: beyond `MAX_SOURCES` the source that was heard of longest ago is forgotten. Addresses of IPv6
count by their first 64 bits, which is what one customer has.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

from msgspec import Struct

MAX_SOURCES: Final = 10_000
_MAX_CHARS: Final = 64


class _Tries(Struct):
    wrong: int = 0
    until_ms: int = 0
    """Not listened to before this instant."""


class Guesses:
    """Wrong tokens in a row, by their source."""

    def __init__(self, allowed: int, pause_ms: int) -> None:
        """After `allowed` wrong ones a source is paused; 0 allows any number."""
        self._allowed = allowed
        self._pause_ms = pause_ms
        self._sources: OrderedDict[str, _Tries] = OrderedDict()

    def wait_ms(self, source: str, now_ms: int) -> int:
        """How long a source is not listened to; 0 if it is."""
        tries = self._sources.get(_named(source))
        if tries is None or not 0 < tries.until_ms - now_ms <= self._pause_ms:
            return 0
        return tries.until_ms - now_ms

    def wrong(self, source: str, now_ms: int) -> None:
        """A source has shown a token that means nothing, or nothing any more."""
        if not self._allowed:
            return
        name = _named(source)
        tries = self._sources.setdefault(name, _Tries())
        self._sources.move_to_end(name)
        tries.wrong += 1
        if tries.wrong >= self._allowed:
            tries.wrong = 0
            tries.until_ms = now_ms + self._pause_ms
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)

    def right(self, source: str) -> None:
        """A source has shown a valid token: what came before is forgotten."""
        self._sources.pop(_named(source), None)

    def __len__(self) -> int:
        return len(self._sources)


def _named(source: str) -> str:
    try:
        address = ip_address(source)
    except ValueError:
        return source[:_MAX_CHARS]
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
