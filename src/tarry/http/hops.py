"""Fields of a message that is passed on: those for one connection only stay behind (RFC 9110, 7.6.1)."""

from collections.abc import Iterable, Set
from typing import Final

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


def end_to_end(
    fields: Iterable[tuple[bytes, bytes]], without: Set[bytes] = frozenset()
) -> list[tuple[bytes, bytes]]:
    """The fields that go on, names in lower case: none for this connection, none that `Connection` names, none of `without`."""
    lowered = [(name.lower(), value) for name, value in fields]
    named = (value.split(b",") for name, value in lowered if name == b"connection")
    dropped = ONE_HOP.union(without, (one.strip().lower() for names in named for one in names))
    return [(name, value) for name, value in lowered if name not in dropped]
