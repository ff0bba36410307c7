"""Payloads as the types that functions ask for in their signatures."""

import inspect
from collections.abc import Callable
from typing import Any, Final

import msgspec
import msgspec.inspect

Read = Callable[[bytes], Any]


class BadPayload(Exception):
    """A payload is not of the type that the function asks for: no attempt would succeed."""


def reader_of(kind: Any) -> Read:
    """A function that reads payloads as a type; raises `TypeError` for a type that cannot be read.

    Bytes and text as they are; a pydantic model by pydantic; any other type as JSON by msgspec: dataclasses, `msgspec.Struct`,
    TypedDict, attrs, dict, list and unions of them. Without a type it is bytes.
    """
    if kind in (bytes, inspect.Parameter.empty):
        return lambda payload: payload
    if kind is str:
        return _checked(lambda payload: payload.decode())
    # Pydantic is not imported here: whoever has a model has it.
    if hasattr(kind, "model_validate_json"):
        return _checked(kind.model_validate_json)
    if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
        raise TypeError(f"a payload cannot be read as {kind}: it is no type that JSON can be decoded into")
    return _checked(msgspec.json.Decoder(kind).decode)


def _checked(read: Read) -> Read:
    def checked(payload: bytes) -> Any:
        try:
            return read(payload)
        except _BAD as error:
            raise BadPayload(str(error)) from error

    return checked


_BAD: Final = (ValueError, msgspec.MsgspecError)
"""Pydantic's error and those of decoding text are ValueErrors."""
