"""The ledger for readers elsewhere: what there is of it, and ranges of it byte for byte as they are on disk.

The pipeline reads this way where it cannot see the ledger's folder. An answer holds whole frames of one segment, never
beyond the durable head; they carry their checksums, so it is the reader who proves them. Everything is in it, so it
needs the role admin for all namespaces.

Reading happens in threads, a piece at a time, and a piece is read when the last one was taken: a slow reader holds up
itself. How many read at once is bounded.
"""

import asyncio
import os
from functools import partial
from typing import Final

from tarry.core.errors import Damage, Unavailable
from tarry.doors.http.bodies import read_query
from tarry.doors.http.problems import HttpRefusal
from tarry.doors.http.responses import json_response
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import MAX_EXACT_INT, FramesQuery, LedgerAnswer, SegmentAnswer
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response, Sender, Streamed
from tarry.ledger.ledger import Ledger
from tarry.ledger.reader import Stretch

PIECE_BYTES: Final = 256 << 10


class LedgerEndpoints:
    """GET /v1/ledger and GET /v1/ledger/frames."""

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        self._engine = engine
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

    async def frames(self, request: Request) -> Streamed:
        """The frames of a range, as far as one segment goes."""
        ledger = self._ledger(request)
        asked = read_query(request.query, FramesQuery)
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
        return Streamed(200, _headers(ledger.ledger_id, stretch), partial(self._send, request, stretch))

    async def _send(self, request: Request, stretch: Stretch, sender: Sender) -> None:
        """Read and send one stretch, piece by piece; ends early if the reader goes or stops taking bytes."""
        try:
            file, offset, left = stretch.file, stretch.offset, stretch.size_bytes
            while left and not request.gone:
                piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, left), offset)
                if not piece:
                    # The answer stays shorter than it said: the reader sees that it is not whole.
                    return
                offset, left = offset + len(piece), left - len(piece)
                await sender.write(piece)
        finally:
            self.under_way -= 1

    def _ledger(self, request: Request) -> Ledger:
        if not self._engine.ready:
            raise Unavailable("the server is starting; try again in a moment")
        return self._engine.ledger


def _headers(ledger_id: bytes, stretch: Stretch) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/octet-stream"),
        (b"cache-control", b"no-store"),
        (b"content-length", b"%d" % stretch.size_bytes),
        (b"tarry-ledger-id", ledger_id.hex().encode()),
        (b"tarry-segment", b"%d" % stretch.segment),
        (b"tarry-offset", b"%d" % stretch.offset),
        (b"tarry-first-seq", b"%d" % stretch.first_seq),
        (b"tarry-last-seq", b"%d" % stretch.last_seq),
    ]
