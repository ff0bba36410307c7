"""Schema resolution of Avro: whether what was written with one schema can be read with another. Pure.

Follows "Schema Resolution" of the Avro specification, as Pulsar applies it to AVRO, JSON and PROTOBUF schemas: records are
compared by their fields and not by their names, since every client derives names from its own classes. Steps are counted:
a schema comes from a client, and two unions can be compared in as many ways as their sizes multiplied.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tarry.core.unreadable import UNREADABLE

MAX_STEPS: Final = 20_000
"""Comparisons for one question: some milliseconds."""

_PROMOTED: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""By the type of the reader: the other types of writers that it takes."""
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_COMPLEX: Final = ("record", "error", "enum", "fixed", "array", "map")


class NotAvro(ValueError):
    """A text that is no Avro schema."""


class TooManySteps(ValueError):
    """Two schemas that take too many steps to compare."""


class Budget:
    """The steps that one question may take, over all of its comparisons."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    def spend(self) -> None:
        """Take one step; raises `TooManySteps` when there are none left."""
        self._left -= 1
        if self._left < 0:
            raise TooManySteps("the schemas are too large to be compared")


class AvroSchema:
    """A schema with its named types."""

    def __init__(self, text: bytes) -> None:
        """Raises `NotAvro`."""
        try:
            self.root: Any = msgspec.json.decode(text)
            self._names: dict[str, Any] = {}
            self._collect(self.root, "")
        except UNREADABLE as error:
            raise NotAvro(str(error)) from None

    def resolved(self, node: Any) -> Any:
        """The definition of a node: the name of a primitive type, a union as a list, or the object of a complex type."""
        if isinstance(node, dict) and node["type"] not in _COMPLEX:
            # {"type": …} around a whole schema.
            return self.resolved(node["type"])
        if not isinstance(node, str) or node in _PRIMITIVES:
            return node
        found = self._names.get(node) or self._names.get(node.rpartition(".")[2])
        if found is None:
            raise NotAvro(f"there is no type {node}")
        return found

    def _collect(self, node: Any, space: str) -> None:
        """Check the shape of a node and of all nodes below it, and remember the named types."""
        if isinstance(node, list):
            for branch in node:
                self._collect(branch, space)
        elif isinstance(node, dict):
            kind = node.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                space = self._remember(node, space)
            if kind in ("record", "error"):
                for field in _list(node, "fields"):
                    if (
                        not isinstance(field, dict)
                        or not isinstance(field.get("name"), str)
                        or "type" not in field
                    ):
                        raise NotAvro("a field without a name or a type")
                    self._collect(field["type"], space)
            elif kind == "enum":
                _list(node, "symbols")
            elif kind == "array":
                self._collect(_part(node, "items"), space)
            elif kind == "map":
                self._collect(_part(node, "values"), space)
            elif kind is None:
                raise NotAvro("a schema without a type")
            elif not isinstance(kind, str):
                self._collect(kind, space)
        elif not isinstance(node, str):
            raise NotAvro("a schema is text, a list or an object")

    def _remember(self, node: dict[str, Any], space: str) -> str:
        name = node.get("name")
        if not isinstance(name, str):
            raise NotAvro("a named type without a name")
        space = str(node.get("namespace") or name.rpartition(".")[0] or space)
        short = name.rpartition(".")[2]
        self._names.setdefault(short, node)
        self._names[f"{space}.{short}" if space else short] = node
        return space


def can_read(reader: AvroSchema, writer: AvroSchema, budget: Budget) -> bool:
    """Whether data that `writer` describes can be read with `reader`; raises `NotAvro` and `TooManySteps`."""
    try:
        return _Resolution(reader, writer, budget).resolves(reader.root, writer.root)
    except RecursionError:
        raise TooManySteps("the schemas are nested too deeply to be compared") from None


class _Resolution:
    """One comparison. A pair of nodes that is under way is taken to go together: types may contain themselves."""

    def __init__(self, reader: AvroSchema, writer: AvroSchema, budget: Budget) -> None:
        self._reader = reader
        self._writer = writer
        self._budget = budget
        self._known: dict[tuple[int, int], bool] = {}

    def resolves(self, reader: Any, writer: Any) -> bool:
        self._budget.spend()
        reader, writer = self._reader.resolved(reader), self._writer.resolved(writer)
        if isinstance(reader, str) and isinstance(writer, str):
            return reader == writer or writer in _PROMOTED.get(reader, ())
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = True
            self._known[pair] = self._compare(reader, writer)
        return self._known[pair]

    def _compare(self, reader: Any, writer: Any) -> bool:
        if isinstance(writer, list):
            return all(self.resolves(reader, branch) for branch in writer)
        if isinstance(reader, list):
            return any(self.resolves(branch, writer) for branch in reader)
        if isinstance(reader, str) or isinstance(writer, str) or reader["type"] != writer["type"]:
            return False
        kind = reader["type"]
        if kind == "array":
            return self.resolves(reader["items"], writer["items"])
        if kind == "map":
            return self.resolves(reader["values"], writer["values"])
        if kind == "enum":
            return "default" in reader or set(map(str, writer["symbols"])) <= set(map(str, reader["symbols"]))
        if kind == "fixed":
            return bool(reader.get("size") == writer.get("size"))
        return all(self._has(field, writer["fields"]) for field in reader["fields"])

    def _has(self, field: dict[str, Any], written: list[dict[str, Any]]) -> bool:
        """Whether a field of the reader is in the writer's record, or can do without."""
        aliases = field.get("aliases")
        names = [field["name"], *(aliases if isinstance(aliases, list) else ())]
        for other in written:
            self._budget.spend()
            if other["name"] in names:
                return self.resolves(field["type"], other["type"])
        return "default" in field


def _list(node: dict[str, Any], name: str) -> list[Any]:
    found = node.get(name)
    if not isinstance(found, list):
        raise NotAvro(f"a type without {name}")
    return found


def _part(node: dict[str, Any], name: str) -> Any:
    if name not in node:
        raise NotAvro(f"a type without {name}")
    return node[name]
