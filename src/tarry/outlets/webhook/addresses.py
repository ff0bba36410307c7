"""Which addresses a webhook may be sent to: none inside the operator's own network, unless allowed.

The ranges are the IANA special-purpose registries, written out so that the answer does not depend on
the version of Python. For IPv6 the rule is turned round: only global unicast (2000::/3) is open, less
the special ranges in it. An address that carries an IPv4 address (mapped, NAT64, 6to4) is judged by
that one, because that is where its packets end up.

This module judges addresses. It reads no URL, resolves no name and opens no socket.
"""

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_FORBIDDEN_4: Final = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared (carrier NAT)"),
        ("127.0.0.0/8", "loopback"),
        # A public address by its number, but inside every Azure network it is the host's own service.
        ("168.63.129.16/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_FORBIDDEN_6: Final = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("64:ff9b:1::/48", "private (local NAT64)"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private (site-local)"),
        ("ff00::/8", "multicast"),
        # Inside global unicast. 2001::/23 holds Teredo, whose packets end at an embedded IPv4 address.
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    )
)

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")

_NAME: Final = re.compile(r"\.?[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")


def embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address at which packets to this one end up, if it says so itself."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def forbidden_kind(address: Address) -> str | None:
    """The kind of range that makes this address forbidden without an allow list, or None."""
    if isinstance(address, IPv6Address):
        inner = embedded(address)
        if inner is not None:
            return forbidden_kind(inner)
        for network6, kind in _FORBIDDEN_6:
            if address in network6:
                return kind
        return None if address in _GLOBAL_UNICAST else "reserved"
    for network4, kind in _FORBIDDEN_4:
        if address in network4:
            return kind
    return None


class AddressRules:
    """The forbidden ranges with an operator's exceptions (`allow`) and additions (`deny`).

    An entry of `allow` is a network (`10.1.0.0/16`), an address, a host name, or a domain with a
    leading dot (`.svc.cluster.local`: every name below it). An allowed name may lead to any address.
    `deny` holds networks and addresses only: a name would be no protection, since an address has many.
    `allow` wins over `deny`, so that a hole can be made in a wide network.
    """

    def __init__(self, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> None:
        self._allowed: list[Network] = []
        self._allowed_names: set[str] = set()
        self._allowed_domains: tuple[str, ...] = ()
        self._denied = [_network(entry) for entry in deny]
        for entry in allow:
            name = entry.lower().rstrip(".")
            if "/" in entry or ":" in entry or name.rpartition(".")[2].isdigit():
                self._allowed.append(_network(entry))
            elif _NAME.fullmatch(name) is None:
                raise ValueError(f"{entry!r} is neither a network, an address nor a host name")
            elif name.startswith("."):
                self._allowed_domains += (name,)
            else:
                self._allowed_names.add(name)

    def allows_name(self, host: str) -> bool:
        """Whether this host was allowed by its name, whatever it resolves to."""
        name = host.lower().rstrip(".")
        return name in self._allowed_names or name.endswith(self._allowed_domains)

    def why_refused(self, host: str, address: Address) -> str | None:
        """The reason that forbids connecting to this address for this host; None if it is allowed."""
        if self.allows_name(host) or _within(address, self._allowed):
            return None
        kind = forbidden_kind(address)
        if kind is None and _within(address, self._denied):
            kind = "denied"
        return kind


def read_address(text: str) -> Address | None:
    """The address that a socket would connect to, or None if this is not an address but a name."""
    try:
        # The scope of an IPv6 address («%eth0») says by which interface, not where to.
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _within(address: Address, networks: list[Network]) -> bool:
    inner = embedded(address) if isinstance(address, IPv6Address) else None
    return any(address in network or (inner is not None and inner in network) for network in networks)


def _network(entry: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise ValueError(f"{entry!r} is not a network or an address: {error}") from None
