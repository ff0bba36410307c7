"""Knowledge of the outside world: requests, answers, arrivals.

Nothing here looks into the engine. After a crash a client knows of an unanswered operation only that it may or may
not have happened; the records below say so (`maybe`), and the checker believes no more than they say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tarry.core.messages.message import Message, NamedMessage, Scheduled
from tarry.core.messages.pause import PlaceKind
from tarry.core.messages.repeat import PLANNED_HEADER, Repeat
from tarry.core.names import DEFAULT_NAMESPACE
from tarry.core.time.times import format_instant

TOPICS = ("orders", "jobs", "mail")
EAGER = "eager"
"""The one topic whose policy may switch delayed delivery off, so that "early" has no meaning there."""
FLEETING = "fleeting"
"""The one topic that is deleted now and then, so that nobody can say what must be in it."""
DEAD_LETTERS = "dead-letters"
LETTERS = "letters"
"""Where the entries go that came too often."""
WHOLE = 0b111
"""The messages of an entry of which nothing is acknowledged, as bits."""
AUDIT = "audit"
"""The subscription that reads a topic from its first entry on."""
HOSTS = ("sim://alpha/in", "sim://beta/in")
NEVER_MS = 1 << 60
"""The due instant of what goes out by command only, or not while it is paused."""
Place = tuple[PlaceKind, str, str]
"""A place that can be paused: its kind, its namespace, and its address, the short name of its topic or its owner."""

ELSEWHERE = "acme/other"
"""A namespace of messages for hosts: their owners are others than those of the same names in the default one."""


def holder_of(message: Message) -> tuple[str, str]:
    """The holder of a message."""
    return message.namespace or DEFAULT_NAMESPACE, message.owner


def group_of(message: Message) -> tuple[str, str, str | None]:
    """The identity of a message's group."""
    return message.namespace or DEFAULT_NAMESPACE, message.owner, message.group


def places_of(message: Message) -> list[Place]:
    """The places of a message, each of which may be paused."""
    namespace, destination = message.namespace or DEFAULT_NAMESPACE, message.destination
    owner: Place = ("owner", namespace, message.owner)
    if not destination.startswith("sim:"):
        return [owner, ("topic", namespace, short(destination))]
    host = destination.rpartition("/")[0]
    return [owner, ("destination", namespace, destination), ("destination", namespace, host)]


def short(topic: str) -> str:
    """The last part of a topic's name."""
    return topic.rpartition("/")[2]


@dataclass(eq=False)
class Promise:
    """A message may go out once the clock has shown `due_at_ms`, in a reading from `since` on."""

    due_at_ms: int
    since: int


