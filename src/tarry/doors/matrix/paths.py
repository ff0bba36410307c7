"""The paths that are Tarry's own, as a tree of their parts; everything else is the homeserver's.

Paths are matched as they were sent, part by part, so that a quoted slash in a state key stays inside its part. Where a path leads
but for its last two parts is remembered: that much is the same in all that is asked of a room, or of events by their ids.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.wire import MAX_BODY_BYTES, Answered, MatrixRequest

Endpoint = Callable[[MatrixRequest], Awaitable[Answered]]

CLIENT: Final = "/_matrix/client"
MSC4140: Final = f"{CLIENT}/unstable/org.matrix.msc4140"

_OPEN: Final = b"{}"

MAX_KNOWN: Final = 8_192
"""Beginnings of paths that are remembered, of at most this many bytes:"""
MAX_KNOWN_BYTES: Final = 512


class Route:
    """Templates of paths, `{}` standing for any one part, and what each method does there."""

    def __init__(
        self,
        methods: Mapping[str, Endpoint],
        *templates: str,
        when: Callable[[bytes], bool] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`when` looks at the query: where it says no, the request is the homeserver's."""
        self.max_body_bytes = max_body_bytes
        self.methods = dict(methods)
        self.templates = templates
        self.when = when
        self.allowed = ", ".join((*self.methods, "OPTIONS"))


class FoundRoute:
    """A route, and what the path has in the open places of its template."""

    __slots__ = ("params", "route", "unstable")

    def __init__(self, route: Route, params: tuple[bytes, ...], unstable: bool) -> None:
        self.route = route
        self.params = params
        self.unstable = unstable


class _Node:
    __slots__ = ("next", "open", "route", "unstable")

    def __init__(self) -> None:
        self.next: dict[bytes, _Node] = {}
        self.open: _Node | None = None
        """Where any part leads that `next` does not have."""
        self.route: Route | None = None
        self.unstable = False


_Place = tuple[_Node, tuple[bytes, ...]]
"""Where parts of a path have led, and which of them were in open places."""


class Paths:
    """All routes."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._root = _Node()
        self._known: dict[bytes, _Place] = {}
        for route in routes:
            for template in route.templates:
                self._add(template, route)

    def _add(self, template: str, route: Route) -> None:
        node = self._root
        for part in template.encode().split(b"/"):
            if part == _OPEN:
                node.open = node.open or _Node()
                node = node.open
            else:
                node = node.next.setdefault(part, _Node())
        if node.route is not None:
            raise ValueError(f"two routes for {template}")
        node.route = route
        node.unstable = "/unstable/" in template

    def find(self, path: bytes, query: bytes) -> FoundRoute | None:
        """The route of a request; None where it is the homeserver's."""
        found = self.walk(path)
        if found is None or (found.route.when is not None and not found.route.when(query)):
            return None
        return found

    def walk(self, path: bytes) -> FoundRoute | None:
        """The route of a path, whatever the query says."""
        beginning, *rest = path.rsplit(b"/", 2)
        place = self._known.get(beginning) or self._begin(beginning)
        place = None if place is None else _go(place, rest)
        if place is None or place[0].route is None:
            return None
        return FoundRoute(place[0].route, place[1], place[0].unstable)

    def _begin(self, beginning: bytes) -> _Place | None:
        place = _go((self._root, ()), beginning.split(b"/"))
        if place is not None and len(beginning) <= MAX_KNOWN_BYTES:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[beginning] = place
        return place


def _go(place: _Place, parts: list[bytes]) -> _Place | None:
    """Where further parts lead; None if nowhere of ours."""
    node, params = place
    for part in parts:
        step = node.next.get(part)
        if step is None and b"%" in part and node.next:
            # A word of ours that is spelled with percent signs is that word: a lenient homeserver would say so too.
            step = node.next.get(unquote_to_bytes(part))
        if step is None:
            step = node.open
            if step is None:
                return None
            params = (*params, part)
        node = step
    return node, params


def unquoted(part: bytes) -> str:
    """A part of a path as text; raises for one that is not UTF-8."""
    try:
        return _plain(part) if b"%" in part else part.decode()
    except UnicodeDecodeError:
        raise MatrixError(400, "M_INVALID_PARAM", "The path is not UTF-8.") from None


@lru_cache(maxsize=8_192)
def _plain(part: bytes) -> str:
    """Rooms come again and again, and always with percent signs."""
    return unquote_to_bytes(part).decode()
