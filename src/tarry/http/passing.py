"""Requests that are passed on to another server: the fields that go with them, and the response as it comes back.

Fields that are meant for one connection only stay behind (RFC 9110, 7.6.1).
"""

from collections.abc import AsyncIterable, Iterable, Set
from contextlib import AsyncExitStack
from typing import Final

from tarry.http.errors import Gone
from tarry.http.response import Sender, Streamed

ONE_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
    }
)
_OWN_DATE: Final = frozenset({b"date"})
"""The connection dates every response."""


def end_to_end(
    fields: Iterable[tuple[bytes, bytes]], without: Set[bytes] = frozenset()
) -> list[tuple[bytes, bytes]]:
    """The fields that go on, names in lower case: none for this connection, none that `Connection` names, none of `without`."""
    lowered = [(name.lower(), value) for name, value in fields]
    named = (value.split(b",") for name, value in lowered if name == b"connection")
    dropped = ONE_HOP.union(without, (one.strip().lower() for names in named for one in names))
    return [(name, value) for name, value in lowered if name not in dropped]


def relayed(
    status: int,
    fields: Iterable[tuple[bytes, bytes]],
    pieces: AsyncIterable[bytes],
    exchange: AsyncExitStack,
    failures: tuple[type[Exception], ...],
) -> Streamed:
    """Another server's response, sent as it comes. `exchange` is open until then; `failures` is what breaks it off."""

    async def run(sender: Sender) -> None:
        async with exchange:
            try:
                async for piece in pieces:
                    await sender.write(piece)
            except failures:
                # What has been sent cannot be taken back: a response that ends too soon is seen to be broken.
                raise Gone from None

    return Streamed(status, end_to_end(fields, _OWN_DATE), run)
