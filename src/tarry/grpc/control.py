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
    _need(not stream, ErrorCode.PROTOCOL_ERROR, "SETTINGS belongs to stream 0 (RFC 9113 §6.5)")
    _need(
        len(payload) % _SETTING.size == 0,
        ErrorCode.FRAME_SIZE_ERROR,
        "SETTINGS carries entries of 6 bytes (RFC 9113 §6.5)",
    )
    _need(
        not payload or not flags & ACK,
        ErrorCode.FRAME_SIZE_ERROR,
        "SETTINGS with ACK carries nothing (RFC 9113 §6.5)",
    )
    window = before
    for name, value in _SETTING.iter_unpack(payload):
        if name == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value < 1 << 24:
            raise Broken(
                ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is 16384 to 16777215, not {value}"
            )
        if name == ENABLE_PUSH and value > 1:
            raise Broken(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is 0 or 1, not {value}")
        if name == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_BYTES:
                raise Broken(
                    ErrorCode.FLOW_CONTROL_ERROR,
                    f"SETTINGS_INITIAL_WINDOW_SIZE is at most 2147483647, not {value}",
                )
            window = value
    return window


def check_ping(stream: int, payload: bytes) -> None:
    """A PING is of the connection and says eight bytes."""
    _need(not stream, ErrorCode.PROTOCOL_ERROR, "PING belongs to stream 0 (RFC 9113 §6.7)")
    _need(len(payload) == 8, ErrorCode.FRAME_SIZE_ERROR, "PING carries 8 bytes (RFC 9113 §6.7)")


def check_goodbye(stream: int) -> None:
    """A GOAWAY is of the connection."""
    _need(not stream, ErrorCode.PROTOCOL_ERROR, "GOAWAY belongs to stream 0 (RFC 9113 §6.8)")


def check_priority(stream: int, payload: bytes) -> None:
    """A PRIORITY is of a stream. Its advice is not followed (RFC 9113, 5.3.2)."""
    _need(bool(stream), ErrorCode.PROTOCOL_ERROR, "PRIORITY belongs to a stream (RFC 9113 §6.3)")
    _need(len(payload) == 5, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY carries 5 bytes (RFC 9113 §6.3)")
    check_dependency(stream, payload)


def _need(holds: bool, code: ErrorCode, reason: str) -> None:
    if not holds:
        raise Broken(code, reason)