@dataclass(eq=False)
class Msg:
    """A message as its client knows it."""

    token: str
    message: Message
    promises: list[Promise]
    """Whichever of them is in force; more than one only while it is not known which."""
    born: int
    """The number of the step that asked for it."""
    accepted: Scheduled | None = None
    first_frame: int = 0
    """How many frames of the ledger there were when it was first asked for."""
    floor_ms: int = 0
    """The earliest fire instant, whenever it is due: the clock when it was first asked for."""
    ceiling_ms: int = 0
    """If it is due before this, it fires no later: the highest reading of the clock when it was last asked for."""
    asks: int = 0
    """Requests for it that were not refused: more than one where its idempotency key was repeated."""
    delays: list[int] = field(default_factory=list)
    """The delay that a restart begins again; more than one while it is not known which."""
    busy: bool = False
    """A command for it is not answered yet."""
    replacers: int = 0
    """Requests that may have put another message of its name in its place."""
    replaced_one: bool = False
    """Its answer was that it took the place of another."""
    superseded: bool = False
    """A later message has its name: this one has ended."""
    cancelled: bool = False
    """A cancel was answered, or a message that takes its place."""
    cancel_maybe: bool = False
    bulk: int = 0
    """Bulk commands that may act on it now."""
    retrying: int = 0
    """Bulk commands that retry it as soon as it has failed."""
    commands: int = 0
    """How often it was commanded by itself."""
    accepted_step: int = NEVER_MS
    """The step in which its acceptance was answered."""
    maybe_paused: bool = False
    """Paused by a command on itself, or perhaps."""
    frozen_ms: int | None = None
    """When it was due at the earliest before it was paused, once that is answered."""
    batch: str = ""
    """The batch that it was adopted with."""
    doomed: bool = False
    """Its whole batch may be cancelled."""
    silent: bool = False
    """The cancel of its whole batch was answered: it is not launched any more."""
    touched: bool = False
    """There was a command for it: its place in any order is not known from outside."""
    launches: int = 0
    """How often an outlet was told to send it."""
    arrivals: list[int] = field(default_factory=list)
    """The lives in which its receiver got it."""
    unsure: bool = False
    """An attempt of this life ended without a reply."""
    lost: bool = False
    """An attempt of an earlier life ended without a reply, or with that life, and none was made since."""
    verdict_life: int = -1
    """The life in which the outlet gave a verdict that ends it."""
    ended: bool = False
    """Its end is durable: it must never go out again."""
    refused: bool = False
    """The outlet refused it once, or it was tried as often as may be."""
    told: str = ""
    """The end that the engine told of: sent, cancelled or failed."""
    leader: "Msg | None" = None
    """The message that leads its group: it is due only after that was sent."""
    retries: int = 0
    """How often it was retried after it had failed, or perhaps."""

    def promise(self, promise: Promise) -> None:
        """A command was answered: it goes out then, unless a bulk command that is under way says otherwise."""
        if self.bulk:
            self.promises.append(promise)
        else:
            self.promises = [promise]

    def known(self) -> "KnownOfMsg":
        """The knowledge of its end."""
        return KnownOfMsg(list(self.promises), self.ended, self.told, self.verdict_life, self.silent)

    def begin_again(self) -> None:
        """Take note that it may have been accepted once more: then it has not ended."""
        self.ended, self.told, self.verdict_life, self.silent = False, "", -1, False

    def go_on(self, known: "KnownOfMsg") -> None:
        """Take back what was noted: it was not accepted once more."""
        self.promises, self.ended, self.told, self.verdict_life, self.silent = known

    @property
    def maybe(self) -> bool:
        """Asked for, and neither accepted nor refused as far as is known."""
        return self.accepted is None and self.asks > 0

    @property
    def maybe_cancelled(self) -> bool:
        """Whether a cancel of it, or of its batch, may have happened."""
        return self.cancel_maybe or self.doomed or self.replacers > 0

    @property
    def place(self) -> tuple[str, str] | None:
        """The namespace and the name of a message that has one."""
        message = self.message
        return (
            (message.namespace or DEFAULT_NAMESPACE, message.name)
            if isinstance(message, NamedMessage)
            else None
        )

    @property
    def foreign(self) -> bool:
        """Whether its receiver is another system."""
        return self.message.destination.startswith("sim:")

    @property
    def eager(self) -> bool:
        """Whether its policy may say that it is due at once."""
        return self.message.destination == EAGER

    @property
    def order(self) -> str | None:
        """Messages with the same order go out one after another."""
        return f"{self.message.destination} {self.message.key}" if self.foreign and self.message.key else None

    @property
    def timed(self) -> bool:
        """Whether it has a due instant of its own."""
        return self.message.due_at_ms is not None or self.message.delay_ms is not None


def token_of(headers: Mapping[str, str]) -> str:
    """The token of a message: occurrences of a repeat have one each."""
    token, planned = headers.get("token", ""), headers.get(PLANNED_HEADER)
    return token if planned is None else f"{token}@{planned}"


@dataclass(eq=False)
class AskedRepeat:
    """A repeat as its client knows it."""

    name: str
    repeat: Repeat
    first_ms: int
    """The planned instant of its first occurrence."""
    accepted: bool = False
    refused: bool = False
    disturbed: bool = False
    """Whether it was paused, changed or removed, or perhaps."""
    removed: bool = False
    """Whether its removal was answered."""
    none_after_ms: int | None = None
    """Occurrences planned for a later instant go out no more."""

    def planned_ms(self) -> list[int]:
        """The planned instants of its occurrences, if it misses none."""
        return [self.first_ms + at * self.repeat.every_ms for at in range(self.repeat.count or 0)]

    def tokens(self) -> list[str]:
        """The tokens of its occurrences, if it misses none."""
        return [f"{self.repeat.headers['token']}@{format_instant(at_ms)}" for at_ms in self.planned_ms()]


