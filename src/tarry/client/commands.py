"""Operations on bulk commands: commands for all messages that a filter chooses."""

from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

from tarry.client.call import ClientCall, ServerAnswer, as_json, query, reads
from tarry.client.shapes import BulkCommand, BulkCommandList, time_fields

_command = reads(BulkCommand)
_list = reads(BulkCommandList)


def ask_command(
    action: Literal["cancel", "move", "send", "retry"],
    *,
    state: Literal["scheduled", "retrying", "failed"] | None = None,
    namespace: str | None = None,
    owner: str | None = None,
    key: str | None = None,
    key_prefix: str | None = None,
    destination: str | None = None,
    door: str | None = None,
    due_from_ms: int | None = None,
    due_to_ms: int | None = None,
    delay: str | timedelta | None = None,
    delay_ms: int | None = None,
    due_at: datetime | None = None,
    due_at_ms: int | None = None,
) -> ClientCall[BulkCommand]:
    """Have the messages counted that a command is for. Nothing is done to them before `confirm_command`.

    `move` needs a time, and `retry`, which is for failed messages, may have one.
    """
    chosen = {
        "state": state or ("failed" if action == "retry" else None), "namespace": namespace, "owner": owner, "key": key,
        "key_prefix": key_prefix, "destination": destination, "door": door, "due_from_ms": due_from_ms,
        "due_to_ms": due_to_ms,
    }  # fmt: skip
    body: dict[str, Any] = {
        "action": action,
        "filter": {name: value for name, value in chosen.items() if value is not None},
        **time_fields(delay, delay_ms, due_at, due_at_ms),
    }
    return ClientCall("POST", "/v1/commands", _command, as_json(body))


def get_command(id: str) -> ClientCall[BulkCommand]:
    """A command by filter: its count, and how much of it is done."""
    return ClientCall("GET", _path(id), _command, repeatable=True)


def confirm_command(id: str, counted: int) -> ClientCall[BulkCommand]:
    """Carry a command out whose messages were counted; `counted` is that count."""
    return ClientCall(
        "POST", _path(id) + "/confirm", _command, as_json({"counted": counted}), repeatable=True
    )


def stop_command(id: str) -> ClientCall[BulkCommand]:
    """End a command where it is. What it has done stays done."""
    return ClientCall("POST", _path(id) + "/stop", _command, repeatable=True)


def commands(*, namespace: str | None = None) -> ClientCall[list[BulkCommand]]:
    """The commands by filter of a namespace or of all, the newest first."""

    def read(answered: ServerAnswer) -> list[BulkCommand]:
        return _list(answered).commands

    return ClientCall("GET", query("/v1/commands", namespace=namespace), read, repeatable=True)


def _path(id_: str) -> str:
    return f"/v1/commands/{quote(id_, safe='')}"
