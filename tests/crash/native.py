"""A campaign for repeats, names and pauses: the real server killed again and again, and an audit of what came into its topics.

One thread uses the features, one request at a time, and goes on where a kill has cut it off; what it asked and was told is in its own
books. In the end each topic is read once, from its beginning, and has to hold

- each occurrence of each repeat exactly once, with the instants counted here, also of repeats that were paused on the way;
- of the messages under a name those that were not replaced, kept out or refused, each once: were two of one name ever
  pending, both would come;
- nothing between the answer to a pause and the first asking for its end; and of a paused message nothing before what was left
  of its delay is over.
"""

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from tarry.client import Client, MessageView, Received, Unreachable
from tarry.client.shapes import OnConflict
from tarry.core.errors import Conflict, Invalid, NotFound, Unavailable
from tests.crash.books import Books, now_ms
from tests.crash.campaign import CONFIG, DRAIN_WITHIN_S, Victim, tracebacks
from tests.processes import free_port

T = TypeVar("T")

REPEATED, NAMED, FROZEN, OWNED, PAUSED = (
    f"persistent://public/default/native-{name}"
    for name in ("repeated", "named", "frozen", "owned", "paused")
)
TOPICS: Final = (REPEATED, NAMED, FROZEN, OWNED, PAUSED)
OWNER: Final = "native"
NAMES: Final = 4
READER: Final = "auditor"
AHEAD_MS: Final = 3_000
"""A repeat begins so long after it is asked for: one whose start has passed when it is made misses what was before."""
PATIENCE_S: Final = 60.0
LONGEST_LIFE_S: Final = 20.0
"""A server lives until its user has done some things, or so long."""
OPEN: Final = 1 << 62
"""The end of a pause that lasts."""
HOW: Final[tuple[OnConflict, ...]] = ("replace", "replace", "keep", "fail")


@dataclass
class Told:
    """A message under a name or for a topic, and what is known of it."""

    id: str | None = None
    fate: Literal["comes", "never", "either"] = "comes"


@dataclass
class Span:
    """A time in which something was paused: from the answer on, until its end was first asked for."""

    answered_ms: int
    ended_ms: int = OPEN
    left_ms: int = 0
    """The least that was left of a message's delay."""


@dataclass
class NativeBooks(Books):
    """Requests to the native features, and their answers."""

    occurrences: dict[str, list[int]] = field(default_factory=dict)
    """By repeat: the instants that it has."""
    told: dict[str, Told] = field(default_factory=dict)
    """By payload: the messages."""
    pauses: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    """By what was paused: a topic, an owner as `owner`, a repeat's name, or a message's payload."""
    entries_of: dict[str, list[Received]] = field(default_factory=dict)
    """By topic: all that came."""


