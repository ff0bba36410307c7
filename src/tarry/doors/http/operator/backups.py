"""Backups: begin, go on, end. Who makes one copies the files itself, and has to be on the server's machine."""

import msgspec

from tarry.core.errors import Unavailable
from tarry.doors.http.bodies import check_json, decode
from tarry.doors.http.responses import json_response, nothing
from tarry.doors.http.shapes import BackupAnswer, BackupRequest
from tarry.engine.api import Backup
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

_decoder = msgspec.json.Decoder(BackupRequest)


class BackupEndpoints:
    """The endpoints under `/v1/backups`. Everything is in a backup, so they need the role admin for all namespaces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin(self, request: Request) -> Response:
        """POST /v1/backups."""
        asked = await self._asked(request)
        return json_response(self._answer(await self._engine.backups.begin(asked.for_ms)), 201)

    async def renew(self, request: Request) -> Response:
        """PUT /v1/backups/{backup}."""
        asked = await self._asked(request)
        return json_response(self._answer(self._engine.backups.renew(_name(request), asked.for_ms)))

    async def end(self, request: Request) -> Response:
        """DELETE /v1/backups/{backup}."""
        self._let_in(request)
        self._engine.backups.end(_name(request))
        return nothing()

    async def _asked(self, request: Request) -> BackupRequest:
        self._let_in(request)
        body = request.body
        if not body:
            return BackupRequest()
        check_json(request)
        return decode(_decoder, body)

    def _let_in(self, request: Request) -> None:
        if not self._engine.ready:
            raise Unavailable("the server is starting; try again in a moment")

    def _answer(self, backup: Backup) -> BackupAnswer:
        return BackupAnswer(
            name=backup.name,
            until_ms=backup.until_ms,
            snapshot=backup.snapshot,
            ledger_id=self._engine.ledger.ledger_id.hex(),
        )


def _name(request: Request) -> str:
    return str(request.params["backup"])
