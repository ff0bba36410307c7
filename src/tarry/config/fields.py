"""The settings as a flat list: dotted name, type, default, and what is known of each.

Reads the structs of `settings.py` and nothing else, so that a setting is declared in one place.
"""

import ast
import inspect
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from tarry.config.settings import Config


class SettingField(NamedTuple):
    """One setting."""

    name: str
    """Dotted, as in `http.port`."""
    type: Any
    default: Any
    is_path: bool
    is_secret: bool
    dotted: str | None
    """The word with which all names begin in a table of settings whose own names have dots; empty if there is none."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "TARRY_" + self.name.upper().replace(".", "__")


def fields_of(table: type[Struct] = Config, prefix: str = "") -> dict[str, SettingField]:
    """Every setting of a table and of the tables in it, by dotted name."""
    found: dict[str, SettingField] = {}
    hints = get_type_hints(table, include_extras=True)
    for field in msgspec.structs.fields(table):
        name = prefix + field.name
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Struct):
            found.update(fields_of(hint, name + "."))
        else:
            extra = _extra(hint)
            default = None if field.default is NODEFAULT else field.default
            is_path = "path" in extra or field.name == "ca_file"
            is_secret = "secret" in extra or field.name.startswith("secrets")
            found[name] = SettingField(name, hint, default, is_path, is_secret, extra.get("dotted"))
    return found


def tables_of(table: type[Struct] = Config, prefix: str = "") -> dict[str, type[Struct]]:
    """Every table by its dotted name; the whole has the empty name."""
    found: dict[str, type[Struct]] = {prefix: table}
    for name, hint in get_type_hints(table).items():
        if isinstance(hint, type) and issubclass(hint, Struct):
            found.update(tables_of(hint, f"{prefix}.{name}" if prefix else name))
    return found


def row_of(hint: Any) -> type[Struct] | None:
    """The table of which a setting is a list, if it is one."""
    row = next(iter(get_args(hint)), None)
    return row if isinstance(row, type) and issubclass(row, Struct) else None


def texts_of(table: type[Struct]) -> dict[str, str]:
    """The docstrings or descriptions of a table's fields, inherited ones included."""
    texts: dict[str, str] = {}
    for part in reversed(table.__mro__):
        if issubclass(part, Struct) and part is not Struct:
            texts.update(_texts_in(part))
            texts.update(_described_in(part))
    return texts


def _described_in(table: type[Struct]) -> dict[str, str]:
    """The descriptions that types carry."""
    return {
        name: mark.description
        for name, hint in table.__annotations__.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Meta) and mark.description
    }


def _texts_in(table: type[Struct]) -> dict[str, str]:
    body = ast.parse(inspect.getsource(table)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for declared, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(declared, ast.AnnAssign)
            and isinstance(declared.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            texts[declared.target.id] = inspect.cleandoc(str(text.value.value))
    return texts


def _extra(hint: Any) -> dict[str, Any]:
    """The marks that a type carries, also inside `X | None`."""
    extra: dict[str, Any] = {}
    for part in get_args(hint):
        if isinstance(part, Meta):
            extra.update(part.extra or {})
        elif get_origin(part) is not None or isinstance(part, type):
            extra.update(_extra(part))
    return extra
