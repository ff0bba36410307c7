"""The journal: appends units of records, which are decided when they are enqueued and take effect when they are durable.

A record is decided on the engine's one thread when it is enqueued: from then on a killed version does not fire (R11). It
takes effect when it is durable: it enters the wheel, becomes visible in a topic, is answered (R2). What deciding means is
the state's business (`tarry.engine.state.engine_state`), which also decides what a start replays.

Units that are enqueued and not durable yet are entering; whoever waits for that is called back in the order of the seqs.

Everything that changes anything goes through here; doors do not know of it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tarry.core.errors import TarryError, Unavailable
from tarry.engine.answer import Answer
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.due.horizon import Horizon
from tarry.engine.isolation import Isolation
from tarry.engine.journal.tenure import DOUBT, Tenure
from tarry.engine.records.changes import Change, Written, written
from tarry.ledger.frame import Unit
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Kind, Record
from tarry.ledger.writer import OnDurable

T = TypeVar("T")

FEW: Final = 16
"""Records of a unit that are quicker to look at one by one."""

Effect = Callable[[], None]
"""Shows what a unit has changed, once that is durable."""

Decide = Callable[[int, Sequence[Change]], Sequence[Effect]]
"""Lets the changes of a unit, which begins with a seq, change the state; gives what follows once the unit is durable."""


class Journal:
    """Appends units of records."""

    def __init__(
        self,
        ledger: Ledger,
        tenure: Tenure | None,
        horizon: Horizon,
        bodies: Bodies,
        sizes: BodySizes,
        isolation: Isolation,
        decide: Decide,
        ended: Callable[[int], None],
        on_fault: Callable[[Exception], None] | None = None,
    ) -> None:
        """With a `tenure` the ledger may get another owner (R15). `ended` is told of each version that a record of its own has ended.

        `on_fault` is told when a record is enqueued that could not be decided: only a new start mends that.
        """
        self._ledger = ledger
        self._tenure = tenure
        self._horizon = horizon
        self._bodies = bodies
        self._sizes = sizes
        self._isolation = isolation
        self._decide = decide
        self._ended = ended
        self._on_fault = on_fault
        self.effective_seq = 0
        """Everything up to here is durable and has taken effect."""
        self._entering: deque[tuple[int, Unit, int]] = deque()
        """Units that are not durable yet, each with its last seq, and the elapsed time when it was enqueued."""
        self._waiting: list[tuple[int, OnDurable]] = []

    @property
    def next_seq(self) -> int:
        """The seq of the record that is enqueued next."""
        return self._ledger.next_seq

    @property
    def failed(self) -> bool:
        """Whether the disk has failed: nothing is appended any more."""
        return self._ledger.failed is not None

    @property
    def unit_max_bytes(self) -> int:
        """Maximum bytes of a unit."""
        return self._ledger.unit_max_bytes

    @property
    def durable_seq(self) -> int:
        """The durable head."""
        return self._ledger.durable_seq

    def check_shown(self) -> None:
        """Raise `Unavailable` if nothing of the state may be shown.

        Once the disk has failed memory may hold more than it; and while another server may own the ledger that one knows better.
        """
        if self._ledger.failed is not None:
            raise Unavailable(f"the disk failed ({self._ledger.failed})")
        if self.in_doubt:
            raise Unavailable(f"{DOUBT}; try again in a moment")

    @property
    def in_doubt(self) -> bool:
        """Whether another server may own the ledger by now (R15)."""
        return self._tenure is not None and self._tenure.in_doubt

    def when_durable(self, seq: int, callback: OnDurable) -> None:
        """Call back once everything up to a seq is durable and has taken effect, or never will be."""
        if self.effective_seq >= seq:
            callback(None)
        elif self._ledger.failed is not None:
            callback(Unavailable(f"the disk failed ({self._ledger.failed})"))
        else:
            self._waiting.append((seq, callback))

    def lowest_entering_ms(self) -> int | None:
        """The lowest fire instant of a version that is not in the wheel, the tail or the view yet."""
        return min(
            (unit.lowest_fire_ms for _, unit, _ in self._entering if unit.lowest_fire_ms), default=None
        )

    def check_size(self, content_bytes: int) -> None:
        """Raise `TooLarge` if a unit of so many bytes can never be appended."""
        self._ledger.check_size(content_bytes)

    def append(self, records: Written | Sequence[Record], done: OnDurable, *, essential: bool = False) -> int:
        """Enqueue a unit and decide it; gives its first seq. Raises `Unavailable`."""
        new = records if isinstance(records, Written) else written(records)
        unit = new.unit
        effects: Sequence[Effect] = ()

        def durable(error: TarryError | None) -> None:
            if error is None:
                self._take_effect(first, unit)
                for effect in effects:
                    effect()
            self._bodies.written(first, unit, new.recent if error is None else ())
            done(error)
            self._tell(first + unit.records - 1, error)

        first = self._ledger.append_unit(unit, durable, essential=essential)
        enqueued_ms = 0 if self._tenure is None else self._tenure.now_ms()
        self._entering.append((first + unit.records - 1, unit, enqueued_ms))
        try:
            self._sizes.add_unit(first, unit)
            self._bodies.enqueue(first, unit)
            effects = self._decide(first, new.changes)
        except Exception as error:
            self._tell_fault(error)
            raise
        return first

    def write(
        self, records: Sequence[Record], tell: Callable[[], T], *, essential: bool = False
    ) -> Answer[T]:
        """Append records; the answer is what `tell` gives once they are durable. Raises `Unavailable`."""
        answer: Answer[T] = Answer()
        self.append(records, answer.completer(tell), essential=essential)
        return answer

    def once_durable(self, tell: Callable[[], T], seq: int | None = None) -> Answer[T]:
        """An answer about state that is decided already: it comes once the records that made it so are durable (R2).

        `seq` is the last of these records; without it they are all that were enqueued so far.
        """
        answer: Answer[T] = Answer()
        self.when_durable(self.next_seq - 1 if seq is None else seq, answer.completer(tell))
        return answer

    def _tell(self, last_seq: int, error: TarryError | None) -> None:
        """The units up to a seq have taken effect, or with an error never will."""
        while self._entering and self._entering[0][0] <= last_seq:
            _, _, enqueued_ms = self._entering.popleft()
            if self._tenure is not None and error is None:
                self._tenure.proved(enqueued_ms)
        if error is None:
            self.effective_seq = last_seq
        while self._waiting and (error is not None or self._waiting[0][0] <= last_seq):
            self._waiting.pop(0)[1](error)

    def _tell_fault(self, error: Exception) -> None:
        """The ledger has a record that the state in memory does not follow any more."""
        self._isolation.fault = error
        if self._on_fault is not None:
            self._on_fault(error)

    def _take_effect(self, first_seq: int, unit: Unit) -> None:
        """Let the wheel have the versions and delayed entries of a unit, and tell of the versions that it has ended (R2)."""
        if unit.records <= FEW:
            for seq, (kind, _, lane, _, _, fire_at_ms, kills_seq, _) in enumerate(unit.rows(), first_seq):
                if fire_at_ms:
                    self._horizon.add(fire_at_ms, seq, lane)
                elif kind == Kind.FINALISE:
                    self._ended(kills_seq)
        else:
            self._horizon.add_many(*unit.due(first_seq))
            fixed = unit.fixed
            for kills_seq in fixed["kills_seq"][fixed["kind"] == Kind.FINALISE].tolist():
                self._ended(kills_seq)
