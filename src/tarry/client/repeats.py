"""Operations on repeats: messages that are sent again and again, under a name in a namespace."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

from tarry.client.call import ClientCall, as_json, query, reads, reads_nothing
from tarry.client.shapes import Payload, Repeat, RepeatPage, payload_fields, time_fields

_repeat = reads(Repeat)


def set_repeat(
    name: str,
    destination: str,
    payload: Payload = b"",
    *,
    every: str | timedelta | None = None,
    cron: str | None = None,
    zone: str | None = None,
    start_at: datetime | None = None,
    start_at_ms: int | None = None,
    end_at: datetime | None = None,
    end_at_ms: int | None = None,
    count: int | None = None,
    jitter: str | timedelta | None = None,
    missed: Literal["all", "latest", "none"] = "latest",
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    owner: str | None = None,
    ttl_ms: int | None = None,
    namespace: str = "public/default",
) -> ClientCall[Repeat]:
    """Send a message again and again: every interval (`"90s"`, a timedelta), or by cron in an IANA time zone.

    A repeat of that name is begun anew, unless it is the same already.
    """
    body: dict[str, Any] = {
        "destination": destination, "cron": cron, "zone": zone, "count": count, "missed": missed, "headers": headers,
        "key": key, "owner": owner, "ttl_ms": ttl_ms, "start_at_ms": start_at_ms, "end_at_ms": end_at_ms,
    }  # fmt: skip
    body |= payload_fields(payload) | _span("every", every) | _span("jitter", jitter)
    body["start_at"] = time_fields(None, None, start_at, None).get("due_at")
    body["end_at"] = time_fields(None, None, end_at, None).get("due_at")
    given = {name: value for name, value in body.items() if value is not None}
    return ClientCall("PUT", _path(namespace, name), _repeat, as_json(given), repeatable=True)


def get_repeat(name: str, *, namespace: str = "public/default") -> ClientCall[Repeat]:
    """A repeat, with its next five instants."""
    return ClientCall("GET", _path(namespace, name), _repeat, repeatable=True)


def repeats_page(
    *, namespace: str | None = None, limit: int | None = None, page: str | None = None
) -> ClientCall[RepeatPage]:
    """One page of repeats, by namespace and name; `page` is the `next_page` of the page before."""
    path = query("/v1/repeats", namespace=namespace, limit=limit, page=page)
    return ClientCall("GET", path, reads(RepeatPage), repeatable=True)


def pause_repeat(name: str, *, namespace: str = "public/default") -> ClientCall[Repeat]:
    """Send nothing more until the repeat is resumed."""
    return ClientCall("POST", _path(namespace, name) + "/pause", _repeat, repeatable=True)


def resume_repeat(name: str, *, namespace: str = "public/default") -> ClientCall[Repeat]:
    """Go on; missed occurrences are sent as the repeat says."""
    return ClientCall("POST", _path(namespace, name) + "/resume", _repeat, repeatable=True)


def remove_repeat(name: str, *, namespace: str = "public/default") -> ClientCall[None]:
    """End a repeat. Once this returns, no occurrence that was not due goes out."""
    return ClientCall("DELETE", _path(namespace, name), reads_nothing)


def _path(namespace: str, name: str) -> str:
    return f"/v1/repeats/{quote(namespace)}/{quote(name, safe='')}"


def _span(field: str, span: str | timedelta | None) -> dict[str, Any]:
    """A duration as the API takes it, rounded up."""
    if isinstance(span, timedelta):
        return {f"{field}_ms": -(-span // timedelta(milliseconds=1))}
    return {field: span}
