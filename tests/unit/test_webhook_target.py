"""Destinations of the webhook outlet. A URL that could be read in two ways must not be read at all."""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_DESTINATION_BYTES
from tarry.core.time.clock import SystemClock
from tarry.outlets.webhook import WebhookOutlet, WebhookSettings
from tarry.outlets.webhook.target import parse

OUTLET = WebhookOutlet(WebhookSettings(), SystemClock())

FORBIDDEN_4 = [
    "127.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "192.168.1.1",
    "172.16.0.1",
    "100.64.0.1",
    "0.0.0.0",
]


def test_the_parts() -> None:
    target = parse("HTTPS://Hooks.Example:8443/a%2Fb/../c;d?sig=%2f%3D+[x]&y=a/b?")
    assert (target.scheme, target.host, target.port, target.path) == (
        "https",
        "hooks.example",
        8443,
        "/a%2Fb/../c;d",
    )
    assert target.address is None
    assert target.authority == "hooks.example:8443"
    # Byte for byte: a signed query must survive.
    assert str(target.url) == "https://hooks.example:8443/a%2Fb/../c;d?sig=%2f%3D+[x]&y=a/b?"


def test_defaults() -> None:
    assert (parse("http://a.example").port, parse("http://a.example").path) == (80, "/")
    assert (parse("https://a.example?x").port, parse("https://a.example?x").path) == (443, "/")


def test_addresses_as_hosts() -> None:
    assert parse("http://1.2.3.4:81/").address == IPv4Address("1.2.3.4")
    six = parse("http://[2606:4700:0::1111]/")
    assert (six.address, six.host, six.authority) == (
        IPv6Address("2606:4700::1111"),
        "2606:4700::1111",
        "[2606:4700::1111]:80",
    )


def test_a_last_dot_belongs_to_the_url_and_not_to_the_host() -> None:
    target = parse("http://a.example./x")
    assert target.host == "a.example"
    assert target.url.raw_host == "a.example."


@pytest.mark.parametrize(
    ("destination", "complaint"),
    [
        ("", "absolute URL"),
        ("a.example/x", "absolute URL"),
        ("ftp://a.example/", "absolute URL"),
        ("file:///etc/passwd", "absolute URL"),
        ("javascript://a.example/", "absolute URL"),
        ("http:/a.example/", "absolute URL"),
        ("http:a.example/", "absolute URL"),
        (" http://a.example/", "absolute URL"),
        ("http:///path", "host is missing"),
        ("http://:80/", "host is missing"),
        ("http://?x", "host is missing"),
        ("http://user:pw@a.example/", "user name"),
        ("http://@a.example/", "user name"),
        ("http://a.example\\@127.0.0.1/", "not a valid URL"),
        ("http://127.0.0.1\\.a.example/", "not a valid URL"),
        ("http://a.example#@b.example/", "fragment"),
        ("http://a.example/x#y", "fragment"),
        ("http://a.example/ x", "not a valid URL"),
        ("http://a.example/\r\nHost: b", "not a valid URL"),
        ("http://a.example/x\n", "not a valid URL"),
        ("http://a.example/\x00", "not a valid URL"),
        ("http://a.example/%zz", "not a valid URL"),
        ("http://a%2eexample/", "not a valid URL"),
        ("http://%31%32%37.0.0.1/", "not a valid URL"),
        ("http://a.example/ü", "ASCII"),
        ("http://bücher.example/", "ASCII"),
        ("http://\uff11\uff12\uff17.0.0.1/", "ASCII"),
        ("http://127\u30020\u30020\u30021/", "ASCII"),
        ("http://a.example:0/", "port"),
        ("http://a.example:65536/", "port"),
        ("http://a.example:/", "not a valid URL"),
        ("http://a.example:8x/", "not a valid URL"),
        ("http://a.example:-1/", "not a valid URL"),
        ("http://a..example/", "not a valid name"),
        ("http://.example/", "not a valid name"),
        ("http://-a.example/", "not a valid name"),
        ("http://" + "a" * 64 + ".example/", "not a valid name"),
        ("http://" + "a." * 127 + "example/", "not a valid name"),
        ("http://[::1/", "not a valid URL"),
        ("http://[1::2::3]/", "IPv6"),
        ("http://[fe80::1%25eth0]/", "not a valid URL"),
        ("http://[v1.x]/", "not a valid URL"),
        ("http://1.2.3/", "four decimal"),
        ("http://256.1.1.1/", "four decimal"),
        ("http://1.2.3.4./", "four decimal"),
        ("http://01.2.3.4/", "four decimal"),
        ("http://0x8.8.8.8/", "four decimal"),
        ("http://134744072/", "four decimal"),
        ("http://a.example.0x7f/", "four decimal"),
        ("http://a.example/" + "x" * MAX_DESTINATION_BYTES, "longer"),
    ],
)
def test_what_is_no_destination(destination: str, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as caught:
        OUTLET.check(destination)
    assert caught.value.field == "destination"
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "destination",
    [
        "http://a.example",
        "https://a.example/",
        "http://a_b.example/x",
        "http://xn--bcher-kva.example/",
        "http://1.1.1.1/",
        "http://[2606:4700:4700::1111]:8080/",
        "http://localhost.example/",
        "http://0x.example/",
        "http://1.a/",
        "https://a.example/?next=http://127.0.0.1/",
        "https://a.example/p?mail=a@b.example",
    ],
)
def test_what_is_a_destination(destination: str) -> None:
    OUTLET.check(destination)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "x.localhost", "x.localhost."])
