"""The ledger for readers elsewhere: what there is of it, and ranges of it byte for byte as they are on disk.

The pipeline reads this way where it cannot see the ledger's folder. An answer holds whole frames of one segment, never
beyond the durable head; they carry their checksums, so it is the reader who proves them. Everything is in it, so it
needs the role admin for all namespaces.

Reading happens in threads, a piece at a time, and a piece is read when the last one was taken: a slow reader holds up
itself. How many read at once is bounded.
"""

import asyncio
import os
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tarry.core.errors import Damage, Unavailable
from tarry.doors.http.asgi import Receive, Scope, Send, json_response, until_gone
from tarry.doors.http.bodies import read_query
from tarry.doors.http.deadlines import Deadlines
from tarry.doors.http.problems import HttpRefusal
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import MAX_EXACT_INT, FramesQuery, LedgerAnswer, SegmentAnswer
from tarry.engine.engine import Engine
from tarry.ledger.ledger import Ledger
from tarry.ledger.reader import Stretch

PIECE_BYTES: Final = 256 << 10


class LedgerEndpoints:
    """GET /v1/ledger and GET /v1/ledger/frames."""

    def __init__(self, engine: Engine, settings: HttpSettings, deadlines: Deadlines) -> None:
        self._engine = engine
        self._deadlines = deadlines
        self._limit = settings.max_ledger_readers
        self.under_way = 0
        """Answers that are being read and sent."""

    async def show(self, request: Request) -> Response:
        """Show the bounds of the ledger, and where each segment begins."""
        ledger = self._ledger(request)
        return json_response(
            LedgerAnswer(
                ledger_id=ledger.ledger_id.hex(),
                first_seq=ledger.first_seq,
                durable_seq=ledger.durable_seq,
                segments=[SegmentAnswer(one.number, one.first_seq) for one in ledger.segments()],
                set_aside=self._engine.set_aside,
            )
        )

    async def frames(self, request: Request) -> Response:
        """The frames of a range, as far as one segment goes."""
        ledger = self._ledger(request)
        asked = read_query(request.scope, FramesQuery)
        if self.under_way >= self._limit:
            raise Unavailable(f"the ledger already has {self._limit} readers; try again in a moment")
        from_seq = asked.from_seq or ledger.first_seq
        self.under_way += 1
        try:
            stretch = await asyncio.to_thread(ledger.stretch, from_seq, asked.upto_seq or MAX_EXACT_INT)
        except BaseException as error:
            self.under_way -= 1
            if isinstance(error, Damage):
                # To an admin the place is told, by the segment's own name; the pipeline stops there and says it.
                place = str(Damage(os.path.basename(error.file), error.offset, error.reason))
                raise HttpRefusal(500, error.code, place) from error
            raise
        return _Frames(self, ledger.ledger_id, stretch, self._deadlines)

    def _ledger(self, request: Request) -> Ledger:
        if not self._engine.ready:
            raise Unavailable("the server is starting")
        return self._engine.ledger


class _Frames(Response):
    """Sends one stretch, piece by piece."""

    def __init__(
        self, endpoints: LedgerEndpoints, ledger_id: bytes, stretch: Stretch, deadlines: Deadlines
    ) -> None:
        super().__init__(
            headers={
                "content-type": "application/octet-stream",
                "cache-control": "no-store",
                "tarry-ledger-id": ledger_id.hex(),
                "tarry-segment": str(stretch.segment),
                "tarry-offset": str(stretch.offset),
                "tarry-first-seq": str(stretch.first_seq),
                "tarry-last-seq": str(stretch.last_seq),
            }
        )
        self.headers["content-length"] = str(stretch.size_bytes)
        self._endpoints = endpoints
        self._stretch = stretch
        self._deadlines = deadlines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read and send; ends early if the reader goes or does not take what it asked for."""
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            file, offset, left = self._stretch.file, self._stretch.offset, self._stretch.size_bytes
            while left and not gone.done():
                piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, left), offset)
                if not piece:
                    # The answer stays shorter than it said: the reader sees that it is not whole.
                    return
                offset, left = offset + len(piece), left - len(piece)
                with self._deadlines.within():
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
        except HttpRefusal:
            # It did not take what was sent, for too long.
            return
        finally:
            gone.cancel()
            self._endpoints.under_way -= 1
