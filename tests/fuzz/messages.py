"""Protobuf messages filled with anything that their fields can hold, by their descriptors: no field is left out for ever."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

from tests.fuzz.values import Values

M = TypeVar("M", bound=Message)
Known = Mapping[str, Callable[[], Any]]
"""By the name of a field: what makes a value that leads somewhere."""

BITS: Final = {
    Field.TYPE_INT32: (-(1 << 31), 1 << 31), Field.TYPE_UINT32: (0, 1 << 32),
    Field.TYPE_INT64: (-(1 << 63), 1 << 63), Field.TYPE_UINT64: (0, 1 << 64),
}  # fmt: skip
DEEPEST: Final = 3


def filled(values: Values, message: M, known: Known, depth: int = 0) -> M:
    """The message with its required fields and some others."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required or values.chance(0.9 if field.name in known else 0.25):
            _fill(values, message, field, known, depth)
    return message


def _fill(values: Values, message: Message, field: Any, known: Known, depth: int) -> None:
    if field.is_repeated:
        place = getattr(message, field.name)
        for _ in range(values.one(0, 1, 3, 100 if depth == 0 else 3)):
            if field.type == Field.TYPE_MESSAGE:
                filled(values, place.add(), known, depth + 1)
            else:
                place.append(_value(values, field, known))
    elif field.type != Field.TYPE_MESSAGE:
        setattr(message, field.name, _value(values, field, known))
    elif depth < DEEPEST:
        part = getattr(message, field.name)
        part.SetInParent()
        filled(values, part, known, depth + 1)


def _value(values: Values, field: Any, known: Known) -> Any:
    if field.name in known and values.chance(0.9):
        return known[field.name]()
    if field.type in BITS:
        lowest, beyond = BITS[field.type]
        return max(lowest, min(values.integer(), beyond - 1))
    match field.type:
        case Field.TYPE_BOOL:
            return values.chance(0.5)
        case Field.TYPE_ENUM:
            return values.one(*field.enum_type.values_by_number)
        case Field.TYPE_STRING:
            return values.text(values.one(20, 20, 2_000))
        case Field.TYPE_BYTES:
            return values.data(values.one(20, 20, 5_000))
    return values.number()
