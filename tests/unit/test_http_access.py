import hashlib

import pytest

from tarry.core.errors import Forbidden, Invalid, NotFound
from tarry.core.tenants.access import Access, Token
from tarry.core.tenants.browser import check_browser
from tarry.doors.http.gate import sender
from tarry.doors.http.problems import HttpRefusal

ACCESS = Access(
    (
        Token.of("ops", "admin-secret", ["admin"]),
        Token.of("shop", "sha256:" + hashlib.sha256(b"shop-secret").hexdigest(), ["produce"], ["acme/shop"]),
        Token.of("reader", "reader-secret", ["consume"], ["acme/shop", "acme/stock"]),
    )
)


@pytest.mark.parametrize(
    ("authorization", "name"),
    [(b"Bearer admin-secret", "ops"), (b"bearer  shop-secret ", "shop"), (b"BEARER reader-secret", "reader")],
)
def test_a_token_tells_its_caller(authorization: bytes, name: str) -> None:
    assert sender(ACCESS, authorization).name == name


@pytest.mark.parametrize(
    "authorization",
    [
        None, b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic admin-secret", b"admin-secret",
        b"Bearer admin-secret2", b"Bearer admin-secre", b"Bearer \xff\xfe",
        # The digest is no token.
        b"Bearer sha256:" + hashlib.sha256(b"shop-secret").hexdigest().encode(),
        b"Bearer " + hashlib.sha256(b"shop-secret").hexdigest().encode(),
    ],
)  # fmt: skip
def test_nobody_else_is_let_in(authorization: bytes | None) -> None:
    with pytest.raises(HttpRefusal) as refused:
        sender(ACCESS, authorization)
    assert refused.value.status == 401
    assert any(name == b"www-authenticate" for name, _ in refused.value.headers)


def test_no_token_is_nobodys() -> None:
    """However a door has looked for it."""
    assert ACCESS.known(None) is None
    assert ACCESS.known(b"") is None


def test_every_token_is_compared_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        seen.append(one)
        return one == other

    monkeypatch.setattr("tarry.core.tenants.access.hmac.compare_digest", compare)
    sender(ACCESS, b"Bearer admin-secret")
    assert seen == [token.digest for token in ACCESS.tokens]


def test_only_digests_are_kept() -> None:
    assert "admin-secret" not in repr(ACCESS)


def test_roles_are_required() -> None:
    shop = sender(ACCESS, b"Bearer shop-secret")
    shop.require("produce")
    shop.require("consume", "produce")
    with pytest.raises(Forbidden, match="consume"):
        shop.require("consume")
    with pytest.raises(Forbidden):
        shop.require("admin")
    ops = sender(ACCESS, b"Bearer admin-secret")
    for role in ("admin", "produce", "consume"):
        ops.require(role)


@pytest.mark.parametrize(
    ("destination", "namespace"),
    [
        ("persistent://acme/shop/orders", None), ("persistent://acme/shop/orders", "acme/shop"),
        ("acme/shop/orders", None), ("https://example.com/hook", "acme/shop"), ("acme/shop/a:b", "acme/shop"),
    ],
)  # fmt: skip
def test_a_caller_sends_within_its_namespaces(destination: str, namespace: str | None) -> None:
    sender(ACCESS, b"Bearer shop-secret").require_destination(destination, namespace)


@pytest.mark.parametrize(
    ("destination", "namespace"),
    [
        # The topic's own namespace counts, whatever else the message names.
        ("persistent://acme/stock/orders", None), ("persistent://acme/stock/orders", "acme/shop"),
        ("acme/stock/orders", "acme/shop"), ("orders", "acme/shop"), ("orders", None),
        ("https://example.com/hook", None), ("https://example.com/hook", "acme/stock"),
        ("persistent://acme/shop/orders", "acme/stock"),
        # These may be topics or addresses of some outlet, so both must be allowed.
        ("x:acme/shop/t", None), ("acme/shop/a:b", None),
    ],
)  # fmt: skip
def test_and_nowhere_else(destination: str, namespace: str | None) -> None:
    with pytest.raises(Forbidden):
        sender(ACCESS, b"Bearer shop-secret").require_destination(destination, namespace)
    sender(ACCESS, b"Bearer admin-secret").require_destination(destination, namespace)


