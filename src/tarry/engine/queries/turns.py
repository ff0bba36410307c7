"""Turns: another one for each message that waits because of a limit on sending, when that limit is changed.

A message over the limit is given its turn when it is due, an instant that may be hours away, and nothing looks at it
before. So a limit that is lifted, raised or lowered is asked again about all that wait under it, in the order in which they
were accepted; the registry knows those that were put off by a new version. What is due meanwhile does not wait for that.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from tarry.core.errors import TarryError, Unavailable
from tarry.core.limits import HELD_MS
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import State
from tarry.core.rules import admission
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, all_of
from tarry.engine.dispatch.decisions import has_waited
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands
from tarry.engine.queries.finding import Found
from tarry.engine.state.engine_state import EngineState
from tarry.engine.upkeep.upkeep import Upkeep
from tarry.ledger.record import Key

TOGETHER: Final = 100
"""Messages that are given another turn in one turn of the loop: some milliseconds."""


class Turns:
    """Gives messages that wait for their turn another one."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        clock: Clock,
        ids: Ids,
        dispatcher: Dispatcher,
        commands: Commands,
        upkeep: Upkeep,
    ) -> None:
        self._journal = journal
        self._state = state
        self._clock = clock
        self._dispatcher = dispatcher
        self._commands = commands
        self._upkeep = upkeep
        self._ids = ids
        self._changes = 0
        """How often a limit was changed: a change ends the walk for the one before it."""

    def limit_changed(self, namespace: str | None) -> None:
        """Take note that a limit on sending was changed, in a namespace or in all of them."""
        self._changes += 1
        self._dispatcher.rates.forget(namespace)
        self._give(self._origins(), self._changes, namespace)

    def _give(self, origins: Iterator[list[Key]], change: int, namespace: str | None) -> None:
        """Give the next messages their turns, once the registry knows of all that were put off, and go on with those after them."""

        def flushed(flush: Answer[None]) -> None:
            try:
                some = next(origins, None) if change == self._changes and flush.error() is None else None
            except TarryError:
                # The registry tells of its trouble itself.
                return
            if some is not None:
                move(some)

        def turn(found: Found) -> int | None:
            return self._turn(found, namespace)

        def move(some: list[Key]) -> None:
            """Give these their turns, again where that was refused while it was not known whose the ledger is."""
            moved = [self._commands.move(self._ids.make(one.seq, one.fire_at_ms), turn) for one in some]

            def told(_: object) -> None:
                refused = [
                    one
                    for one, answer in zip(some, moved, strict=True)
                    if type(answer.error()) is Unavailable
                ]
                if refused:
                    self._once_ours(lambda: move(refused))
                else:
                    self._give(origins, change, namespace)

            all_of(moved).then(told)

        self._upkeep.flush().then(flushed)

    def _once_ours(self, then: Callable[[], None]) -> None:
        """Do something once another record is durable, which proves whose the ledger is; not if none can be appended."""
        journal = self._journal
        self._upkeep.mark(self._clock.now_ms())
        if journal.effective_seq < journal.next_seq - 1:
            journal.when_durable(journal.next_seq - 1, lambda error: then() if error is None else None)

    def _origins(self) -> Iterator[list[Key]]:
        """Messages that may wait for their turn, by their first versions: from the wheel, then those with a new version."""
        began_seq = self._journal.next_seq
        keys = self._dispatcher.put_off()
        while some := list(islice(keys, TOGETHER)):
            yield some
        after_seq = 0
        while rows := self._state.registry.live.select(
            "origin_seq > ? ORDER BY origin_seq LIMIT ?", (after_seq, TOGETHER)
        ):
            after_seq = rows[-1][2].origin.seq
            # Those with a later version were given their turn meanwhile.
            moved = [row for _, _, row in rows if row.current != row.origin and row.current.seq < began_seq]
            yield [row.origin for row in moved if self._waits(row.current)]

    def _waits(self, current: Key) -> bool:
        return current.fire_at_ms > self._clock.now_ms() or self._dispatcher.is_put_off(current.seq)

    def _turn(self, found: Found, namespace: str | None) -> int | None:
        """When a message goes out that waits because of a limit; None if it does not."""
        put, state = found.put, self._state
        waits_for_turn = found.entry is None and found.state is State.SCHEDULED and not put.attempts
        if (
            not waits_for_turn
            or namespace not in (None, put.namespace)
            or found.current.fire_at_ms >= HELD_MS
        ):
            return None
        policy = state.policies.of(put.destination, put.namespace)
        if not self._dispatcher.is_put_off(found.current.seq) and not has_waited(put, policy):
            return None
        at_ms = now_ms = self._clock.now_ms()
        if policy.send_per_second > 0:
            at_ms = self._dispatcher.rates.reserve((put.namespace, put.owner), policy.send_per_second, now_ms)
        return int(admission.earliest(max(at_ms, put.due_at_ms or 0), now_ms, state.floor_ms))