def test_localhost_needs_no_resolver(host: str) -> None:
    with pytest.raises(Invalid, match="loopback"):
        OUTLET.check(f"http://{host}:8080/")
    for allow in ("127.0.0.0/8", "::1", host):
        WebhookOutlet(WebhookSettings(allow=(allow,)), SystemClock()).check(f"http://{host}:8080/")


def test_literal_addresses_can_be_allowed() -> None:
    outlet = WebhookOutlet(WebhookSettings(allow=("10.1.0.0/16",)), SystemClock())
    outlet.check("http://10.1.2.3/")
    outlet.check("http://[::ffff:10.1.2.3]/")
    with pytest.raises(Invalid, match="private"):
        outlet.check("http://10.2.2.3/")


def _number(draw: st.DrawFn, value: int) -> str:
    zeros = "0" * draw(st.integers(0, 4))
    return draw(
        st.sampled_from([str(value), f"0{zeros}{value:o}", f"0x{zeros}{value:x}", f"0X{zeros}{value:X}"])
    )


@st.composite
def _notations(draw: st.DrawFn) -> tuple[IPv4Address, str]:
    """A forbidden IPv4 address in some notation that somebody's parser understands."""
    base = int(IPv4Address(draw(st.sampled_from(FORBIDDEN_4))))
    address = base & 0xFFFFFF00 | draw(st.integers(0, 255))
    octets = address.to_bytes(4, "big")
    form = draw(
        st.sampled_from(["parts", "mapped", "mapped-hex", "nat64", "6to4", "full", "unicode", "percent"])
    )
    plain = ".".join(map(str, octets))
    if form == "parts":
        count = draw(st.integers(1, 4))
        parts = [*octets[: count - 1], int.from_bytes(octets[count - 1 :], "big")]
        host = ".".join(_number(draw, part) for part in parts) + draw(st.sampled_from(["", "."]))
    elif form == "mapped":
        host = f"[::ffff:{plain}]"
    elif form == "mapped-hex":
        host = f"[0:0:0:0:0:FFFF:{address >> 16:x}:{address & 0xFFFF:04X}]"
    elif form == "nat64":
        host = f"[64:ff9b::{plain}]"
    elif form == "6to4":
        host = f"[2002:{address >> 16:x}:{address & 0xFFFF:x}::{draw(st.integers(0, 0xFFFF)):x}]"
    elif form == "full":
        host = f"[{IPv6Address((0xFFFF << 32) | address).exploded}]"
    elif form == "unicode":
        host = plain.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)})
    else:
        host = "".join(f"%{ord(character):02x}" for character in plain)
    return IPv4Address(address), host


@given(_notations(), st.sampled_from(["http", "https", "HTTP"]), st.sampled_from(["", ":80", ":8080"]))
def test_no_notation_of_a_forbidden_address_is_accepted(
    notation: tuple[IPv4Address, str], scheme: str, port: str
) -> None:
    _, host = notation
    with pytest.raises(Invalid):
        OUTLET.check(f"{scheme}://{host}{port}/x")


def test_the_notations_mean_what_the_property_says() -> None:
    """The C library is the witness that those hosts are addresses, and not just any text."""
    for host in ("0x7f.1", "2130706433", "017700000001", "127.1", "0177.0.0.01", "0X7F000001"):
        assert socket.inet_aton(host) == b"\x7f\x00\x00\x01"
        with pytest.raises(Invalid):
            OUTLET.check(f"http://{host}/")


_HOST_TEXT = st.one_of(
    st.text(st.sampled_from("0123456789abcdefxX.:[]%-_"), max_size=24),
    st.lists(
        st.sampled_from(["127", "0", "1", "0x7f", "0177", "10", ".", "a", "255", "[", "]", ":", "ffff"]),
        max_size=9,
    ).map("".join),
)


@given(_HOST_TEXT)
def test_whatever_is_accepted_is_no_forbidden_address_to_the_c_library(host: str) -> None:
    try:
        OUTLET.check(f"http://{host}/")
    except Invalid:
        return
    try:
        found = socket.getaddrinfo(host.strip("[]"), 80, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return  # a name
    for *_, address in found:
        literal = ip_address(str(address[0]))
        tunnel = isinstance(literal, IPv6Address) and literal in IPv6Network("64:ff9b::/96")
        assert literal.is_global or tunnel
        assert not literal.is_multicast


def test_order_keys() -> None:
    assert OUTLET.order_key("https://a.example/x", None) is None
    one = OUTLET.order_key("https://A.example/x?token=1", "k")
    assert one == "https://a.example:443/x#k"
    assert one == OUTLET.order_key("https://a.example:443/x", "k")
    assert one != OUTLET.order_key("https://a.example/x", "other")
    assert one != OUTLET.order_key("http://a.example/x", "k")
    assert one != OUTLET.order_key("https://a.example/y", "k")
    assert OUTLET.order_key("https://a.example/x", "") == "https://a.example:443/x#"
    assert OUTLET.order_key("not a url", "k") == "not a url#k"
