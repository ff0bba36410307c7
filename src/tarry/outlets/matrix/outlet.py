"""Sends a due event to the homeserver, once, as its user, and gives the verdict.

An application service speaks for the user (`user_id`). The transaction id is made from the message's id, so that it is the
same at every attempt and known before the first (R11); it is a digest, because whoever has the id may command the event.
The homeserver remembers a transaction across its own restarts only for a device, so the one that scheduled the
event is named; where it is gone, the event is sent without, and of a deactivated account not at all.

Only what the Matrix door accepted is sent: anybody else who can schedule could otherwise speak for any user.
"""

import hashlib
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Delivery, Refused, Verdict
from tarry.core.messages.message import LED_BY
from tarry.core.time.clock import Clock
from tarry.core.unreadable import UNREADABLE
from tarry.outlets.matrix.destination import Destination, parse
from tarry.outlets.matrix.homeserver import FAILURES, Homeserver
from tarry.outlets.matrix.lines import HomeserverUnreachable, LineAnswer
from tarry.outlets.matrix.template import filled
from tarry.outlets.matrix.verdict import KeptError, matrix_error, of_answer, of_failure

DOOR: Final = "matrix"
DEVICE: Final = "device"
"""The header of a message that names the device which scheduled it."""
STICKY: Final = "sticky_ms"
"""The header of a message that says for how long its event is sticky (MSC4354)."""
STICKY_PARAMETER: Final = "org.matrix.msc4354.sticky_duration_ms"
REDACTION: Final = "m.room.redaction"

_CLIENT: Final = "/_matrix/client/v3"
_IMPOSSIBLE_DEVICE: Final = "x" * 513
"""Longer than any device id may be: a login with it is refused, but only after the account was looked at."""

_content = msgspec.json.Decoder(dict[str, Any])
DEACTIVATED: Final = msgspec.json.encode(
    KeptError(403, {"errcode": "M_USER_DEACTIVATED", "error": "This account has been deactivated"})
).decode()


class MatrixOutlet:
    """The outlet for `matrix://` destinations."""

    def __init__(self, homeserver: Homeserver, clock: Clock) -> None:
        self._homeserver = homeserver
        self._clock = clock

    def check(self, destination: str) -> None:
        """Raise `Invalid` unless a destination names a room and an event type."""
        parse(destination)

    def order_key(self, destination: str, key: str | None) -> str | None:
        """One after another within a room; rooms do not wait for each other."""
        return destination.split("/", 3)[2]

    async def send(self, delivery: Delivery) -> Verdict:
        """Send it once."""
        if delivery.door != DOOR:
            return Refused("only the Matrix door may send as a user of the homeserver")
        try:
            destination = parse(delivery.destination)
        except Invalid as error:
            return Refused(error.reason)
        if LED_BY in delivery.headers:
            content = filled(delivery.payload, delivery.headers[LED_BY])
            delivery = msgspec.structs.replace(delivery, payload=content)
        method, path = request_of(destination, delivery)
        who = {"user_id": delivery.owner}
        if STICKY in delivery.headers:
            who[STICKY_PARAMETER] = delivery.headers[STICKY]
        device = delivery.headers.get(DEVICE)
        try:
            asked = who if device is None else {**who, "device_id": device}
            answer = await self._ask(method, path, asked, delivery)
            if device is not None and _is_unknown_device(answer):
                if await is_deactivated(self._homeserver, delivery.owner):
                    return Refused("the account has been deactivated", error=DEACTIVATED)
                answer = await self._ask(method, path, who, delivery)
        except FAILURES as failure:
            return of_failure(not isinstance(failure, HomeserverUnreachable), delivery.attempt)
        return of_answer(answer, delivery.attempt, self._clock.now_ms())

    async def _ask(self, method: str, path: str, query: dict[str, str], delivery: Delivery) -> LineAnswer:
        encoded = "&".join([f"{name}={_quote(value)}" for name, value in query.items()])
        return await self._homeserver.as_service(method, f"{path}?{encoded}", delivery.payload)


def transaction_of(id_: str) -> str:
    """The transaction id of a message: the same for ever, and of no use to who would command the message."""
    return "tarry-" + hashlib.blake2b(id_.encode(), digest_size=16, person=b"matrix-txn").hexdigest()


def request_of(destination: Destination, delivery: Delivery) -> tuple[str, str]:
    """The method and the path that send an event."""
    room, type_ = _quote(destination.room_id), _quote(destination.type)
    if destination.state_key is not None:
        return "PUT", f"{_CLIENT}/rooms/{room}/state/{type_}/{_quote(destination.state_key)}"
    transaction = transaction_of(delivery.id)
    if destination.type == REDACTION and (redacts := _redacts(delivery.payload)) is not None:
        # The one way to redact that works in rooms of every version.
        return "PUT", f"{_CLIENT}/rooms/{room}/redact/{_quote(redacts)}/{transaction}"
    return "PUT", f"{_CLIENT}/rooms/{room}/send/{type_}/{transaction}"


async def is_deactivated(homeserver: Homeserver, user_id: str) -> bool:
    """Whether an account is deactivated; raises one of `FAILURES`.

    The application service asks to log in as the user with a device id that no server takes. Synapse looks at the
    account first; a server that answers anything else is taken at its word that the account is fine.
    """
    login = {
        "type": "m.login.application_service",
        "identifier": {"type": "m.id.user", "user": user_id},
        "device_id": _IMPOSSIBLE_DEVICE,
    }
    answer = await homeserver.as_service("POST", f"{_CLIENT}/login", msgspec.json.encode(login))
    return answer.status == 403 and matrix_error(answer).body["errcode"] == "M_USER_DEACTIVATED"


def _is_unknown_device(answer: LineAnswer) -> bool:
    return answer.status == 400 and matrix_error(answer).body["errcode"].endswith("UNKNOWN_DEVICE")


def _redacts(content: bytes) -> str | None:
    try:
        redacts = _content.decode(content).get("redacts")
    except UNREADABLE:
        return None
    return redacts if isinstance(redacts, str) and redacts else None


@lru_cache(maxsize=8_192)
def _quote(part: str) -> str:
    return quote(part, safe="")
