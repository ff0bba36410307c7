"""Looks into an engine that tests need: one place knows where in the engine each part is, so that the parts can move.

A `World` has all of these looks itself; `InsidesOf(engine)` gives them for an engine that a server runs. A test that can see a
fact through the façade, as a door does, looks there.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection

from tarry.core.messages.ids import Ids
from tarry.core.sets.deadset import DeadSet
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Horizon
from tarry.engine.engine import Engine
from tarry.engine.flights.flights import Flights
from tarry.engine.journal.journal import Journal
from tarry.engine.repeats.repeating import Repeating
from tarry.engine.state.batches import Batches
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.groups import Groups
from tarry.engine.state.pending import Pending, Subjects
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.upkeep.upkeep import Upkeep
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Key
from tarry.registry.registry import Registry


class Insides(ABC):
    """The parts of an engine, by name. Whoever inherits says which engine."""

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine that is looked into."""

    # The ledger, and what its records add up to

    @property
    def journal(self) -> Journal:
        """Appends records."""
        return self.engine._parts.journal

    @property
    def engine_state(self) -> EngineState:
        """The state that the records add up to."""
        return self.engine._parts.state

    @property
    def ledger(self) -> Ledger:
        """The ledger of this life."""
        return self.engine.ledger

    @property
    def next_seq(self) -> int:
        """The seq of the record that is enqueued next."""
        return self.ledger.next_seq

    @property
    def durable_seq(self) -> int:
        """The durable head."""
        return self.ledger.durable_seq

    @property
    def first_seq(self) -> int:
        """The lowest seq that the ledger still has."""
        return self.ledger.first_seq

    @property
    def registry(self) -> Registry:
        """The registry of this life."""
        return self.engine_state.registry

    @property
    def ids(self) -> Ids:
        """Makes and reads ids."""
        return self.engine.ids

    @property
    def dead(self) -> DeadSet:
        """Seqs of versions that will not fire."""
        return self.engine_state.dead

    @property
    def watermark(self) -> Key:
        """The key below which everything is dead."""
        return self.engine_state.watermark

    @property
    def counters(self) -> Counter[str]:
        """Counts of accepted, sent and other messages since the ledger began."""
        return self.engine_state.counters

    @property
    def pending(self) -> Pending:
        """How many messages wait, by holder."""
        return self.engine_state.pending

    @property
    def batches(self) -> Batches:
        """Batches that were staged as files and adopted."""
        return self.engine_state.batches

    @property
    def groups(self) -> Groups:
        """Groups of messages, and who leads them."""
        return self.engine_state.groups

    @property
    def subjects(self) -> Subjects:
        """Messages that wait, by subject."""
        return self.engine_state.subjects

    # The way out

    @property
    def horizon(self) -> Horizon:
        """The wheel, the tail and the view of the index."""
        return self.engine._parts.horizon

    @property
    def bodies(self) -> Bodies:
        """Bodies of records, from wherever they are."""
        return self.engine._parts.bodies

    @property
    def sizes(self) -> BodySizes:
        """How many bodies are read together."""
        return self.engine._parts.sizes

    @property
    def readahead(self) -> Readahead:
        """Messages that are read ahead."""
        return self.engine._parts.readahead

    @property
    def recent_entries(self) -> RecentEntries:
        """The newest entries, as consumers get them."""
        return self.engine._parts.recent_entries

    @property
    def dispatcher(self) -> Dispatcher:
        """Takes due messages to where they go."""
        return self.engine._parts.dispatcher

    @property
    def upkeep(self) -> Upkeep:
        """Marks, flushes, sweeps and reclaims."""
        return self.engine._parts.upkeep

    @property
    def repeating(self) -> Repeating:
        """Makes the messages of repeats."""
        return self.engine._parts.repeating

    @property
    def flights(self) -> Flights:
        """Messages on their way to other systems."""
        return self.dispatcher.flights

    @property
    def postponed(self) -> Collection[int]:
        """The seqs of versions that come again at a later instant than that of their key."""
        return list(self.dispatcher.postponed)

    @property
    def awaited(self) -> Collection[int]:
        """The first seqs of due versions whose bodies are being fetched from the index."""
        return self.dispatcher.awaited.fetches

    @property
    def awaited_since_ms(self) -> int:
        """Since when bodies are being fetched; of no meaning while `awaited` is empty."""
        return self.dispatcher.awaited.since_ms

    @property
    def lanes_waiting(self) -> int:
        """How many lanes hold due versions that wait for their turn."""
        return len(self.dispatcher.lanes)

    @property
    def chained(self) -> int:
        """How many flights wait behind an earlier one with their order key."""
        return sum(len(chain) - 1 for chain in self.flights._chains.values())

    @property
    def waiting_for_shares(self) -> bool:
        """Whether flights wait although there are places: their namespaces have their shares of these."""
        boarding = self.flights._boarding
        return bool(boarding._ready) and boarding._has_place(None)

    @property
    def carried_keys(self) -> Collection[str]:
        """Order keys whose flights are being carried to a later attempt."""
        return self.dispatcher.flights._deferral._held

    @property
    def forgotten_seq(self) -> int:
        """The seq up to which dead seqs are forgotten."""
        return self.upkeep._forgotten

    def pretend_reclaimed(self, seq: int) -> None:
        """Pretend that the ledger was reclaimed up to a seq."""
        self.upkeep._reclaimed = seq


class InsidesOf(Insides):
    """Looks into an engine that somebody else owns."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine that is looked into."""
        return self._engine
