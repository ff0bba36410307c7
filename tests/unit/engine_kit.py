"""Shared parts of the tests of the engine: a world whose receiver says nothing unless the test does, and consumers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from tarry.core.errors import TarryError, Unavailable
from tarry.core.limits import HOUR_MS
from tarry.core.messages.delivery import Verdict
from tarry.core.messages.message import Message, MessageQuery, MessageView, Scheduled
from tarry.engine.admission.columns import ColumnsScheduled, columns_of
from tarry.engine.answer import Answer, failed
from tarry.engine.engine import Engine
from tarry.engine.topics.consumer import Consumer
from tarry.engine.topics.entries import NewEntry, Received
from tarry.engine.topics.subscription import Subscription
from tarry.ledger.record import Mark
from tarry.testing.outlet import Attempt
from tarry.testing.world import World

T = TypeVar("T")
E = TypeVar("E", bound=TarryError)

FOREIGN = "sim://shop/in"
TURNS = 10_000


def schedule_arrow(engine: Engine, batch: pa.RecordBatch, defaults: Message) -> Answer[ColumnsScheduled]:
    """Accept a record batch, as the door for Arrow does."""
    try:
        return engine.schedule_columns(columns_of(batch, defaults), defaults)
    except TarryError as error:
        return failed(error)


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


class Reader:
    """A consumer that keeps what it got."""

    def __init__(self, bench: "Bench", sub: Subscription, name: str, permits: int, **options: Any) -> None:
        self.got: list[Received] = []
        self.bench = bench
        self.sub = sub
        self.handle: Consumer = sub.attach(name, self.got.extend, **options)
        if permits:
            self.handle.flow(permits)

    @property
    def ids(self) -> list[int]:
        return [entry.entry_id for entry in self.got]

    @property
    def payloads(self) -> list[bytes]:
        return [entry.payload for entry in self.got]

    def ack(self, *entry_ids: int) -> None:
        self.bench.ask(self.handle.ack(entry_ids))


class Bench(World):
    """A world that is stepped by hand: attempts stay under way until the test gives their verdict."""

    def rest(self) -> int:
        """Do all there is to do at this instant, but give no verdicts; the instant of the next turn."""
        for _ in range(TURNS):
            wake_ms = self.tick()
            busy = wake_ms == 0 or self.commit() > 0
            while self.work():
                busy = True
            if not busy:
                return wake_ms
        raise RuntimeError("the engine does not come to rest")

    def wait(self, ms: int) -> None:
        """Let time pass, with all there is to do at each instant on the way."""
        goal_ms = self.clock.now_ms() + ms
        while True:
            wake_ms = self.rest()
            now_ms = self.clock.now_ms()
            if now_ms >= goal_ms:
                return
            self.clock.set(min(goal_ms, max(wake_ms, now_ms + 1)))

    def leap(self, ms: int) -> None:
        """Let time pass in one step."""
        self.clock.advance(ms)
        self.rest()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def reopen(self, set_aside: Sequence[int] = ()) -> None:
        """Stop the process where it is and begin again with what is on the disk, without some records."""
        self.kill()
        self.start(set_aside)

    # Asking

    def ask(self, answer: Answer[T]) -> T:
        """The value of an answer, once everything at this instant is done."""
        self.rest()
        assert answer.settled, "the answer has not come"
        return answer.value()

    def refused(self, answer: Answer[Any], error: type[E]) -> E:
        """The error of an answer that must be one."""
        self.rest()
        assert answer.settled, "the answer has not come"
        with pytest.raises(error) as caught:
            answer.value()
        return caught.value

    def schedule(self, destination: str = "orders", **fields: Any) -> Scheduled:
        return self.ask(self.engine.schedule(Message(destination=destination, **fields)))

    def view(self, id_: str) -> MessageView:
        return self.ask(self.engine.get(id_))

    def state(self, id_: str) -> str:
        return str(self.view(id_).state)

    def listed(self, **query: Any) -> list[MessageView]:
        return self.ask(self.engine.list_messages(MessageQuery(**query))).messages

    # Topics

    def publish(self, topic: str, *payloads: bytes, **fields: Any) -> list[int]:
        entries = [NewEntry(payload=payload, **fields) for payload in payloads]
        return self.ask(self.engine.topics.publish(topic, entries))

    def subscribe(self, topic: str, name: str = "sub", type: Any = "shared", **options: Any) -> Subscription:
        options.setdefault("start", "earliest")
        return self.ask(self.engine.topics.subscribe(topic, name, type, **options))

    def reader(
        self, sub: Subscription, name: str = "reader", permits: int = 1_000_000, **options: Any
    ) -> Reader:
        reader = Reader(self, sub, name, permits, **options)
        self.rest()
        return reader

    def drain(self, topic: str, name: str = "drain") -> Reader:
        """A new subscription that reads all of a topic."""
        return self.reader(self.subscribe(topic, name))

    # The receiver

    def attempt(self) -> Attempt:
        """The one attempt that is under way."""
        (attempt,) = self.outlet.under_way
        return attempt

    def verdict(self, verdict: Verdict) -> None:
        """Answer the one attempt that is under way."""
        self.attempt().answer(verdict)
        self.rest()

    def arrived(self) -> list[bytes]:
        """Messages that the receiver got, in order."""
        return [arrival.delivery.payload for arrival in self.outlet.arrivals]

    # The disk

    def flip(self, needle: bytes) -> None:
        """Flip one bit of every place on the disk that holds these bytes."""
        found = 0
        for path in self.disk.listdir("ledger"):
            image = self.disk.open(f"ledger/{path}").read(1 << 30, 0)
            at = image.find(needle)
            while at >= 0:
                self.disk.flip_bit(f"ledger/{path}", at, 0)
                found += 1
                at = image.find(needle, at + 1)
        assert found, "there is nothing to flip"


def full_disk(bench: Bench) -> None:
    """From now on no file can grow."""
    bench.disk.capacity_bytes = bench.disk._used_bytes()


class NoSpace:
    """Until `end` the ledger has no space for units of some records: for all, if nothing is said."""

    def __init__(self, bench: Bench, kind: type[Any] = object) -> None:
        self._append = bench.journal.append
        self._kind = kind
        self._ended = False
        bench.journal.append = self._refuse  # type: ignore[method-assign]

    def _refuse(self, records: Any, *args: Any, **options: Any) -> int:
        if not self._ended and (self._kind is object or any(isinstance(one, self._kind) for one in records)):
            raise Unavailable("there is no space")
        return self._append(records, *args, **options)

    def end(self) -> None:
        self._ended = True


def fill(bench: Bench, payload: bytes = bytes(2000)) -> list[str]:
    """Schedule until there is no room; the ids that were answered."""
    ids: list[str] = []
    while True:
        answer = bench.engine.schedule(Message(destination=FOREIGN, payload=payload, delay_ms=HOUR_MS))
        bench.rest()
        if answer.error() is not None:
            assert isinstance(answer.error(), Unavailable)
            return ids
        ids.append(answer.value().id)


def use_up_space(bench: Bench) -> None:
    """Fill the disk, and the reserve too, so that not even an end has room."""
    full_disk(bench)
    while True:
        try:
            bench.journal.append([Mark(bench.watermark, bench.now_ms)], lambda _: None, essential=True)
        except Unavailable:
            return
        bench.rest()


def once(calls: list[T]) -> Callable[[T], None]:
    """A callback that keeps what it is called with."""
    return calls.append
