"""Who may do what: bearer tokens with roles, limited to namespaces.

Pure. Only digests of tokens are kept, and a presented token is compared with all of them in constant
time. `Access.open()` is for loopback without tokens: everybody who can connect may do everything, so what a
browser can be made to send from elsewhere is refused there (`check_browser`).
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from tarry.core.errors import Forbidden, Invalid, NotFound
from tarry.core.names import DEFAULT_NAMESPACE, parse_namespace, parse_topic
from tarry.doors.http.problems import no_token

Role = Literal["admin", "produce", "consume"]

ROLES: Final[tuple[Role, ...]] = ("admin", "produce", "consume")
ALL_NAMESPACES: Final = "*"
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
            # A short token can be guessed over the network; this is about 48 bits at least.
            if len(secret) < 8:
                raise Invalid("token", f"{name}: is shorter than 8 characters")
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


_ANYBODY: Final = Caller("anybody", frozenset(ROLES), None)


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

    def caller(self, authorization: bytes | None) -> Caller:
        """Who sends this `Authorization` header; raises a 401 for nobody known."""
        if not self.tokens:
            return _ANYBODY
        if authorization is None:
            raise no_token("send a token: Authorization: Bearer …")
        scheme, _, secret = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise no_token("the authorization scheme is not Bearer")
        digest = _digest(secret.strip())
        found: Caller | None = None
        # All of them, always: how long it takes tells nothing about which one was near.
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.caller
        if found is None:
            raise no_token("the token is not known", b'Bearer error="invalid_token"')
        return found


def namespaces_of(destination: str, namespace: str | None) -> set[str]:
    """Every namespace whose rights and policies a message may fall under.

    A topic's is in its name; any other destination falls under the one that the message names. What could
    be either, because only the engine knows its outlets, must be allowed as both.
    """
    scheme, separator, _ = destination.partition(":")
    if separator and scheme != "persistent" and destination.startswith("://", len(scheme)):
        return {namespace or DEFAULT_NAMESPACE}
    topic = parse_topic(destination, "destination").namespace_name
    if separator and scheme != "persistent":
        return {topic, namespace or DEFAULT_NAMESPACE}
    return {topic} if namespace is None else {topic, namespace}


def check_browser(
    host: bytes | None, origin: bytes | None, site: bytes | None, allowed_hosts: frozenset[str]
) -> None:
    """Raise `Forbidden` for a request that some other web page makes a browser on this machine send.

    Without tokens a page could otherwise post to loopback by itself (cross-site), or under a name of its
    own that it has pointed at loopback (DNS rebinding). Programs send neither header, and their
    `Host` is an address or localhost.
    """
    if site == b"cross-site":
        raise Forbidden("requests from other web pages are not taken without tokens")
    name = _host_name(host)
    if origin is not None and _host_name(origin.partition(b"://")[2]) != name:
        raise Forbidden("requests from other web pages are not taken without tokens")
    if name is not None and not _is_local(name) and name not in allowed_hosts:
        raise Forbidden("this Host is not known here; without tokens use localhost or an address")


def _host_name(host: bytes | None) -> str | None:
    if host is None:
        return None
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _is_local(name: str) -> bool:
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
