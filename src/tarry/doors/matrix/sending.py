"""Sending an event now, for every way to ask for it: the answer is what became of the event.

Success is said of an event that the homeserver has, and of no other. One that it has not got yet stays due: it is sent as
soon as that is possible, unless a later command says otherwise.
"""

import asyncio
from typing import Final

from tarry.core.errors import Conflict
from tarry.core.messages.delivery import Delivered, Retry, Verdict
from tarry.core.messages.lifecycle import FINALISED, State
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.parts import Parts

DUE: Final = "It is sent as soon as the homeserver takes it, unless it is cancelled or restarted before."


async def deliver(parts: Parts, id_: str, *, namespace: str, keep: bool = False) -> Verdict:
    """Make an event due now and give the homeserver's word on it: `Delivered`, `Refused`, or a `Retry` with its error.

    Raises the answer where the homeserver has said nothing; `Conflict` for an event that is finalised already.
    """
    try:
        async with asyncio.timeout(parts.settings.send_timeout_ms / 1000):
            verdict = await parts.engine.deliver(id_, keep=keep, namespace=namespace)
    except TimeoutError:
        return await _after_all(parts, id_, namespace)
    except Conflict as error:
        if error.state == "restarted":
            text = "The event was restarted before it could be sent; it waits for its delay again."
            raise MatrixError(503, "M_UNKNOWN", text) from None
        raise
    if isinstance(verdict, Retry) and verdict.error is None:
        raise not_sent(verdict)
    return verdict


async def _after_all(parts: Parts, id_: str, namespace: str) -> Verdict:
    """The outcome of an event although nothing was heard in time; raises as `deliver` does."""
    view = await parts.engine.get(id_, namespace=namespace)
    if view.state is State.SENT:
        return Delivered(view.reference)
    if view.state in FINALISED:
        raise Conflict(f"the event is {view.state}", view.state)
    raise MatrixError(504, "M_UNKNOWN", f"The homeserver has not taken the event in time. {DUE}")


def not_sent(verdict: Retry) -> MatrixError:
    """The answer to a send whose attempt did not arrive."""
    return MatrixError(502, "M_UNKNOWN", f"The event is not sent yet: {verdict.reason}. {DUE}")
