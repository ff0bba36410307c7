"""The life of a message: one table of what commands and attempts may do in each state.

A message is `scheduled` until something begins to send it or ends it. `sending` is the stretch between the
claim and the verdict; it lives in memory only, and after a crash everything overdue counts as being
sent until it was tried again (R11). `sent`, `cancelled` and `failed` are the end: finalised.

             restart, send, pause
                  ┌────┐
                  │    ▼       claim                 delivered
    schedule ──▶ scheduled ─────────────▶ sending ──────────────▶ sent
                  │    ▲                   │   │
           cancel │    └───────────────────┘   │ refused
                  ▼        not_delivered       ▼     retry
              cancelled                      failed ───────▶ scheduled

While `sending`, a command does not decide: it waits for the verdict (`WAIT`), and is then looked up
again in the state that the verdict brought.

The commands on one message are linearizable. Each takes effect at one instant between its request and its answer, that
in which its record is enqueued, and of two answered commands the one that was recorded later holds. So `send` makes a
message due and promises no more: a cancel or a restart that is recorded before an attempt, or between two, holds over it.
Success may be said of a `send` only where the message was sent; who says more than "due" waits for that
(`tarry.engine.queries.hearing`).

A failed message can be retried: a new version of it is accepted, and it waits once more, under the same id. Of the ends this one
alone can be taken back, because nothing that was answered says otherwise: sent and cancelled are promises.

A delayed entry of a topic is a message for that topic, published already: it goes from `scheduled` to `sent` by `ready`,
when shared and key-shared subscriptions may have it. Exclusive and failover subscriptions ignore delays, and what they have
read changes no state.

Where nothing can come in between there is nothing to look up, and a single record takes a message from `scheduled` to
its end: into one of Tarry's own topics it is published and sent by the same record; one whose time to live is over, or
whose record cannot be read, has failed when it is due; and with a batch that is cancelled as a whole all its messages
are, but for those being sent.
"""

from enum import StrEnum
from typing import Final

from tarry.core.errors import Conflict


class State(StrEnum):
    """Where a message is in its life."""

    SCHEDULED = "scheduled"
    SENDING = "sending"
    SENT = "sent"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event(StrEnum):
    """An event in a message's life."""

    RESTART = "restart"
    """A new version with a new due instant; by command."""
    PAUSE = "pause"
    """A new version that waits until it is resumed, and then one with what was left of the delay; by command."""
    SEND = "send"
    """Due now; by command."""
    RETRY = "retry"
    """A new version of a message that has failed; by command."""
    CANCEL = "cancel"
    """By command, or because its group or its owner is done with."""
    CLAIM = "claim"
    """The dispatcher begins to send it."""
    DELIVERED = "delivered"
    NOT_DELIVERED = "not_delivered"
    """The attempt did not arrive; there will be another."""
    REFUSED = "refused"
    """The attempt can never arrive, attempts are used up, or its time to live is over."""
    READY = "ready"
    """A delayed entry of a topic is due, and subscriptions that wait for it may have it."""


class Wait:
    """The command waits for the verdict of the attempt under way."""


WAIT: Final = Wait()

FINALISED: Final = frozenset({State.SENT, State.CANCELLED, State.FAILED})

_S, _E = State, Event

TRANSITIONS: Final[dict[tuple[State, Event], State | Wait]] = {
    (_S.SCHEDULED, _E.RESTART): _S.SCHEDULED,
    (_S.SCHEDULED, _E.PAUSE): _S.SCHEDULED,
    (_S.SCHEDULED, _E.SEND): _S.SCHEDULED,
    (_S.SCHEDULED, _E.CANCEL): _S.CANCELLED,
    (_S.SCHEDULED, _E.CLAIM): _S.SENDING,
    (_S.SCHEDULED, _E.READY): _S.SENT,
    (_S.SENDING, _E.RESTART): WAIT,
    (_S.SENDING, _E.PAUSE): WAIT,
    (_S.SENDING, _E.SEND): WAIT,
    (_S.SENDING, _E.CANCEL): WAIT,
    (_S.FAILED, _E.RETRY): _S.SCHEDULED,
    (_S.SENDING, _E.DELIVERED): _S.SENT,
    (_S.SENDING, _E.NOT_DELIVERED): _S.SCHEDULED,
    (_S.SENDING, _E.REFUSED): _S.FAILED,
}
"""Every pair that is not here is a conflict."""


_BY_COMMAND: Final = {
    _E.RESTART: "restarted",
    _E.PAUSE: "paused",
    _E.SEND: "sent",
    _E.RETRY: "retried",
    _E.CANCEL: "cancelled",
}


def next_state(state: State, event: Event) -> State | Wait:
    """The state that an event leads to; raises `Conflict` where the table has no such pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        done = _BY_COMMAND.get(event, event.value)
        raise Conflict(f"the message is {state}, so it cannot be {done}", state) from None