class KnownOfMsg(NamedTuple):
    """A client's knowledge of a message's end, and of when it may go out."""

    promises: list[Promise]
    ended: bool
    told: str
    verdict_life: int
    silent: bool


@dataclass
class Publication:
    """An entry that a client published."""

    token: str
    topic: str
    payload: bytes
    headers: dict[str, str]
    key: str | None
    deliver_at_ms: int | None
    ttl_ms: int | None
    since: int
    producer: tuple[str, int] | None = None
    entry_id: int | None = None
    """As it was answered."""
    maybe: bool = True
    accepted: bool = False
    dues: list[Promise] = field(default_factory=list)
    """Other instants that it may be due at: nobody knows whether they were taken."""
    recalled: bool = False
    """Its cancel was answered."""
    commanded: bool = False
    """A command for it was answered: its outcome is remembered."""
    id: str | None = None
    """Its id as a message, once a client has seen it."""
    busy: int = 0
    """Commands for it that are not answered yet."""
    maybe_paused: bool = False
    frozen_ms: int | None = None
    """When it was due at the earliest before it was paused."""

    def moved(self, asked: Promise, due: Promise) -> None:
        """Take note that a command for one due instant was answered with another."""
        before = Promise(self.deliver_at_ms or 0, self.since)
        if self.busy:
            # Of commands that are under way together nobody knows which is decided last: one may have to fetch the body.
            self.dues.remove(asked)
            self.dues.append(before)
        else:
            self.dues[:] = self.dues[self.dues.index(asked) + 1 :]
        self.deliver_at_ms, self.since = due.due_at_ms, due.since


@dataclass
class Seen:
    """An entry as consumers see it: always the same."""

    token: str
    payload: bytes
    headers: dict[str, str]
    key: str | None
    published_at_ms: int
    message_id: str | None


