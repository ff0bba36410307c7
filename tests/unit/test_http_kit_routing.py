"""Routes: found by the path as it was sent."""

from typing import NamedTuple

import pytest

from tarry.http.errors import PathNotText
from tarry.http.routing import Routes


class Operation(NamedTuple):
    method: str
    path: str
    head: bool = True


ROUTES = Routes(
    Operation(method, path)
    for method, path in [
        ("GET", "/v1/messages"), ("POST", "/v1/messages"), ("POST", "/v1/messages/batch"), ("GET", "/v1/messages/{id}"),
        ("POST", "/v1/messages/{id}/cancel"), ("GET", "/t/{topic}/stats"), ("GET", "/t/stats"), ("DELETE", "/t/{topic}"),
        ("GET", "/s/{space}/{endpoint}"), ("PUT", "/s/{space}/{bundle}/unload"),
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "template", "names"),
    [
        (b"/v1/messages", "/v1/messages", {}), (b"/v1/messages/batch", "/v1/messages/batch", {}),
        (b"/v1/messages/x", "/v1/messages/{id}", {"id": "x"}), (b"/v1/messages/x/cancel", "/v1/messages/{id}/cancel", {"id": "x"}),
        # A topic whose name is a word of ours.
        (b"/v1/messages/batch/cancel", "/v1/messages/{id}/cancel", {"id": "batch"}), (b"/t/stats/stats", "/t/{topic}/stats", {"topic": "stats"}),
        (b"/t/stats", "/t/stats", {}), (b"/v1/messages/a%2Fb%C3%A4", "/v1/messages/{id}", {"id": "a/b\u00e4"}),
        (b"/v1/mess%61ges", "/v1/messages", {}), (b"/s/a/b", "/s/{space}/{endpoint}", {"space": "a", "endpoint": "b"}),
        (b"/s/a/b/unload", "/s/{space}/{bundle}/unload", {"space": "a", "bundle": "b"}),
    ],
)  # fmt: skip
def test_a_path_has_one_route(path: bytes, template: str, names: dict[str, str]) -> None:
    found = ROUTES.find(path)
    assert found is not None
    route, parts = found
    assert (route.template, route.named(parts)) == (template, names)


@pytest.mark.parametrize(
    "path", [b"/", b"", b"/v1", b"/v1/messages/", b"//v1/messages", b"/v1/messages//cancel", b"/v1/messages/x/y", b"/V1/messages"]
)  # fmt: skip
def test_a_path_that_nobody_has(path: bytes) -> None:
    assert ROUTES.find(path) is None


@pytest.mark.parametrize(
    ("path", "template", "names"),
    [
        (b"/p/b/t", "/p/{broker}/{topic...}", {"broker": "b", "topic": "t"}),
        (b"/p/b/a/c%2Fd/", "/p/{broker}/{topic...}", {"broker": "b", "topic": "a/c/d/"}),
        (b"/p/b/", "/p/{broker}/{topic...}", {"broker": "b", "topic": ""}),
        (b"/p//t", "/p/{broker}/{topic...}", {"broker": "", "topic": "t"}),
        (b"/p/b", "/p/{broker}", {"broker": "b"}), (b"/p/bulk/b/t", "/p/bulk/{broker}/{topic...}", {"broker": "b", "topic": "t"}),
        (b"/p/bulk", "/p/{broker}", {"broker": "bulk"}), (b"/p", "/p", {}),
    ],
)  # fmt: skip
def test_a_last_part_may_take_the_rest(path: bytes, template: str, names: dict[str, str]) -> None:
    templates = ("/p", "/p/{broker}", "/p/{broker}/{topic...}", "/p/bulk/{broker}/{topic...}")
    routes = Routes([Operation("POST", one) for one in templates], empty_parts=True)
    route, parts = routes.find(path) or (None, ())
    assert route is not None
    assert (route.template, route.named(parts)) == (template, names)


def test_an_open_part_may_be_empty_where_that_is_wanted() -> None:
    routes = Routes([Operation("PUT", "/state/{type}/{key}")], empty_parts=True)
    route, parts = routes.find(b"/state/t/") or (None, ())
    assert route is not None
    assert route.named(parts) == {"type": "t", "key": ""}
    assert Routes([Operation("PUT", "/state/{type}/{key}")]).find(b"/state/t/") is None


def test_the_methods_of_a_route() -> None:
    routes = Routes([Operation("GET", "/a"), Operation("POST", "/a"), Operation("GET", "/b", head=False)])
    a, b = (routes.find(path) for path in (b"/a", b"/b"))
    assert a is not None
    assert b is not None
    assert a[0].allowed == "GET, HEAD, POST"
    assert a[0].rows["HEAD"].method == "GET"
    assert b[0].allowed == "GET"


def test_two_rows_of_one_place_are_an_error() -> None:
    for second in ("/x/{id}", "/x/{other}"):
        with pytest.raises(ValueError, match="two rows for GET"):
            Routes([Operation("GET", "/x/{id}"), Operation("GET", second)])


def test_a_part_that_is_not_text() -> None:
    found = ROUTES.find(b"/v1/messages/%ff")
    assert found is not None
    with pytest.raises(PathNotText):
        found[0].named(found[1])
