"""The model: the life of one message as clients and receivers may see it, one operation at a time.

Written from the guarantees and not from the code: what each answer says about the message at one instant. Attempts to send
it are two operations, the claim, which is before the receiver gets it, and the verdict, which is after the receiver has
answered; a `send` that waits for its outcome is two as well, "due" and that outcome.
"""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

Phase = Literal["absent", "scheduled", "sending", "sent", "cancelled", "failed"]
Dialect = Literal["native", "seed", "merged", "query"]

FINALISED: Final = ("sent", "cancelled", "failed")
NEVER_MS: Final = 1 << 60


class Life(Struct, frozen=True):
    """Where a message is in its life, and what was asked for."""

    phase: Phase = "absent"
    since_from_ms: int = 0
    since_to_ms: int = 0
    """The delay began at an instant between these two."""
    not_before_ms: int = NEVER_MS
    """No attempt before this instant."""
    uncertain: bool = False
    """Whether an attempt may have arrived although nobody said so."""
    tried: bool = False
    """Whether it is due by a `send` that leaves it scheduled if it is refused."""
    refused: bool = False
    """Whether such a refusal has come."""
    paused: bool = False
    left_ms: int = 0
    """While it is paused: what is left of its delay, at least."""
    forgets: bool = False
    """Whether the server was killed since an attempt of which nobody knows: a further one that did not arrive makes it forget."""


class Happened(NamedTuple):
    """Something that happened to a message."""

    kind: str
    result: str = "ok"
    from_ms: int = 0
    to_ms: int = NEVER_MS
    """By the clock on the wall: when it was asked for and answered."""
    since_ms: int | None = None
    """The instant at which the delay began, by the answer to a look."""


