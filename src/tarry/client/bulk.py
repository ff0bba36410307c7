"""Batches that are staged as files and adopted as a whole: `tarry bulk`, and programs that stage by themselves."""

from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from tarry.client.call import ClientCall, ServerAnswer, as_json, check, query, reads


class Batch(Struct, frozen=True, kw_only=True):
    """An adopted batch, and how many of its messages still wait."""

    name: str
    count: int
    remaining: int
    """Messages that have not ended."""
    cancelled: int = 0
    """Messages that ended when the batch was cancelled."""
    adopted_at_ms: int
    last_due_at_ms: int
    namespaces: list[str]
    cancelled_at_ms: int | None = None
    repeated: bool = False
    """Whether the batch was adopted by an earlier call; this is that call's answer again."""


class BatchPage(Struct, frozen=True):
    """A page of batches, the newest first."""

    batches: list[Batch]
    next_page: int | None = None


_batch = reads(Batch)


def place_of_batch(name: str) -> ClientCall[dict[str, Any]]:
    """The staging place of a batch, and its terms."""
    return ClientCall("GET", _path(name) + "/place", reads(dict[str, Any]), repeatable=True)


def adopt_batch(name: str, manifest: Any) -> ClientCall[Batch]:
    """Have every message of a staged batch accepted, or none. The same request again gets the same answer."""
    # Every file of the batch is looked at before it is answered.
    return ClientCall("PUT", _path(name), _adopted, as_json(manifest), repeatable=True, wait_ms=300_000)


def _adopted(answered: ServerAnswer) -> Batch:
    check(answered)
    return msgspec.structs.replace(_batch(answered), repeated=answered.status == 200)


def batch(name: str) -> ClientCall[Batch]:
    """Look a batch up."""
    return ClientCall("GET", _path(name), _batch, repeatable=True)


def batches(*, limit: int | None = None, page: int | None = None) -> ClientCall[BatchPage]:
    """One page of batches, the newest first; `page` is the `next_page` of the page before."""
    return ClientCall("GET", query("/v1/batches", limit=limit, page=page), reads(BatchPage), repeatable=True)


def cancel_batch(name: str) -> ClientCall[Batch]:
    """Cancel every message of a batch that has not ended. Once this returns, none of them goes out."""
    return ClientCall("DELETE", _path(name), _batch, repeatable=True, wait_ms=300_000)


def _path(name: str) -> str:
    return f"/v1/batches/{quote(name, safe='')}"
