"""Which addresses may be sent to. The standard library is the independent opinion."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.outlets.webhook.addresses import AddressRules, embedded, forbidden_kind, read_address


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("0.0.0.0", "unspecified"),
        ("10.255.255.255", "private"),
        ("100.64.0.1", "shared (carrier NAT)"),
        ("100.100.100.200", "shared (carrier NAT)"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("168.63.129.16", "cloud metadata"),
        ("169.254.169.254", "link-local"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.0.0.192", "reserved"),
        ("192.168.1.1", "private"),
        ("198.19.255.255", "benchmarking"),
        ("203.0.113.9", "documentation"),
        ("224.0.0.251", "multicast"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::7f00:1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:10.0.0.1", "private"),
        ("64:ff9b::169.254.169.254", "link-local"),
        ("64:ff9b:1::1", "private (local NAT64)"),
        ("2002:7f00:1::", "loopback"),
        ("2002:a9fe:a9fe::1", "link-local"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "reserved"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("fe80::1", "link-local"),
        ("fec0::1", "private (site-local)"),
        ("ff02::1", "multicast"),
        ("5f00::1", "reserved"),
        ("100::1", "reserved"),
    ],
)
def test_forbidden_without_an_allow_list(address: str, kind: str) -> None:
    assert forbidden_kind(ip_address(address)) == kind
    assert AddressRules().why_refused("any.example", ip_address(address)) == kind


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.15",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2a00:1450:4001:81b::200e",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
        "2002:101:101::1",
    ],
)
def test_public_addresses_are_open(address: str) -> None:
    assert forbidden_kind(ip_address(address)) is None


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_what_the_standard_library_calls_special_is_forbidden_v4(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert forbidden_kind(address) is not None


@given(
    st.one_of(
        st.integers(0, 2**128 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0x20 << 120, (0x40 << 120) - 1),
        st.integers(0, 2**96 - 1).map(lambda low: (0x2001 << 112) | low),
    ).map(IPv6Address)
)
def test_what_the_standard_library_calls_special_is_forbidden_v6(address: IPv6Address) -> None:
    if embedded(address) is None and (not address.is_global or address.is_multicast or address.is_reserved):
        assert forbidden_kind(address) is not None


@given(st.integers(0, 2**32 - 1))
def test_an_embedded_address_is_judged_like_the_plain_one(number: int) -> None:
    plain = forbidden_kind(IPv4Address(number))
    for carrier in ((0xFFFF << 32) | number, (0x64FF9B << 96) | number, (0x2002 << 112) | (number << 80)):
        assert forbidden_kind(IPv6Address(carrier)) == plain


def test_networks_and_addresses_can_be_allowed() -> None:
    rules = AddressRules(allow=["127.0.0.0/8", "10.1.2.3", "fd00:1::/32"])
    assert rules.why_refused("a.example", ip_address("127.1.2.3")) is None
    assert rules.why_refused("a.example", ip_address("::ffff:127.1.2.3")) is None
    assert rules.why_refused("a.example", ip_address("10.1.2.3")) is None
    assert rules.why_refused("a.example", ip_address("10.1.2.4")) == "private"
    assert rules.why_refused("a.example", ip_address("fd00:1::5")) is None
    assert rules.why_refused("a.example", ip_address("fd00:2::5")) == "private"


def test_names_and_domains_can_be_allowed() -> None:
    rules = AddressRules(allow=["Hooks.internal", ".svc.cluster.local"])
    inside = ip_address("10.0.0.1")
    for allowed in ("hooks.internal", "HOOKS.internal.", "a.svc.cluster.local", "a.b.svc.cluster.local"):
        assert rules.why_refused(allowed, inside) is None, allowed
    for refused in (
        "xhooks.internal",
        "a.hooks.internal",
        "svc.cluster.local",
        "xsvc.cluster.local",
        "10.0.0.1",
    ):
        assert rules.why_refused(refused, inside) == "private", refused


def test_no_name_is_allowed_by_an_empty_list() -> None:
    assert not AddressRules().allows_name("")
    assert not AddressRules().allows_name("any.example")


def test_denied_networks_and_holes_in_them() -> None:
    rules = AddressRules(allow=["8.8.8.8"], deny=["8.8.0.0/16", "2a00::/16"])
    assert rules.why_refused("a.example", ip_address("8.8.4.4")) == "denied"
    assert rules.why_refused("a.example", ip_address("::ffff:8.8.4.4")) == "denied"
    assert rules.why_refused("a.example", ip_address("8.8.8.8")) is None
    assert rules.why_refused("a.example", ip_address("2a00::1")) == "denied"
    assert rules.why_refused("a.example", ip_address("8.9.0.1")) is None


@pytest.mark.parametrize(
    "entry", ["10.0.0.1/8", "300.0.0.1", "10.0.0", "", ".", "a b", "http://x", "*.example", "fe80::/200"]
)
def test_an_entry_that_means_nothing_is_an_error(entry: str) -> None:
    with pytest.raises(ValueError, match="is n"):
        AddressRules(allow=[entry])


def test_denying_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a network"):
        AddressRules(deny=["internal.example"])


def test_reading_what_a_socket_connects_to() -> None:
    assert read_address("127.0.0.1") == IPv4Address("127.0.0.1")
    assert read_address("fe80::1%eth0") == IPv6Address("fe80::1")
    assert read_address("localhost") is None
    assert read_address("0x7f.1") is None
