"""Books that a server's clients keep for themselves: requests, answers, deliveries.

Nothing in here comes from the server's files or its own state, so that an audit of these books is independent
of it. Every message has a label of its own, which is also how its payload begins; the rest of the payload
follows from the label, so that a changed byte shows.
"""

import itertools
import os
import time
import zlib
from dataclasses import dataclass, field
from typing import Final, Literal

FAR_MS: Final = 3_600_000
"""A delay that no run waits for: such a message goes out by command only."""

ALL: Final = "all"
"""The subscription of each topic whose entries are the record of what is in it."""
IN_ORDER: Final = (ALL, "ordered")
"""Exclusive subscriptions: they read in publish order, and the delay of a publication does not apply."""

_numbers = itertools.count()
_run = f"{os.getpid():x}"


def now_ms() -> int:
    """The wall clock, which the server has too."""
    return time.time_ns() // 1_000_000


def new_label() -> str:
    """A label that nobody else has."""
    return f"m{_run}.{next(_numbers)}"


def payload_of(label: str) -> bytes:
    """The payload that belongs to a label: of different lengths, some much longer than the others."""
    seed = zlib.crc32(label.encode())
    length = seed % 200 if seed % 50 else 2_000 + seed % 6_000
    return (label + "|" + label * (length // len(label))).encode()


def label_of(payload: bytes) -> str | None:
    """The label of a payload; None if it is not what was sent."""
    label = payload.partition(b"|")[0].decode("utf-8", "replace")
    return label if payload_of(label) == payload else None


@dataclass(slots=True)
class Command:
    """A cancel, restart or send, and what came of it."""

    verb: Literal["cancel", "restart", "send"]
    asked_at_ms: int
    floor_ms: int = 0
    """The due instant that it may have made, at the least."""
    answered_at_ms: int = 0
    """0: no answer came."""
    done: bool = False
    state: str = ""
    """The state of the message for which a command was refused."""


@dataclass(slots=True)
class Batch:
    """Messages that were scheduled as one, from a file."""

    name: str
    adopted: bool = False
    """Whether its producer was told that all of it is scheduled."""
    cancel_asked: bool = False
    cancelled_at_ms: int = 0
    """When the cancel was answered; 0: it was not."""
    cancelled: int = 0
    """How many ended with it, as it was answered."""


@dataclass(slots=True)
class Message:
    """A message that a producer asked for."""

    label: str
    way: Literal["topic", "webhook"]
    destination: str
    floor_ms: int
    """The instant before which it must not go out."""
    group: str | None = None
    far: bool = False
    noted: bool = False
    """Whether it is in the books yet."""
    id: str | None = None
    """None: the schedule was not answered, so it may or may not be there; or it came with a batch."""
    batch: Batch | None = None
    commands: list[Command] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether its producer was told that it is scheduled."""
        return self.id is not None or (self.batch is not None and self.batch.adopted)

    @property
    def cancelled(self) -> bool:
        """Whether its producer was told that it is cancelled."""
        return any(
            command.verb == "cancel" and (command.done or command.state == "cancelled")
            for command in self.commands
        )

    @property
    def cancel_unknown(self) -> bool:
        """Whether a cancel has no answer, nor one after it; or ended as much of a batch as was left."""
        if self.batch is not None:
            return self.batch.cancel_asked
        cancels = [command for command in self.commands if command.verb == "cancel"]
        return bool(cancels) and not cancels[-1].answered_at_ms

    @property
    def is_due(self) -> bool:
        """Whether it is due within this run for sure: not far, or brought near by a command."""
        return not self.far or any(
            command.state == "sent" or (command.verb != "cancel" and command.done)
            for command in self.commands
        )

    @property
    def waits(self) -> bool:
        """Whether it is not due within this run for sure."""
        return not self.is_due and all(
            command.verb == "cancel" or command.answered_at_ms for command in self.commands
        )

    @property
    def lowest_due_ms(self) -> int:
        """The earliest instant at which it may have been sent for good, by all that is known."""
        return self.lowest_due_at(now_ms())

    def lowest_due_at(self, at_ms: int) -> int:
        """`lowest_due_ms` as of an instant: for an attempt that failed, and later commands found it not sent."""
        floors = [self.floor_ms]
        for command in self.commands:
            if command.verb == "cancel" or command.asked_at_ms > at_ms:
                continue
            if command.done and command.answered_at_ms <= at_ms:
                floors = [command.floor_ms]
            elif command.done or not command.answered_at_ms:
                floors.append(command.floor_ms)
        return min(floors)


@dataclass(slots=True)
class WrongClock:
    """A time in which a server's clock was, or may have been, wrong by so much, either way."""

    from_ms: int
    by_ms: int
    to_ms: int = 1 << 60

    def covers(self, at_ms: int) -> bool:
        """Whether an instant, by either clock, may be in this time."""
        return self.from_ms - self.by_ms <= at_ms <= self.to_ms + self.by_ms


@dataclass(slots=True)
class Publication:
    """An entry that a producer published directly."""

    label: str
    topic: str
    floor_ms: int
    """0 without a delay."""
    repeated: bool
    """Whether it was sent again, under its producer's sequence number, until it was answered."""
    entry_id: int | None = None
    """None: not answered; -1: it was there already."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry that a consumer got."""

    topic: str
    subscription: str
    entry_id: int
    label: str | None
    asked_at_ms: int
    """When the request, or the stream, that brought it began."""
    received_at_ms: int
    published_at_ms: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledgement that was answered."""

    topic: str
    subscription: str
    entry_ids: tuple[int, ...]
    up_to: int
    answered_at_ms: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that the webhook receiver got."""

    label: str | None
    id: str
    at_ms: int
    accepted: bool
    """Whether it answers with 200; with 503 otherwise."""


@dataclass(slots=True)
class Books:
    """All that was written down. Lists only grow, each line by one thread."""

    messages: list[Message] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)
    """Two instants for each kill, or other fault: before it began, and after all that it may explain."""
    wrong_clocks: list[WrongClock] = field(default_factory=list)
    """Times in which what counts is not the clients' clock, but one that was set wrong by a fault."""
    entries: list[Receipt] = field(default_factory=list)
    """Every entry of every topic, in order, as the subscription `ALL` got them."""
    states: dict[str, str] = field(default_factory=dict)
    """By label: what the server said of a message at the end."""
    complaints: list[str] = field(default_factory=list)
    """Answers that no server should give, written down when they came."""
    refused: int = 0
    """Requests refused for the moment (503, 429); they are allowed."""

    def wrong_by(self, at_ms: int) -> int:
        """By how much the clock of a server may have been wrong at an instant."""
        return max((one.by_ms for one in self.wrong_clocks if one.covers(at_ms)), default=0)

    def note(self, *messages: Message) -> None:
        """Write down messages that were asked for, each once."""
        for message in messages:
            if not message.noted:
                message.noted = True
                self.messages.append(message)
