"""The rules for frames that are about a connection and not about a call (RFC 9113, 6.3 to 6.8). Pure; all raise `Broken`."""

from struct import Struct as Layout
from typing import Final

from tarry.grpc.frames import (
    ACK,
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_WINDOW_BYTES,
    Broken,
    ErrorCode,
    check_dependency,
)

_SETTING: Final = Layout(">HI")


def first_window(flags: int, stream: int, payload: bytes, before: int) -> int:
    """The first window of streams behind a SETTINGS frame; `before` is the one that held until then."""
    _need(not stream, ErrorCode.PROTOCOL_ERROR, "settings on a stream")
    _need(len(payload) % _SETTING.size == 0, ErrorCode.FRAME_SIZE_ERROR, "settings that are cut off")
    _need(not payload or not flags & ACK, ErrorCode.FRAME_SIZE_ERROR, "settings in an acknowledgement")
    window = before
    for name, value in _SETTING.iter_unpack(payload):
        if name == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
            raise Broken(ErrorCode.PROTOCOL_ERROR, f"a frame size of {value}")
        if name == ENABLE_PUSH and value > 1:
            raise Broken(ErrorCode.PROTOCOL_ERROR, f"a switch that is {value}")
        if name == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_BYTES:
                raise Broken(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value}")
            window = value
    return window


def check_ping(stream: int, payload: bytes) -> None:
    """A PING is of the connection and says eight bytes."""
    _need(not stream, ErrorCode.PROTOCOL_ERROR, "a ping on a stream")
    _need(len(payload) == 8, ErrorCode.FRAME_SIZE_ERROR, "a ping that is not 8 bytes long")


def check_goodbye(stream: int) -> None:
    """A GOAWAY is of the connection."""
    _need(not stream, ErrorCode.PROTOCOL_ERROR, "a goodbye on a stream")


def check_priority(stream: int, payload: bytes) -> None:
    """A PRIORITY is of a stream. Its advice is not followed (RFC 9113, 5.3.2)."""
    _need(bool(stream), ErrorCode.PROTOCOL_ERROR, "a priority of no stream")
    _need(len(payload) == 5, ErrorCode.FRAME_SIZE_ERROR, "a priority that is not 5 bytes long")
    check_dependency(stream, payload)


def _need(holds: bool, code: ErrorCode, reason: str) -> None:
    if not holds:
        raise Broken(code, reason)
