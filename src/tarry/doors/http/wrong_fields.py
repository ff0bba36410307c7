"""Errors about a field of a request, in our words: the field, the reason, and a suggestion."""

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.inspect import LiteralType, StructType, Type, UnionType, type_info

from tarry.core.errors import Invalid

_AT: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_FIELD_IN: Final = re.compile(r"(unknown|missing required) field `([^`]*)`")
_CHOICE: Final = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
_LONGEST_NAME: Final = 64


def explain_field(text: str, kind: type[Struct] | None = None) -> Invalid:
    """The error for a field, from msgspec's text; with the shape that was asked for, also what it knows."""
    found = _AT.match(text)
    assert found is not None
    reason, path = found[1].replace("`", ""), found[2] or ""
    if named := _FIELD_IN.search(text):
        field = f"{path}.{named[2]}" if path else named[2]
        if named[1] != "unknown":
            return Invalid(field, "is missing")
        near = get_close_matches(named[2][:_LONGEST_NAME], _fields(kind, path), 1) if kind else []
        return Invalid(field, f"is not known; did you mean {near[0]}?" if near else "is not known")
    if kind and (choices := _choices(kind, path)) and _CHOICE.fullmatch(reason):
        return Invalid(path, f"is none of {', '.join(choices)}")
    reason = reason[0].lower() + reason[1:]
    if path == "payload":
        reason += "; a JSON value goes into payload_json, bytes into payload_base64"
    return Invalid(path or "body", reason)


@lru_cache
def _type_at(kind: type[Struct], path: str) -> tuple[Type, ...]:
    """The types that a field may have, by its dotted path; none if the path is not made of fields alone."""
    types: tuple[Type, ...] = (type_info(kind),)
    for name in path.split(".") if path else ():
        of_name = (
            f.type
            for one in types
            if isinstance(one, StructType)
            for f in one.fields
            if f.encode_name == name
        )
        types = tuple(
            one for field in of_name for one in (field.types if isinstance(field, UnionType) else (field,))
        )
    return types


def _fields(kind: type[Struct], path: str) -> list[str]:
    return [
        field.encode_name
        for one in _type_at(kind, path)
        if isinstance(one, StructType)
        for field in one.fields
    ]


def _choices(kind: type[Struct], path: str) -> list[Any]:
    return [value for one in _type_at(kind, path) if isinstance(one, LiteralType) for value in one.values]
