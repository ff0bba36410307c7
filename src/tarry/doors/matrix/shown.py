"""Delayed events as their owner is shown them, in each dialect's words."""

from typing import Any

from msgspec import Raw

from tarry.core.messages.lifecycle import FINALISED, State
from tarry.core.messages.message import MessageView
from tarry.doors.matrix.dialects import MERGED, SEED, STATE_UPDATE, Dialect, Speech
from tarry.doors.matrix.errors import error_of
from tarry.doors.matrix.event import event_of


def event_body(view: MessageView, dialect: Dialect) -> dict[str, Any]:
    """An event as the lists show it: the content is the content alone."""
    event = event_of(view)
    body: dict[str, Any] = {"delay_id": view.id, "room_id": event.room_id, "type": event.type}
    if event.state_key is not None:
        body["state_key"] = event.state_key
    body[dialect.delay] = view.delay_ms
    body[dialect.since] = view.delayed_since_ms
    body["content"] = Raw(event.content)
    return body


def merged_body(view: MessageView, unstable: bool) -> dict[str, Any]:
    """An event as merged, `finalised` once it is; with its own fields, for which clients look as well."""
    return event_body(view, MERGED) | _merged_end(view, unstable)


def _merged_end(view: MessageView, unstable: bool) -> dict[str, Any]:
    if view.state not in FINALISED:
        return {}
    finalised: dict[str, Any] = {"finalised_ts": view.finalised_at_ms}
    if view.state is State.SENT and view.reference is not None:
        finalised["event_id"] = view.reference
    if (error := _shown_error(view, unstable)) is not None:
        finalised["error"] = error
    return {"finalised": finalised}


def finalised_body(view: MessageView, unstable: bool) -> dict[str, Any]:
    """A finalised event as MSC4140's draft shows it."""
    sent = view.state is State.SENT
    error = _shown_error(view, unstable)
    by = "action" if view.commanded or not sent else "delay"
    body: dict[str, Any] = {
        "delayed_event": event_body(view, SEED),
        "outcome": "send" if sent else "cancel",
        "reason": "error" if error is not None else by,
        "origin_server_ts": view.finalised_at_ms,
    }
    if error is not None:
        body["error"] = error
    if sent and view.reference is not None:
        body["event_id"] = view.reference
    return body


def _shown_error(view: MessageView, unstable: bool) -> dict[str, Any] | None:
    """Why an event was not sent, where that was not its owner's wish."""
    if view.state is not State.FAILED and (view.state is not State.CANCELLED or view.error is None):
        return None
    error = error_of(view).body
    if error["errcode"] != STATE_UPDATE:
        return error
    code, text, fields = Speech(SEED, unstable).prefixed(STATE_UPDATE, error["error"])
    return {"errcode": code, "error": text, **fields}
