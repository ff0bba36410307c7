"""Jobs that schedule in bulk: they stage a file, have it adopted, ask again if there was no answer, and cancel (R10)."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarry.core.errors import DelayTooLong, TooLarge, TooManyPending, Unavailable
from tarry.core.messages.message import Scheduled
from tarry.core.names import parse_topic
from tarry.engine.answer import Answer
from tarry.index.manifest import DOOR, BatchManifest, ManifestFile
from tarry.ledger.lanes import lane_of
from tarry.ledger.record import Put, encode
from tarry.testing.index import StagedRow
from tests.simulation.model import HOSTS, NEVER_MS, TOPICS, Msg, Promise

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

NAMESPACE = "public/default"


@dataclass(eq=False)
class Batch:
    """A batch as its job knows it."""

    name: str
    msgs: list[Msg]
    """In the order of their rows."""
    fires_ms: list[int]
    manifest: BatchManifest
    promises: list[Promise | None]
    accepted: bool = False
    open: bool = False
    """A request for it is not answered yet."""


class Bulk:
    """Jobs of bulk scheduling."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._random = sim.random
        self._checker = sim.checker
        self.batches: list[Batch] = []

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that jobs take."""
        return {"adopt": self.adopt, "cancel_batch": self.cancel}

    def new_life(self) -> None:
        """The server is gone, and with it who waits for what."""
        for batch in self.batches:
            batch.open = False

    def adopt(self) -> None:
        """Stage a batch and have it adopted; or ask again for one whose adoption was not answered."""
        unanswered = [batch for batch in self.batches if not batch.accepted and not batch.open]
        if unanswered and self._random.random() < 0.5:
            batch = self._random.choice(unanswered)
        else:
            batch = self._stage()
            self.batches.append(batch)
        batch.open = True
        answer = self._sim.engine.batches.adopt(batch.name, batch.manifest)

        def then(of: Answer[Any], unclear: bool) -> None:
            batch.open = False
            error = of.error()
            if error is None:
                self._adopted(batch)
            elif not isinstance(error, Unavailable | TooManyPending | DelayTooLong | TooLarge):
                raise error
            elif not unclear and not isinstance(error, Unavailable):
                # Refused: there is none of it, and nobody asks again.
                self.batches.remove(batch)
                for msg, promise in zip(batch.msgs, batch.promises, strict=True):
                    self._sim.clients.forget(msg, promise)

        self._sim.ask(f"adopt {batch.name} {' '.join(msg.token for msg in batch.msgs)}", answer, then)

    def _stage(self) -> Batch:
        sim, random = self._sim, self._random
        name = sim.token("batch")
        msgs = [sim.clients.new(plain=True, places=(*HOSTS, *TOPICS)) for _ in range(random.randint(1, 6))]
        rows = [(self._fires_ms(msg), msg) for msg in msgs]
        rows.sort(key=lambda row: row[0])
        msgs = [msg for _, msg in rows]
        fires_ms = [fire_at_ms for fire_at_ms, _ in rows]
        promises = [sim.clients.promise(msg) for msg in msgs]
        file = sim.world.index.stage(name, [self._row(fire_at_ms, msg) for fire_at_ms, msg in rows])
        owners = Counter(msg.message.owner for msg in msgs)
        manifest = BatchManifest(
            ledger=sim.world.ledger.ledger_id.hex(),
            files=[
                ManifestFile(
                    path=file.path, size_bytes=file.size_bytes, rows=file.rows, slot=file.slot,
                    low_ms=file.low_ms, high_ms=file.high_ms,
                )
            ],
            owners=dict(owners),
            held={NAMESPACE: dict(owners)},
            namespaces={NAMESPACE: max(fires_ms)},
        )  # fmt: skip
        for msg in msgs:
            msg.batch = name
        return Batch(name, msgs, fires_ms, manifest, promises)

    def _fires_ms(self, msg: Msg) -> int:
        """When a message fires: who stages counts delays from the server's clock and rounds up to the tick."""
        message = msg.message
        now_ms = self._sim.clock.now_ms()
        due_at_ms = now_ms + message.delay_ms if message.delay_ms is not None else message.due_at_ms
        assert due_at_ms is not None
        topic = None if msg.foreign else parse_topic(message.destination).full
        return self._sim.engine.effective_policy(topic, NAMESPACE).round_up(due_at_ms)

    def _row(self, fire_at_ms: int, msg: Msg) -> StagedRow:
        message = msg.message
        now_ms = self._sim.clock.now_ms()
        destination = message.destination if msg.foreign else parse_topic(message.destination).full
        put = Put(
            fire_at_ms, fire_at_ms, now_ms, NAMESPACE, destination, message.key, message.owner, DOOR, None,
            message.ttl_ms, None, 0, False, message.payload, dict(message.headers), now_ms,
            max(0, fire_at_ms - now_ms),
        )  # fmt: skip
        return StagedRow(fire_at_ms, lane_of(NAMESPACE, message.owner, DOOR), encode(put).body)

    def _adopted(self, batch: Batch) -> None:
        """All of it is accepted. Its job finds the ids of its messages in a list."""
        if batch.accepted:
            return
        batch.accepted = True
        known = self._sim.world.batches.by_name[batch.name]
        self._sim.coverage.note("batch adopted")
        for at, (msg, fire_at_ms) in enumerate(zip(batch.msgs, batch.fires_ms, strict=True)):
            id_ = self._sim.world.ids.make(known.first_seq + at, max(fire_at_ms, known.floor_ms))
            msg.delays = [max(0, fire_at_ms - known.row.adopted_at_ms), *msg.delays]
            self._checker.scheduled(msg, Scheduled(id_, fire_at_ms))

    def cancel(self) -> None:
        """Cancel a batch."""
        able = [batch for batch in self.batches if batch.accepted and not batch.open]
        if not able:
            return
        batch = self._random.choice(able)
        batch.open = True
        # One that has failed is retried all the same, be that before or after.
        retried = {msg.token: NEVER_MS if msg.busy or msg.retrying else msg.retries for msg in batch.msgs}
        for msg in batch.msgs:
            msg.doomed = msg.touched = True
        answer = self._sim.engine.batches.cancel(batch.name)

        def then(of: Answer[Any], unclear: bool) -> None:
            batch.open = False
            error = of.error()
            if error is None:
                self._sim.coverage.note("batch cancelled")
                if not of.value().remaining:
                    for msg in batch.msgs:
                        msg.silent = msg.retries == retried[msg.token]
            elif not isinstance(error, Unavailable):
                raise error

        self._sim.ask(f"cancel batch {batch.name}", answer, then)
