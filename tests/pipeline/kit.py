"""A real ledger in a folder, filled by a real engine whose clock the test owns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tarry.core.ids import Ids
from tarry.core.message import Message, Scheduled
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine
from tarry.engine.settings import EngineSettings
from tarry.index.index import NoIndex
from tarry.ledger.disk import RealDisk
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.registry.registry import Registry
from tarry.testing.clock import SimulatedClock

START_MS = 1_794_740_400_000


class Writer:
    """An engine over a real folder, stepped by hand."""

    def __init__(self, folder: Path, segment_bytes: int = 1 << 20) -> None:
        self.clock = SimulatedClock(START_MS)
        self.folder = str(folder / "ledger")
        self.ledger = Ledger.open(
            RealDisk(), self.folder, LedgerSettings(segment_bytes=segment_bytes), self.clock
        )
        self.engine = Engine(
            ledger=self.ledger,
            registry=Registry(":memory:"),
            index=NoIndex(),
            clock=self.clock,
            ids=Ids(bytes(32)),
            outlets={},
            launch=lambda outlet, delivery, verdict: None,
            offload=_inline,
            settings=EngineSettings(),
        )
        self.engine.recover()

    def settle(self, answer: Answer[Any]) -> Any:
        """Commit until an answer has come."""
        while not answer.settled:
            self.run(0)
        return answer.value()

    def run(self, ms: int) -> None:
        """Let time pass, and make everything durable that follows from it."""
        self.clock.advance(ms)
        while True:
            again_ms = self.engine.tick()
            if not self.ledger.commit() and again_ms > self.clock.now_ms():
                return

    def schedule(self, delay_ms: int, **fields: Any) -> Scheduled:
        """Schedule a message and make it durable."""
        message = Message(destination=fields.pop("destination", "orders"), delay_ms=delay_ms, **fields)
        scheduled: Scheduled = self.settle(self.engine.schedule(message))
        return scheduled


def _inline(work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
    work()
    done(None)
