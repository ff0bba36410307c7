"""Routes: rows of operations, found by the path as it was sent.

A template is a path whose parts in braces are open: `/v1/messages/{id}`. A last part like `{topic...}` takes the rest of the path,
slashes and all, also where nothing is left. Paths are matched part by part before anything is
unquoted, so that a quoted slash stays inside its part. A fixed part is preferred to an open one.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

from tarry.http.request import unquoted


class Row(Protocol):
    """An operation, as far as routing is concerned."""

    @property
    def method(self) -> str:
        """The method."""

    @property
    def path(self) -> str:
        """The template of the path."""

    @property
    def head(self) -> bool:
        """Whether what a GET serves is served to a HEAD."""


R = TypeVar("R", bound=Row)

_REST: Final = "..."


class Route(Generic[R]):
    """The operations at one template."""

    def __init__(self, template: str) -> None:
        self.template = template
        self.names = tuple(
            [part[1:-1].removesuffix(_REST) for part in template.split("/") if part.startswith("{")]
        )
        self.rows: dict[str, R] = {}
        """By method."""

    @property
    def allowed(self) -> str:
        """The methods, for people and for the `allow` field."""
        return ", ".join(sorted(self.rows))

    def named(self, parts: tuple[bytes, ...]) -> Mapping[str, str]:
        """The open parts of a path by their names; raises `PathNotText`."""
        return dict(zip(self.names, map(unquoted, parts), strict=True))


class _Node(Generic[R]):
    __slots__ = ("next", "open", "rest", "route")

    def __init__(self) -> None:
        self.next: dict[bytes, _Node[R]] = {}
        self.open: _Node[R] | None = None
        """Where a part leads for which `next` has nothing, or nothing that goes on."""
        self.rest: _Node[R] | None = None
        """Where all parts that are left lead together, if nothing else does."""
        self.route: Route[R] | None = None


FoundRoute = tuple[Route[R], tuple[bytes, ...]]
"""A route, and the open parts of the path, still quoted."""


class Routes(Generic[R]):
    """All routes of an application."""

    def __init__(self, rows: Iterable[R], *, empty_parts: bool = False) -> None:
        """`empty_parts`: an open part may be empty. Raises `ValueError` for two rows with one method and path."""
        self.rows = tuple(rows)
        self._root: _Node[R] = _Node()
        self._fixed: dict[bytes, FoundRoute[R]] = {}
        """Routes without open parts, by their paths."""
        self._empty_parts = empty_parts
        for row in self.rows:
            self._add(row)

    def _add(self, row: R) -> None:
        node = self._root
        for part in row.path.encode().split(b"/"):
            if part.endswith(b"...}"):
                node.rest = node.rest or _Node()
                node = node.rest
            elif part.startswith(b"{"):
                node.open = node.open or _Node()
                node = node.open
            else:
                node = node.next.setdefault(part, _Node())
        if node.route is None:
            node.route = Route(row.path)
        route = node.route
        if row.method in route.rows or route.template != row.path:
            raise ValueError(f"two rows for {row.method} {row.path}")
        route.rows[row.method] = row
        if row.method == "GET" and row.head:
            route.rows.setdefault("HEAD", row)
        if not route.names:
            self._fixed[row.path.encode()] = route, ()

    def find(self, path: bytes) -> FoundRoute[R] | None:
        """The route of a path."""
        return self._fixed.get(path) or self._walk(self._root, path.split(b"/"), 0, ())

    def _walk(
        self, node: _Node[R], parts: list[bytes], at: int, params: tuple[bytes, ...]
    ) -> FoundRoute[R] | None:
        if at == len(parts):
            return None if node.route is None else (node.route, params)
        part = parts[at]
        step = node.next.get(part)
        if step is None and b"%" in part and node.next:
            # A word of ours that is spelled with percent signs is that word: a lenient server would say so too.
            step = node.next.get(unquote_to_bytes(part))
        if step is not None:
            found = self._walk(step, parts, at + 1, params)
            if found is not None:
                return found
        if node.open is not None and (part or self._empty_parts):
            found = self._walk(node.open, parts, at + 1, (*params, part))
            if found is not None:
                return found
        if node.rest is None or node.rest.route is None:
            return None
        return node.rest.route, (*params, b"/".join(parts[at:]))
