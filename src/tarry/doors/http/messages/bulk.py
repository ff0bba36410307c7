"""Batches that were staged as files: where to stage, adopt, look at, list, cancel (R10).

The files lie in the folder of the index, where only programs of the operator can write; what comes over this door is the
manifest. Before it is recorded, every file is looked at on a thread of its own.
"""

import asyncio
import os
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.names import check_name
from tarry.core.tenants.access import Access, Caller
from tarry.core.time.times import format_instant
from tarry.doors.http.bodies import check_json, decode, read_query
from tarry.doors.http.responses import json_response
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import AdoptedAnswer, AdoptedBatchesAnswer, BatchesQuery
from tarry.engine.api import BatchView
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.index.inspection import inspect
from tarry.index.manifest import BatchManifest
from tarry.index.schema import STAGED

AT_ONCE: Final = 2
"""Manifests whose files are being looked at; others wait."""

_decoder = msgspec.json.Decoder(BatchManifest)


class BulkEndpoints:
    """The endpoints under `/v1/batches`."""

    def __init__(self, engine: Engine, settings: HttpSettings, access: Access) -> None:
        self._access = access
        self._engine = engine
        self._index = settings.index
        self._places = asyncio.Semaphore(AT_ONCE)
        self._in_line: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By token: its place in the line for these. Its further manifests wait behind that."""

    async def place(self, request: Request) -> Response:
        """GET /v1/batches/{batch}/place."""
        caller, _ = _reach(request)
        folder = self._folder()
        if "://" not in folder:
            # Who stages finds it there, or is in the wrong place.
            for made in (folder, os.path.join(folder, STAGED)):
                os.makedirs(made, mode=0o700, exist_ok=True)
        return json_response(self._engine.batches.place(folder, caller.covers))

    async def adopt(self, request: Request) -> Response:
        """PUT /v1/batches/{batch}."""
        caller, name = _reach(request)
        check_json(request)
        body = request.body
        manifest = decode(_decoder, body)
        for namespace in manifest.namespaces:
            caller.require_namespace(namespace)
        folder = self._folder()
        known = self._engine.batches.namespaces_of(name)
        if known is not None and not all(map(caller.covers, known)):
            # Of another tenant's batch nothing is shown but that its name is taken.
            raise Conflict("there is a batch with this name and other messages", "reused")
        if known is None:
            # What was adopted before is not looked at again: the index may have moved its files long ago.
            async with self._line_of(caller), self._places:
                await asyncio.to_thread(inspect, folder, name, manifest.files)
        view = await self._engine.batches.adopt(name, manifest)
        return json_response(_answer(view), 200 if view.repeated else 201)

    def _line_of(self, caller: Caller) -> asyncio.Semaphore:
        """The place of a token in the line: one, so that its many manifests delay nobody else's by more than one."""
        found = self._in_line.get(caller.name)
        if found is None:
            alone = len(self._access.tokens) < 2
            found = self._in_line[caller.name] = asyncio.Semaphore(AT_ONCE if alone else 1)
        return found

    async def get(self, request: Request) -> Response:
        """GET /v1/batches/{batch}."""
        return json_response(_answer(await self._seen(request)))

    async def list(self, request: Request) -> Response:
        """GET /v1/batches."""
        caller = request.caller
        query = read_query(request.query, BatchesQuery)
        page = self._engine.batches.list_batches(query.limit, query.page, caller.covers)
        return json_response(
            AdoptedBatchesAnswer(batches=[_answer(view) for view in page.batches], next_page=page.next_page)
        )

    async def cancel(self, request: Request) -> Response:
        """DELETE /v1/batches/{batch}."""
        view = await self._seen(request)
        return json_response(_answer(await self._engine.batches.cancel(view.name)))

    async def _seen(self, request: Request) -> BatchView:
        caller, name = _reach(request)
        view = await self._engine.batches.batch(name)
        if not all(map(caller.covers, view.namespaces)):
            raise NotFound("there is no such batch")
        return view

    def _folder(self) -> str:
        if not self._index:
            raise Unavailable("this server has no folder for an index, which batches need")
        return self._index


def _reach(request: Request) -> tuple[Caller, str]:
    caller = request.caller
    name: str = request.params["batch"]
    check_name(name, "batch")
    return caller, name


def _answer(view: BatchView) -> AdoptedAnswer:
    return AdoptedAnswer(
        name=view.name, count=view.count, remaining=view.remaining, cancelled=view.cancelled,
        adopted_at_ms=view.adopted_at_ms, adopted_at=format_instant(view.adopted_at_ms),
        last_due_at_ms=view.last_due_at_ms, last_due_at=format_instant(view.last_due_at_ms),
        namespaces=view.namespaces, cancelled_at_ms=view.cancelled_at_ms,
    )  # fmt: skip
