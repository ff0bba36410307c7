"""Access: who may do what, and how fast, by bearer tokens with roles, limited to namespaces and to a rate.

Only digests of tokens are kept, and a presented token is compared with all of them in constant time. `Access.open()` is for
loopback without tokens: everybody who can connect may do everything. The tokens may be replaced while the server runs: a caller
whose token is gone or means something else now has lost its standing, and whatever was opened with it has to end.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Final, Literal

from msgspec import Struct

from tarry.core.errors import Forbidden, Invalid, NotFound, RateLimited
from tarry.core.names import DEFAULT_NAMESPACE, parse_destination, parse_namespace
from tarry.core.tenants.rates import Rates
from tarry.core.time.clock import SystemClock

Role = Literal["admin", "produce", "consume"]

ROLES: Final[tuple[Role, ...]] = ("admin", "produce", "consume")
ALL_NAMESPACES: Final = "*"
MIN_TOKEN_CHARS: Final = 8
"""A shorter token can be guessed over the network; this is about 48 bits at least."""
_HASHED: Final = "sha256:"
_elapsed_ms: Final = SystemClock().elapsed_ms


class Standing:
    """The state of a token while the server runs: its rate, how much of that is used, and whether it is still in force."""

    def __init__(
        self, name: str = "", per_second: float = 0, now_ms: Callable[[], int] = _elapsed_ms
    ) -> None:
        """`per_second`: operations, 0 for any number; `now_ms` is a clock that nobody can set."""
        self.in_force = True
        self.per_second = per_second
        self.limited = 0
        """How often it was told to wait."""
        self._name = name
        self._key = ("token", name)
        self._rates = Rates()
        self._now_ms = now_ms

    def spend(self) -> None:
        """Use up one operation; raises `RateLimited` if there is none now, and `Forbidden` if the token is not in force."""
        if not self.in_force:
            raise Forbidden(f"the token {self._name} is not in force any more")
        if self.per_second:
            wait_ms = self._rates.wait_ms(self._key, self.per_second, self._now_ms())
            if wait_ms:
                self.limited += 1
                raise RateLimited(
                    wait_ms, f"the token {self._name} may make {self.per_second:g} operations a second"
                )

    def at_once(self, count: int) -> int:
        """How many of so many operations may be taken together, so that it takes a second at the most to make up for them."""
        return min(count, max(1, int(self.per_second))) if self.per_second else count

    def charge(self, count: int) -> int:
        """Count operations that are done in any case; gives how many milliseconds to wait before the next one."""
        if not self.per_second or not count:
            return 0
        wait_ms = self._rates.charge(self._key, self.per_second, self._now_ms(), count)
        self.limited += wait_ms > 0
        return wait_ms


class Caller(Struct, frozen=True):
    """The rights of a request's sender."""

    name: str
    roles: frozenset[Role]
    namespaces: frozenset[str] | None
    """None means all of them."""
    standing: Standing = Standing()
    """By default that of everybody: no rate, and always in force."""

    def require(self, *roles: Role) -> None:
        """Raise `Forbidden` unless the caller holds one of these roles; an admin holds all."""
        if "admin" not in self.roles and not self.roles.intersection(roles):
            raise Forbidden(f"the operation needs the role {' or '.join(dict.fromkeys((*roles, 'admin')))}")

    def covers(self, namespace: str) -> bool:
        """Whether the namespace is within reach."""
        return self.namespaces is None or namespace in self.namespaces

    def require_namespace(self, namespace: str) -> None:
        """Raise `Forbidden` unless the namespace is within reach."""
        if not self.covers(namespace):
            raise Forbidden(f"the token does not reach the namespace {namespace}")

    def require_listed(self, namespace: str | None) -> None:
        """Raise `Forbidden` unless the caller may list the contents of a namespace, or without one of all namespaces."""
        if namespace is not None:
            self.require_namespace(parse_namespace(namespace))
        elif self.namespaces is not None:
            raise Invalid("namespace", "name the namespace to list; the token does not reach all of them")

    def require_everywhere(self) -> None:
        """Raise `Forbidden` if this caller is limited to some namespaces."""
        if self.namespaces is not None:
            raise Forbidden("the operation needs a token for all namespaces")

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
        cls,
        name: str,
        secret: str,
        roles: Iterable[Role],
        namespaces: Iterable[str] = (ALL_NAMESPACES,),
        per_second: float = 0,
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
        return cls(digest, Caller(name, held, None if everywhere else reach, Standing(name, per_second)))

    @property
    def meaning(self) -> tuple[object, ...]:
        """All of it but its rate: a token with another meaning is another token."""
        return self.digest, self.caller.name, self.caller.roles, self.caller.namespaces


ANYBODY: Final = Caller("anybody", frozenset(ROLES), None)
"""The sender of a request for which no token is asked."""


class Access:
    """All tokens."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens = tuple(tokens)
        # One of its own: it loses its standing once tokens are asked for.
        self._anybody = Caller(ANYBODY.name, ANYBODY.roles, ANYBODY.namespaces, Standing(ANYBODY.name))

    @classmethod
    def open(cls) -> "Access":
        """No tokens: everybody may do everything. For loopback only."""
        return cls()

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return not self.tokens

    @property
    def has_tenants(self) -> bool:
        """Whether several tokens share the server, and not all of them reach all of it."""
        return len(self.tokens) > 1 and any(token.caller.namespaces is not None for token in self.tokens)

    def replace(self, tokens: Iterable[Token]) -> None:
        """Have these tokens in force from now on, and no others.

        One that means what it meant keeps its caller, and with it what was opened; only its rate changes.
        """
        before = {token.meaning: token for token in self.tokens}
        kept = []
        for token in tokens:
            same = before.pop(token.meaning, token)
            same.caller.standing.per_second = token.caller.standing.per_second
            kept.append(same)
        for gone in before.values():
            gone.caller.standing.in_force = False
        self.tokens = tuple(kept)
        self._anybody.standing.in_force = self.is_open

    def known(self, secret: bytes | None) -> Caller | None:
        """The caller whose token this is; None for an unknown one."""
        if not self.tokens:
            return self._anybody
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
