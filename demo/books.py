"""Requests and deliveries, by door: the demonstration's own record, kept apart from Tarry's."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


def now_ms() -> int:
    """The present instant."""
    return time.time_ns() // 1_000_000


@dataclass
class Page:
    """The messages of one door, by the name that each carries."""

    door: str
    client: str
    due_at_ms: dict[str, int] = field(default_factory=dict)
    arrived_at_ms: dict[str, int] = field(default_factory=dict)
    repeats: int = 0

    def scheduled(self, name: str, due_at_ms: int) -> None:
        """Note that a message was accepted."""
        self.due_at_ms[name] = due_at_ms

    def arrived(self, name: str, at_ms: int) -> None:
        """A client has it."""
        if name in self.arrived_at_ms:
            self.repeats += 1
        self.arrived_at_ms.setdefault(name, at_ms)

    def copy(self) -> "Page":
        """The page as it is now; clients go on writing into this one."""
        return Page(self.door, self.client, self.due_at_ms.copy(), self.arrived_at_ms.copy(), self.repeats)

    @property
    def complete(self) -> bool:
        """Whether all that was accepted has come."""
        return self.due_at_ms.keys() <= self.arrived_at_ms.keys()

    def lateness_ms(self) -> list[int]:
        """How late each one was, in the order in which they came; negative is early."""
        came = list(self.arrived_at_ms.items())
        return [at_ms - self.due_at_ms[name] for name, at_ms in came if name in self.due_at_ms]

    def next_due_at_ms(self) -> int | None:
        """When the next one that has not come is due."""
        return min(
            (due for name, due in self.due_at_ms.items() if name not in self.arrived_at_ms),
            default=None,
        )


def offences(pages: list[Page]) -> list[str]:
    """Messages that were lost or early, which must not be."""
    found: list[str] = []
    for page in pages:
        missing = page.due_at_ms.keys() - page.arrived_at_ms.keys()
        early = [late for late in page.lateness_ms() if late < 0]
        if missing:
            found.append(f"{page.door}: {len(missing)} messages did not arrive")
        if early:
            found.append(f"{page.door}: {len(early)} messages came early, by up to {-min(early)} ms")
    return found


class Listening:
    """A thread that listens until it is told to end, and tries again when the server is away."""

    def __init__(self, listen: Callable[[threading.Event], None]) -> None:
        self._listen = listen
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._listen(self._end)
            except Exception:  # noqa: BLE001 - the server is killed on purpose; whatever a client says of that, it tries again
                self._end.wait(0.2)

    def end(self) -> None:
        """Listen no more. A client that is still waiting for something ends with the process."""
        self._end.set()
