"""The Futures draft: what is not served yet is refused."""

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.paths import Route
from tarry.doors.matrix.wire import Answered, Request


class Futures:
    """The endpoints of the Futures draft."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.routes: list[Route] = []

    async def reused(self, request: Request, room_id: str, type_: str, last: str, is_state: bool) -> Answered:
        """`future_timeout` or `future_group_id` on /send or /state."""
        del request, room_id, type_, last, is_state
        raise MatrixError(400, "M_UNRECOGNIZED", "Futures are not served here.")