class User(threading.Thread):
    """One who uses all three features. What must be asked for again after a crash is asked for again."""

    def __init__(self, url: str, books: NativeBooks, seed: int, stop: threading.Event) -> None:
        super().__init__(name="user")
        # What is asked again is asked again here, and soon.
        self._client = Client(url, retry_for_s=0)
        self._books = books
        self._random = random.Random(seed)
        self.steps = 0
        """The number of things done so far."""
        self._stopping = stop
        self._count = 0
        self._held: dict[str, Told] = {}
        """By name: the newest message that was accepted under it."""
        self.failure: Exception | None = None

    def run(self) -> None:
        """Use everything until told to stop; then end every pause."""
        uses: tuple[Callable[[], Callable[[], None] | None], ...] = (
            self._repeat, self._pause_repeat, self._use_name, self._use_name, self._freeze, self._pause_topic,
            self._pause_owner,
        )  # fmt: skip
        resumes: list[tuple[int, Callable[[], None]]] = []
        try:
            while not self._stopping.is_set():
                if (ending := self._random.choice(uses)()) is not None:
                    resumes.append((now_ms() + self._random.randrange(200, 3_000), ending))
                for one in [one for one in resumes if one[0] <= now_ms()]:
                    resumes.remove(one)
                    one[1]()
                self.steps += 1
                self._stopping.wait(0.01)
            for _, ending in resumes:
                ending()
        except Exception as error:  # noqa: BLE001 - whoever joins this thread looks at it
            self.failure = error
        finally:
            self._client.close()

    def _label(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def _again(self, call: Callable[[], T]) -> T:
        """The answer to a call that may be made again, however often the server goes away."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except (Unreachable, Unavailable):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _schedule(self, topic: str, delay_ms: int, owner: str | None = None) -> str:
        label = self._label()
        scheduled = self._again(
            lambda: self._client.schedule(topic, label, delay_ms=delay_ms, owner=owner, idempotency_key=label)
        )
        self._books.told[label] = Told(scheduled.id)
        return label

    # Repeats

    def _repeat(self) -> None:
        if self._random.random() < 0.7 and len(self._books.occurrences) > 8:
            return
        name = f"r{len(self._books.occurrences)}"
        start_ms = now_ms() + AHEAD_MS
        length_ms = self._random.randrange(1_000, 6_000)
        rhythm: dict[str, Any] = {"start_at_ms": start_ms, "missed": "all"}
        if self._random.random() < 0.5:
            every_ms = self._random.randrange(150, 900)
            planned = list(range(start_ms, start_ms + length_ms, every_ms))
            rhythm |= {"every": f"{every_ms}ms", "count": len(planned)}
        else:
            step_ms = self._random.choice((1_000, 2_000))
            end_ms = start_ms + max(length_ms, step_ms)
            planned = list(range(-(-start_ms // step_ms) * step_ms, end_ms + 1, step_ms))
            rhythm |= {"cron": f"*/{step_ms // 1000} * * * * *", "end_at_ms": end_ms}
        self._books.occurrences[name] = []
        with contextlib.suppress(Invalid):
            # Refused if a crash took so long that its end has passed.
            self._again(lambda: self._client.set_repeat(name, REPEATED, name, **rhythm))
        if now_ms() >= start_ms:
            # Nobody can say which occurrences it has: those before it was made are none.
            self._again(lambda: self._gone(lambda: self._client.remove_repeat(name)))
            return
        self._books.occurrences[name] = planned

    def _pause_repeat(self) -> Callable[[], None] | None:
        """Pause a repeat in the middle of its occurrences, if there is one."""
        at_ms = now_ms()
        chosen = [
            name
            for name, planned in self._books.occurrences.items()
            if planned and planned[0] - 500 <= at_ms <= planned[-1] and not self._is_paused(name)
        ]
        if not chosen:
            return None
        name = self._random.choice(chosen)
        try:
            self._again(lambda: self._client.pause_repeat(name))
        except Conflict:
            # It is over.
            return None
        span = self._paused(name)

        def resume() -> None:
            span.ended_ms = now_ms()
            self._again(lambda: self._gone(lambda: self._client.resume_repeat(name)))

        return resume

    # Names

    def _use_name(self) -> None:
        name, label = f"name-{self._random.randrange(NAMES)}", self._label()
        how: OnConflict = self._random.choice(HOW)
        delay_ms = self._random.randrange(100, 4_000)
        before = self._held.get(name)
        told = self._books.told[label] = Told()
        try:
            scheduled = self._again(
                # One key for all tries: the first that was accepted is the answer.
                lambda: self._client.schedule(
                    NAMED,
                    label,
                    delay_ms=delay_ms,
                    name=name,
                    on_conflict=how,
                    idempotency_key=label,
                )
            )
        except Conflict:
            told.fate = "never"
            if how != "fail" or before is None:
                self._books.complaints.append(
                    f"{label}: {how} was refused though {before} has the name {name}"
                )
            return
        if scheduled.kept:
            told.fate = "never"
            if before is None or scheduled.id != before.id:
                self._books.complaints.append(
                    f"{label}: {scheduled.id} was kept, and {before} has the name {name}"
                )
            return
        told.id = scheduled.id
        self._held[name] = told
        if before is not None and scheduled.replaced:
            before.fate = "never"
        elif before is not None and scheduled.repeated and how == "replace":
            # The first answer was lost, and with it whether somebody was replaced.
            before.fate = "either"

    # Pauses

    def _freeze(self) -> Callable[[], None] | None:
        """Pause a message, so that its delay stands still."""
        due_ms = now_ms() + self._random.randrange(300, 2_000)
        label = self._label()
        told = self._books.told[label] = Told()
        told.id = self._again(
            lambda: self._client.schedule(FROZEN, label, due_at_ms=due_ms, idempotency_key=label)
        ).id
        try:
            self._again(lambda: self._client.pause(told.id))
        except Conflict:
            return None
        span = self._paused(label)
        span.left_ms = max(0, due_ms - span.answered_ms)

        def resume() -> None:
            span.ended_ms = now_ms()
            self._again(lambda: self._gone(lambda: self._client.resume(told.id)))

        return resume

    def _pause_topic(self) -> Callable[[], None] | None:
        self._schedule(PAUSED, self._random.randrange(1, 1_500))
        return self._pause_place(
            PAUSED,
            lambda: self._client.pause_place(topic=PAUSED),
            lambda: self._client.resume_place(topic=PAUSED),
        )

    def _pause_owner(self) -> Callable[[], None] | None:
        self._schedule(OWNED, self._random.randrange(1, 1_500), OWNER)
        return self._pause_place(
            OWNER,
            lambda: self._client.pause_place(owner=OWNER),
            lambda: self._client.resume_place(owner=OWNER),
        )

    def _pause_place(
        self, what: str, pause: Callable[[], object], resume: Callable[[], object]
    ) -> Callable[[], None] | None:
        if self._is_paused(what) or self._random.random() < 0.7:
            return None
        self._again(pause)
        span = self._paused(what)

        def end() -> None:
            span.ended_ms = now_ms()
            self._again(lambda: self._gone(resume))

        return end

    def _is_paused(self, what: str) -> bool:
        return any(span.ended_ms == OPEN for span in self._books.pauses.get(what, ()))

    def _paused(self, what: str) -> Span:
        span = Span(now_ms())
        self._books.pauses[what].append(span)
        return span

    @staticmethod
    def _gone(call: Callable[[], object]) -> None:
        """A call that a lost answer may have done already."""
        with contextlib.suppress(Conflict, NotFound):
            call()


class NativeCampaign:
    """One server, one user and the books."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.books = NativeBooks()
        self._random = random.Random(seed)
        self._victim = Victim(folder / "data", CONFIG, free_port(), self.books, self._random)
        self._url = f"http://127.0.0.1:{self._victim.server.port}"
        self._client = Client(self._url, retry_for_s=PATIENCE_S)
        self._stop = threading.Event()
        self._user = User(self._url, self.books, seed, self._stop)

    def begin(self) -> None:
        """Start the server and its user."""
        self._victim.server.start()
        for topic in TOPICS:
            self._client.subscribe(topic, READER, type="exclusive", start="earliest")
        self._user.start()

    def crash(self) -> None:
        """Let the user do something, and have the server crash."""
        steps = self._user.steps + self._random.randrange(10, 80)
        end = time.monotonic() + LONGEST_LIFE_S
        while self._user.steps < steps and self._user.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        self._victim.restart()
        if self._user.failure is not None:
            self.books.complaints.append(f"the user failed: {self._user.failure!r}")

    def drain(self) -> None:
        """Let the user end every pause, wait for all that must come, and read every topic."""
        self._stop.set()
        self._user.join(PATIENCE_S)
        if self._user.is_alive() or self._user.failure is not None:
            self.books.complaints.append(f"the user failed: {self._user.failure!r}")
        doubled = Counter(one.name for one in self._pending() if one.name is not None)
        self.books.complaints += [
            f"{count} messages of the name {name} are pending" for name, count in doubled.items() if count > 1
        ]
        deadline = time.monotonic() + DRAIN_WITHIN_S
        while (self._missing() or self._waiting()) and time.monotonic() < deadline:
            self._read()
        self._read()

    def _pending(self) -> Iterator[MessageView]:
        return iter(self._client.list(destination=NAMED, state="scheduled"))

    def _waiting(self) -> bool:
        """Whether something is pending or repeats that nobody expects: that may be one too many."""
        return int(self._client.status()["engine"]["pending"]) > 0

    def _read(self) -> None:
        for topic in TOPICS:
            found = self.books.entries_of.setdefault(topic, [])
            while some := self._client.receive(topic, READER, max=1000, wait_ms=50, consumer=READER):
                found += some
                self._client.ack(topic, READER, up_to=some[-1].entry_id, consumer=READER)

    def _missing(self) -> list[str]:
        return [one for one in offenders(self.books) if "is missing" in one]

    def offenders(self) -> list[str]:
        """The verdict."""
        return (
            self.books.complaints
            + offenders(self.books)
            + tracebacks("the server", self._victim.server.said())
        )

    def summary(self) -> str:
        """One line of figures."""
        books = self.books
        planned = sum(map(len, books.occurrences.values()))
        pauses = sum(map(len, books.pauses.values()))
        fates = Counter(told.fate for told in books.told.values())
        return (
            f"{len(books.kills) // 2} kills; {len(books.occurrences)} repeats with {planned} occurrences; {len(books.told)} messages, "
            f"{fates['never']} that never come, {fates['either']} unknown; {pauses} pauses; "
            f"{sum(map(len, books.entries_of.values()))} entries"
        )

    def end(self) -> None:
        """Stop everything that still runs."""
        self._stop.set()
        if self._user.ident is not None:
            self._user.join(PATIENCE_S)
        self._client.close()
        self._victim.server.kill()


def offenders(books: NativeBooks) -> list[str]:
    """The audit: what came, beside what should."""
    return [*_occurrences(books), *_messages(books), *_early(books), *_while_paused(books)]


def _occurrences(books: NativeBooks) -> Iterator[str]:
    came: dict[str, Counter[int]] = defaultdict(Counter)
    for one in books.entries_of.get(REPEATED, ()):
        planned = datetime.fromisoformat(one.headers["tarry-occurrence"])
        came[one.headers["tarry-repeat"]][round(planned.timestamp() * 1000)] += 1
    for name, planned_ms in books.occurrences.items():
        if not planned_ms:
            continue
        for at_ms in planned_ms:
            if not came[name][at_ms]:
                yield f"occurrence {at_ms} of {name} is missing"
        for at_ms, count in came[name].items():
            if count > 1 or at_ms not in planned_ms:
                yield f"occurrence {at_ms} of {name} came {count} times; planned are {planned_ms}"


def _messages(books: NativeBooks) -> Iterator[str]:
    came = Counter(
        one.payload.decode()
        for topic in TOPICS
        if topic != REPEATED
        for one in books.entries_of.get(topic, ())
    )
    for label, told in books.told.items():
        if told.fate == "comes" and not came[label]:
            yield f"message {label} is missing"
        if came[label] > (0 if told.fate == "never" else 1):
            yield f"message {label} came {came[label]} times, and it is one that {told.fate}"
    yield from (f"nobody has asked for {label}" for label in came.keys() - books.told.keys())


def _early(books: NativeBooks) -> Iterator[str]:
    for topic, entries in books.entries_of.items():
        for one in entries:
            if one.due_at_ms is None or one.published_at_ms < one.due_at_ms:
                yield f"{one.payload!r} came into {topic} at {one.published_at_ms}, and is due at {one.due_at_ms}"


def _while_paused(books: NativeBooks) -> Iterator[str]:
    for topic, entries in books.entries_of.items():
        for one in entries:
            label = one.payload.decode()
            at_ms = one.published_at_ms
            for what in {topic, OWNER if topic == OWNED else topic, label}:
                for span in books.pauses.get(what, ()):
                    if topic == REPEATED and one.due_at_ms is not None and one.due_at_ms <= span.answered_ms:
                        # A paused repeat is one that makes no more: what was due goes out.
                        continue
                    if span.answered_ms < at_ms < span.ended_ms:
                        yield f"{label} went out at {at_ms}, while {what} was paused: {span}"
                    elif span.ended_ms <= at_ms < span.ended_ms + span.left_ms:
                        yield f"{label} went out at {at_ms}, before its delay was over: {span}"