def test_a_destination_that_is_no_address_and_no_short_name_is_refused_to_everybody_who_is_limited() -> None:
    with pytest.raises(Invalid, match="neither an address"):
        sender(ACCESS, b"Bearer shop-secret").require_destination("matrix:room", "acme/shop")


def test_a_limited_caller_sees_and_governs_only_its_own() -> None:
    shop = sender(ACCESS, b"Bearer shop-secret")
    shop.require_sight("acme/shop")
    with pytest.raises(NotFound):
        shop.require_sight("acme/stock")
    with pytest.raises(Forbidden):
        shop.require_everywhere()
    sender(ACCESS, b"Bearer admin-secret").require_everywhere()


def test_open_access_lets_everybody_do_everything() -> None:
    anybody = sender(Access.open(), None)
    anybody.require("admin")
    anybody.require_everywhere()
    assert Access.open().is_open
    assert not ACCESS.is_open


@pytest.mark.parametrize(
    ("secret", "roles", "namespaces"),
    [
        ("tiny123", ["admin"], ["*"]), ("sha256:12ab", ["admin"], ["*"]), ("sha256:" + "zz" * 32, ["admin"], ["*"]),
        ("long-enough", [], ["*"]), ("long-enough", ["king"], ["*"]), ("long-enough", ["admin"], []),
        ("long-enough", ["admin"], ["acme"]), ("long-enough", ["admin"], ["a/b/c"]),
    ],
)  # fmt: skip
def test_a_bad_token_is_refused_without_being_shown(
    secret: str, roles: list[str], namespaces: list[str]
) -> None:
    with pytest.raises(Invalid) as refused:
        Token.of("name", secret, roles, namespaces)  # type: ignore[arg-type]
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        (b"localhost:8080", None, None), (b"127.0.0.1:8080", None, None), (b"[::1]:8080", None, None),
        (b"tarry.localhost", None, None), (None, None, None), (b"192.168.1.5", None, None),
        (b"localhost:8080", b"http://localhost:8080", b"same-origin"), (b"localhost", None, b"none"),
        (b"box.lan:8080", None, None), (b"localhost", b"http://localhost:80", None),
        (b"localhost:443", b"https://localhost", None), (b"[::1]:8080", b"http://[::1]:8080", b"same-origin"),
        (b"LOCALHOST:8080", b"http://localhost:8080", None),
    ],
)  # fmt: skip
def test_local_requests_pass(host: bytes | None, origin: bytes | None, site: bytes | None) -> None:
    check_browser(host, origin, site, frozenset({"box.lan"}))


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        (b"localhost:8080", b"https://evil.example", None),
        (b"localhost:8080", b"null", None),
        (b"localhost:8080", None, b"cross-site"),
        # A page on another port of this machine is of the same site, and another page all the same.
        (b"localhost:8080", None, b"same-site"),
        (b"localhost:8080", b"http://localhost:3000", None),
        (b"localhost:8080", b"http://localhost", None),
        (b"localhost", b"https://localhost:80", None),
        (b"[::1]:8080", b"http://[::1]:3000", None),
        (b"localhost:8080", b"file://localhost:8080", None),
        (None, b"http://localhost", None),
        # Rebinding: the page's own name, pointed at loopback.
        (b"evil.example:8080", b"http://evil.example:8080", b"same-origin"),
        (b"evil.example:8080", None, None),
        (b"localhost.evil.example", None, None),
        (b"127.0.0.1.evil.example", None, None),
    ],
)  # fmt: skip
def test_requests_that_other_pages_send_do_not(
    host: bytes | None, origin: bytes | None, site: bytes | None
) -> None:
    with pytest.raises(Forbidden):
        check_browser(host, origin, site, frozenset({"box.lan"}))
