"""Features that clients are told of: `/versions` and `/capabilities` as the homeserver has them, completed by what Tarry adds.

A homeserver may serve delayed events itself; through Tarry its clients get Tarry's, so Tarry's limits are told.
"""

from typing import Any, Final

import msgspec

from tarry.core.unreadable import UNREADABLE
from tarry.doors.matrix.dialects import UNSTABLE
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.wire import MatrixRequest, ok
from tarry.http.response import Response
from tarry.outlets.matrix.homeserver import FAILURES

_PASSED_ON: Final = (b"authorization", b"accept-language", b"user-agent")

_object_decoder = msgspec.json.Decoder(dict[str, Any])


class Features:
    """The two endpoints that are completed."""

    def __init__(self, parts: Parts) -> None:
        self._homeserver = parts.homeserver
        settings = parts.settings
        self._unstable = {UNSTABLE: True, "org.matrix.msc4486": True}
        if settings.stable:
            self._unstable[f"{UNSTABLE}.stable"] = True
        limits = {"max_delay_ms": settings.max_delay_ms, "max_scheduled": settings.max_pending_per_user}
        told = {name: limit for name, limit in limits.items() if limit}
        self._capabilities = {f"{UNSTABLE}.delayed_events": told}
        if settings.stable:
            self._capabilities["m.delayed_events"] = told

    async def versions(self, request: MatrixRequest) -> Response:
        """GET /_matrix/client/versions."""
        return await self._completed(request, "unstable_features", self._unstable)

    async def capabilities(self, request: MatrixRequest) -> Response:
        """GET /_matrix/client/v3/capabilities."""
        return await self._completed(request, "capabilities", self._capabilities)

    async def _completed(self, request: MatrixRequest, field: str, added: dict[str, Any]) -> Response:
        http = request.http
        headers = {
            name.decode(): value.decode("latin-1")
            for name in _PASSED_ON
            if (value := http.header(name)) is not None
        }
        try:
            answer = await self._homeserver.request("GET", http.target, headers=headers)
        except FAILURES:
            raise MatrixError(502, "M_UNKNOWN", "The homeserver cannot be reached.") from None
        try:
            body = _object_decoder.decode(answer.body)
        except UNREADABLE:
            raise MatrixError(502, "M_UNKNOWN", "The homeserver's answer is not JSON.") from None
        if answer.status == 200:
            had = body.get(field)
            body[field] = {**(had if isinstance(had, dict) else {}), **added}
        return ok(body, answer.status)