@dataclass(eq=False)
class Sub:
    """A subscription, and what its consumers have said and seen."""

    topic: str
    name: str
    type: str
    max_redeliveries: int = 0
    durable: bool = True
    loose: bool = False
    """Whether its type is unknown."""
    accepted: bool = False
    first: int | None = None
    """The first entry that it must get; None while that is not known."""
    busy: int = 0
    """Acknowledgements and seeks not answered yet."""
    acked: set[int] = field(default_factory=set)
    """Entries that are acknowledged for certain; they must not come."""
    acked_below: int = 0
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Entries acknowledged in part: the bits that are left at the most, and at the least while an answer is open."""
    honours: bool = False
    """Delays count though it is exclusive or failover; the server forgets that with its life."""
    excused: set[int] = field(default_factory=set)
    """Entries that may be acknowledged, or were once: they may come or not."""
    excused_below: int = 0
    letters: set[int] = field(default_factory=set)
    """Entries that came so often that they may be dead letters now."""
    nacks: dict[int, int] = field(default_factory=dict)
    """How often each entry was given back in this life."""
    got: dict[int, int] = field(default_factory=dict)
    """Entries that came in this life, and how often."""
    last_fresh: int = -1
    """The highest entry that came in this life, where the order is that of publication."""
    last_of_key: dict[str, int] = field(default_factory=dict)
    consumers: list["Reader"] = field(default_factory=list)

    @property
    def in_order(self) -> bool:
        """Whether entries come in the order of their publication."""
        return self.type in ("exclusive", "failover") and not self.honours

    def new_life(self) -> None:
        """The server is gone, and with it who holds what."""
        self.consumers.clear()
        self.busy = 0
        self.honours = False
        self.rewound()

    def rewound(self) -> None:
        """Entries may come again."""
        self.nacks.clear()
        self.got.clear()
        self.last_fresh = -1
        self.last_of_key.clear()
        for reader in self.consumers:
            reader.held.clear()


@dataclass(eq=False)
class Reader:
    """An attached consumer."""

    sub: Sub
    name: str
    handle: Any = None
    attached_to: Any = None
    """The subscription of the engine."""
    priority: int = 0
    permits: int = 0
    held: dict[int, str | None] = field(default_factory=dict)
    """Entries that it was given and has neither acknowledged nor given back, with their keys."""
    closed: bool = False


@dataclass
class Model:
    """Everything the outside world knows."""

    messages: dict[str, Msg] = field(default_factory=dict)
    publications: dict[str, Publication] = field(default_factory=dict)
    entries: dict[str, dict[int, Seen]] = field(default_factory=dict)
    """By topic and entry id, as any consumer saw them."""
    places: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """By token: the entries that hold it."""
    letters: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """By token: the dead letters that hold it."""
    subs: dict[tuple[str, str], Sub] = field(default_factory=dict)
    recalled: set[tuple[str, int]] = field(default_factory=set)
    """Topics and ids of entries that were cancelled, or may have been."""
    held: dict[Place, int] = field(default_factory=dict)
    """Places that are paused for certain, and the place of the clock's reading at which that was answered among all."""
    pausing: set[Place] = field(default_factory=set)
    """Places with a command that is not answered yet."""
    ever_paused: set[Place] = field(default_factory=set)
    """Places that are or were paused, or perhaps: what came first there may go later."""
    withdrawn: set[tuple[str, int]] = field(default_factory=set)
    """Topics and ids of dead letters whose messages were retried: they come to nobody any more."""
    unread: set[int] = field(default_factory=set)
    """Ids of dead letters that were taken back before anybody had read them, as far as can be."""
    repeats: dict[str, AskedRepeat] = field(default_factory=dict)
    """By token."""
    deleted: set[str] = field(default_factory=set)
    """Tokens that were in the fleeting topic when it was deleted."""
    damaged: bool = False
    """A bit was flipped while the server ran: messages may end as failed, never wrong."""
    clock_set_back: bool = False
    tick_ms: int = 1
    """The longest tick that was ever in force."""
    limited: bool = False
    """There was a limit on sending, and perhaps there is not any more: what came first may go later."""

    def accepted(self) -> list[Msg]:
        """Messages that are accepted for certain."""
        return [msg for msg in self.messages.values() if msg.accepted is not None]

    def named_before(self, msg: Msg) -> list[Msg]:
        """Messages that were asked for under the name of another before that one, in this order."""
        asked = [one for one in self.messages.values() if one.place == msg.place]
        return asked[: asked.index(msg)]

    def repeat_named(self, name: str) -> AskedRepeat | None:
        """The repeat of a name that was asked for last, and not refused."""
        named = [asked for asked in self.repeats.values() if asked.name == name and not asked.refused]
        return named[-1] if named else None

    def is_taken_back(self, topic: str, entry_id: int) -> bool:
        """Whether nobody needs to get an entry: it was cancelled, or is the dead letter of a message that was retried."""
        if (topic, entry_id) in self.recalled:
            return True
        if topic != DEAD_LETTERS or entry_id in self.entries.get(topic, {}):
            return False
        # No more than there were retries.
        self.unread.add(entry_id)
        return len(self.unread) <= sum(msg.retries for msg in self.messages.values())

    def held_since(self, places: Iterable[Place]) -> int | None:
        """The reading of the clock from which on nothing goes out at these places; None if they are not paused for certain."""
        return min((self.held[place] for place in places if place in self.held), default=None)

    def new_life(self) -> None:
        """The server is gone, and with it who waits for what."""
        self.pausing.clear()
        for publication in self.publications.values():
            publication.busy = 0
        for msg in self.messages.values():
            msg.busy = False
            msg.lost |= msg.unsure
            msg.unsure = False
        self.subs = {name: sub for name, sub in self.subs.items() if sub.durable}
        for sub in self.subs.values():
            sub.new_life()
        # Whether a deletion that was not answered has happened is not known: the same ids may be other entries.
        self.entries.pop(FLEETING, None)

    def forget_fleeting(self) -> list[str]:
        """The fleeting topic is being deleted; gives the tokens that were seen in it."""
        gone = [token for token, places in self.places.items() if places[0][0] == FLEETING]
        self.entries.pop(FLEETING, None)
        for name, sub in list(self.subs.items()):
            if sub.topic == FLEETING:
                for reader in sub.consumers:
                    reader.closed = True
                del self.subs[name]
        return gone

    def set_back(self) -> None:
        """The clock was set back: a command that waits for a verdict will count its delay from the new time."""
        self.clock_set_back = True
        for msg in self.messages.values():
            if msg.busy or msg.bulk:
                msg.promises.append(Promise(0, 0))
        for publication in self.publications.values():
            if publication.busy:
                publication.dues.append(Promise(0, 0))
