"""Who may do what: bearer tokens with roles, limited to namespaces.

Pure. Only digests of tokens are kept, and a presented token is compared with all of them in constant
time. `Access.open()` is for loopback without tokens: everybody who can connect may do everything.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from tarry.core.errors import Forbidden, Invalid, NotFound
from tarry.core.names import DEFAULT_NAMESPACE, parse_destination, parse_namespace

Role = Literal["admin", "produce", "consume"]

ROLES: Final[tuple[Role, ...]] = ("admin", "produce", "consume")
ALL_NAMESPACES: Final = "*"
MIN_TOKEN_CHARS: Final = 8
"""A shorter token can be guessed over the network; this is about 48 bits at least."""
_HASHED: Final = "sha256:"


class Caller(Struct, frozen=True):
    """What the sender of a request may do."""

    name: str
    roles: frozenset[Role]
    namespaces: frozenset[str] | None
    """None means all of them."""

    def require(self, *roles: Role) -> None:
        """Raise `Forbidden` unless one of these roles is held; an admin holds all."""
        if "admin" not in self.roles and not self.roles.intersection(roles):
            raise Forbidden(f"this needs the role {' or '.join(dict.fromkeys((*roles, 'admin')))}")

    def covers(self, namespace: str) -> bool:
        """Whether the namespace is within reach."""
        return self.namespaces is None or namespace in self.namespaces

    def require_namespace(self, namespace: str) -> None:
        """Raise `Forbidden` unless the namespace is within reach."""
        if not self.covers(namespace):
            raise Forbidden(f"the token does not reach the namespace {namespace}")

    def require_everywhere(self) -> None:
        """Raise `Forbidden` if this caller is limited to some namespaces."""
        if self.namespaces is not None:
            raise Forbidden("this needs a token for all namespaces")

    def require_destination(self, destination: str, namespace: str | None) -> None:
        """Raise `Forbidden` unless messages may be sent there."""
        if self.namespaces is not None:
            for reached in namespaces_of(destination, namespace):
                self.require_namespace(reached)

    def require_sight(self, namespace: str) -> None:
        """Raise `NotFound` for a message out of reach: an id from elsewhere means nothing here."""
        if not self.covers(namespace):
            raise NotFound("there is no such message")


class Token(Struct, frozen=True):
    """A token as it is kept: its digest, never itself."""

    digest: bytes
    caller: Caller

    @classmethod
    def of(
        cls, name: str, secret: str, roles: Iterable[Role], namespaces: Iterable[str] = (ALL_NAMESPACES,)
    ) -> "Token":
        """Read a token as configured: itself, or `sha256:` and the hexadecimal of its digest."""
        if secret.startswith(_HASHED):
            try:
                digest = bytes.fromhex(secret.removeprefix(_HASHED))
            except ValueError:
                digest = b""
            if len(digest) != hashlib.sha256().digest_size:
                raise Invalid("token", f"{name}: after sha256: stand 64 hexadecimal digits")
        else:
            if len(secret) < MIN_TOKEN_CHARS:
                raise Invalid("token", f"{name}: is shorter than {MIN_TOKEN_CHARS} characters")
            digest = _digest(secret.encode())
        held, reach = frozenset(roles), frozenset(namespaces)
        if not held or not held <= set(ROLES):
            raise Invalid("roles", f"{name}: any of {', '.join(ROLES)}, and at least one")
        if not reach:
            raise Invalid("namespaces", f"{name}: names none; use * for all")
        everywhere = ALL_NAMESPACES in reach
        if not everywhere:
            for namespace in reach:
                parse_namespace(namespace, "namespaces")
        return cls(digest, Caller(name, held, None if everywhere else reach))


ANYBODY: Final = Caller("anybody", frozenset(ROLES), None)
"""The sender of a request for which no token is asked."""


class Access(Struct, frozen=True):
    """All tokens."""

    tokens: tuple[Token, ...] = ()

    @classmethod
    def open(cls) -> "Access":
        """No tokens: everybody may do everything. For loopback only."""
        return cls()

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return not self.tokens

    def known(self, secret: bytes | None) -> Caller | None:
        """Who shows this token; None is nobody known."""
        if not self.tokens:
            return ANYBODY
        if secret is None:
            return None
        digest = _digest(secret)
        found: Caller | None = None
        # All of them, always: how long it takes tells nothing about which one was near.
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.caller
        return found


def namespaces_of(destination: str, namespace: str | None) -> set[str]:
    """Every namespace whose rights and policies a message may fall under.

    A topic's is in its name; any other destination falls under the one that the message names. What could
    be either, because only the engine knows its outlets, must be allowed as both.
    """
    scheme, separator, _ = destination.partition(":")
    if separator and scheme != "persistent" and destination.startswith("://", len(scheme)):
        return {namespace or DEFAULT_NAMESPACE}
    topic = parse_destination(destination).namespace_name
    if separator and scheme != "persistent":
        return {topic, namespace or DEFAULT_NAMESPACE}
    return {topic} if namespace is None else {topic, namespace}


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