class Model(Struct, frozen=True):
    """The steps of a message of one dialect with one delay."""

    dialect: Dialect
    delay_ms: int
    doubtful: bool = False
    """Whether receivers went away in its time: then an attempt may have got lost unseen."""

    def step(self, life: Life, event: Happened) -> Iterator[Life]:
        """The lives to which an event may lead."""
        yield from getattr(self, f"_{event.kind}")(life, event)

    # Commands

    def _schedule(self, life: Life, event: Happened) -> Iterator[Life]:
        if life.phase == "absent":
            yield self._begun(Life("scheduled"), event)

    def _restart(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "ok" and life.phase == "scheduled":
            yield self._begun(life, event)
        if event.result == "conflict" and life.phase in FINALISED:
            yield life

    def _begun(self, life: Life, event: Happened) -> Life:
        """A delay begins."""
        return replace(
            life, since_from_ms=event.from_ms, since_to_ms=event.to_ms,
            not_before_ms=event.from_ms + self.delay_ms, tried=False, paused=False,
        )  # fmt: skip

    def _pause(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "ok" and life.phase == "scheduled":
            left_ms = life.left_ms if life.paused else max(0, life.not_before_ms - event.to_ms)
            yield replace(life, paused=True, left_ms=left_ms)
        if event.result == "conflict" and life.phase in FINALISED:
            yield life

    def _resume(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "ok" and life.paused:
            # The delay begins as much later as the pause was long, unless nothing was left of it.
            yield replace(
                life, paused=False, not_before_ms=event.from_ms + life.left_ms, since_to_ms=event.to_ms
            )
        if event.result == "conflict" and not life.paused:
            yield life

    def _retry(self, life: Life, event: Happened) -> Iterator[Life]:
        if event.result == "ok" and life.phase == "failed":
            # It is due at once, whatever its delay was.
            since = (event.from_ms - self.delay_ms, event.to_ms - self.delay_ms)
            yield replace(
                life, phase="scheduled", since_from_ms=since[0], since_to_ms=since[1],
                not_before_ms=event.from_ms, paused=False,
            )  # fmt: skip
        if event.result == "conflict" and life.phase != "failed":
            yield life

    # Other messages that want its name

    def _named(self, life: Life, _event: Happened) -> Iterator[Life]:
        """Another one is not accepted, since this one has the name."""
        if life.phase in ("scheduled", "sending"):
            yield life

    def _unnamed(self, life: Life, _event: Happened) -> Iterator[Life]:
        """Another one is accepted, since the name is free."""
        if life.phase in FINALISED:
            yield life

    def _replace(self, life: Life, event: Happened) -> Iterator[Life]:
        """Another one takes its place and its name, which a cancel makes free."""
        if event.result == "ok" and life.phase == "scheduled" and not life.uncertain:
            yield replace(life, phase="cancelled", paused=False)
        if event.result == "conflict" and (life.uncertain or self.doubtful):
            yield life

    def _cancel(self, life: Life, event: Happened) -> Iterator[Life]:
        unsent = life.phase in ("cancelled", "failed")
        if event.result == "ok":
            if life.phase == "scheduled" and not life.uncertain:
                yield replace(life, phase="cancelled", paused=False)
            if unsent and self.dialect == "merged":
                yield life
        if event.result == "conflict":
            unknown = life.phase == "scheduled" and (life.uncertain or self.doubtful)
            if life.phase == "sent" or unknown or (unsent and self.dialect != "merged"):
                yield life

    def _due(self, life: Life, _event: Happened) -> Iterator[Life]:
        """A `send` takes effect."""
        if life.phase == "scheduled":
            yield replace(life, not_before_ms=0, tried=self.dialect == "merged", paused=False)

    def _outcome(self, life: Life, event: Happened) -> Iterator[Life]:
        """A `send` is answered with what became of the message."""
        match event.result:
            case "sent":
                fits = life.phase == "sent"
            case "late":
                fits = life.phase in ("scheduled", "sending")
            case "refused":
                fits = life.refused if self.dialect == "merged" else life.phase == "failed"
            case "conflict" if self.dialect == "native":
                fits = life.phase in FINALISED
            case "conflict":
                # An event that failed is told by its error, but for the merged dialect.
                fits = life.phase == "cancelled" or (life.phase == "failed" and self.dialect == "merged")
            case _:
                fits = False
        if fits:
            yield life

    def _look(self, life: Life, event: Happened) -> Iterator[Life]:
        shown = life.phase
        if event.result == "waiting":
            fits = shown in ("scheduled", "sending")
        elif event.result == "paused":
            fits = life.paused
        elif event.result == "sending":
            # An attempt at a receiver that is down is seen by nobody else.
            on_its_way = shown == "scheduled" and event.to_ms >= life.not_before_ms
            fits = not life.paused and (shown == "sending" or on_its_way)
        else:
            fits = shown == event.result and not life.paused
        since = event.since_ms
        if since is not None and shown not in FINALISED:
            fits = fits and life.since_from_ms <= since <= life.since_to_ms
        if fits:
            yield life

    # Attempts

    def _claim(self, life: Life, event: Happened) -> Iterator[Life]:
        if life.phase == "scheduled" and not life.paused and event.to_ms >= life.not_before_ms:
            yield replace(life, phase="sending")

    def _verdict(self, life: Life, event: Happened) -> Iterator[Life]:
        for after in self._judged(life, event):
            yield after
            # A start does not remember how often a message was tried before, as the guarantees say.
            if life.forgets and after.phase == "scheduled" and event.result != "lost":
                yield replace(after, uncertain=False, forgets=False)

    def _judged(self, life: Life, event: Happened) -> Iterator[Life]:
        if life.phase != "sending":
            return
        waiting = replace(life, phase="scheduled")
        match event.result:
            case "accepted":
                yield replace(life, phase="sent")
            case "refused":
                yield replace(life, phase="failed", refused=True)
                if life.tried:
                    due_ms = life.since_from_ms + self.delay_ms
                    yield replace(waiting, not_before_ms=due_ms, tried=False, refused=True)
            case "later":
                yield waiting
            case "hung up":
                # It was not taken; whether the server can know that depends on how the connection ended.
                yield replace(waiting, uncertain=True)
                yield waiting
            case "lost":
                # It was taken, and the reply was lost.
                yield replace(waiting, uncertain=True)

    # The server

    def _crash(self, life: Life, _event: Happened) -> Iterator[Life]:
        """The server is killed and comes back: what it was sending may have arrived, all else is as it was answered."""
        if life.phase == "sending":
            yield replace(life, phase="scheduled", uncertain=True, forgets=True)
        else:
            yield replace(life, forgets=life.uncertain)
