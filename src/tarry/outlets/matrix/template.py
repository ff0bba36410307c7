"""The template variable of the Futures draft: in the content of a future, the id of the event that went before it."""

from typing import Any, Final

import msgspec

from tarry.core.unreadable import UNREADABLE

VARIABLES: Final = tuple(
    f"${prefix}.send_now.event_id"
    for prefix in ("m", "io.element.msc3140", "io.element.msc4140", "org.matrix.msc4140")
)
"""The variable, and what it is called while the draft is not stable."""

_decoder = msgspec.json.Decoder(dict[str, Any])


def mentions(content: bytes) -> bool:
    """Whether the variable stands anywhere in a content."""
    return filled(content, "") is not content


def filled(content: bytes, event_id: str) -> bytes:
    """The content with the event id in the place of the variable; the content itself where it is not mentioned."""
    # A dollar may also be written as an escape.
    if b"send_now" not in content and b"\\" not in content:
        return content
    try:
        given = _decoder.decode(content)
        found = _replaced(given, event_id)
    except UNREADABLE:
        return content
    return content if found == given else msgspec.json.encode(found)


def _replaced(value: Any, event_id: str) -> Any:
    match value:
        case str():
            for variable in VARIABLES:
                value = value.replace(variable, event_id)
            return value
        case list():
            return [_replaced(one, event_id) for one in value]
        case dict():
            return {name: _replaced(one, event_id) for name, one in value.items()}
    return value
