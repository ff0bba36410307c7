"""The wiring of the engine: which part is given which others, in one place.

Every part is made once and given what it needs when it is made; parts from the rooms below come first. There is one circle, because
whatever changes anything is a record: an acknowledgement, a dead letter and the end of a namespace are appended by parts of
the state, what is appended is decided by the state, and dispatch, which appends too, hears of the versions that have ended. The
journal is therefore made with two functions that find the state and dispatch when they are called.

Three listeners come later, because they are made on top of the finished engine: the driver's alarm (`Horizon.on_earlier`), and
the doors that are told of messages sent (`SentReport.on_sent`) and of topics deleted (`TopicRecords.on_deleted`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from tarry.core.messages.delivery import Outlet
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessagePage, MessageQuery
from tarry.core.rules.policy import Policy
from tarry.core.sets.deadset import DeadSet
from tarry.core.sets.seqset import BLOCK_BITS
from tarry.core.telemetry.tracing import Tracer
from tarry.core.time.clock import SteadyClock
from tarry.engine.admission.admission import Admission
from tarry.engine.admission.adoption import Adoption
from tarry.engine.answer import Answer
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.bodies.readahead import Readahead
from tarry.engine.bulk_commands.bulk_commands import BulkCommands
from tarry.engine.bulk_commands.walk import CommandWalk, GetPage
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.due.postponed import Postponed
from tarry.engine.flights.flights import Launch
from tarry.engine.flights.fresh_mark import FreshMark
from tarry.engine.isolation import Isolation
from tarry.engine.journal.journal import Effect, Journal
from tarry.engine.journal.tenure import Tenure
from tarry.engine.namespaces.catalogue import Catalogue
from tarry.engine.namespaces.namespace_shares import NamespaceShares
from tarry.engine.namespaces.policies import Policies
from tarry.engine.namespaces.repeat_state import RepeatState
from tarry.engine.queries.commands import Commands
from tarry.engine.queries.delayed_entries import DelayedEntries
from tarry.engine.queries.finding import Finding
from tarry.engine.queries.hearing import Hearing
from tarry.engine.queries.listing import Listing
from tarry.engine.queries.owners import Owners
from tarry.engine.queries.pausing import Pausing
from tarry.engine.queries.retries import Retries
from tarry.engine.queries.retrying import Retrying
from tarry.engine.queries.turns import Turns
from tarry.engine.queries.upcoming import Counting
from tarry.engine.records.changes import Change
from tarry.engine.repeats.repeating import Repeating
from tarry.engine.repeats.repeats import Repeats
from tarry.engine.settings import EngineSettings
from tarry.engine.state.aside import Aside
from tarry.engine.state.batches import Batches
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.recovery import Recovery
from tarry.engine.state.reliance import Reliance
from tarry.engine.topics.entry_reader import EntryReader
from tarry.engine.topics.pumping import Pumping
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.engine.topics.retention import Retention
from tarry.engine.topics.subscription import SubscriptionParts
from tarry.engine.topics.subscription_writer import SubscriptionWriter
from tarry.engine.topics.topic import NamedTopics
from tarry.engine.topics.topic_records import TopicRecords
from tarry.engine.topics.topics import Topics
from tarry.engine.tracing import Tracing
from tarry.engine.upkeep.backups import Backups
from tarry.engine.upkeep.reclaim import SnapshotMade
from tarry.engine.upkeep.upkeep import Upkeep
from tarry.index.index import Index
from tarry.ledger.ledger import Ledger
from tarry.registry.registry import Registry


class Surroundings(Struct, frozen=True, kw_only=True):
    """The neighbours and the settings of an engine, given by the program that runs it."""

    ledger: Ledger
    registry: Registry
    index: Index
    clock: SteadyClock
    ids: Ids
    outlets: Mapping[str, Outlet]
    launch: Launch
    offload: Offload
    """For slow work that writes."""
    reading: Offload | None = None
    """For slow work that reads; the same, if nothing is said."""
    settings: EngineSettings
    broker_policy: Policy = Policy()
    namespace_policies: Mapping[str, Policy] | None = None
    snapshot_folder: str | None = None
    on_snapshot: SnapshotMade | None = None
    """Told of each snapshot in that folder, so that it can be stored elsewhere."""
    shared: Callable[[], bool] = lambda: False
    """Whether several tenants share the server, so that none may take all of what it has."""
    tenure_ms: int = 1_500
    """So long a proof of owning a replicated ledger lasts: half of the time after which others try to claim it (R15)."""
    seed: int = 0
    tracer: Tracer | None = None
    dead_block_bits: int = BLOCK_BITS
    """Dead seqs are forgotten in whole blocks: small ones are for simulations, which have few seqs."""
    on_fault: Callable[[Exception], None] | None = None
    """Told when a record is enqueued that could not be decided: only a new start mends that."""
    on_isolated: Callable[[int, Exception], None] | None = None
    """Told of the seq of a message and of the error that ended it; what it raises is a fault."""


class EngineParts(Struct, frozen=True, kw_only=True):
    """The parts of an engine that its façade calls, and that tests look into."""

    journal: Journal
    state: EngineState
    recovery: Recovery
    horizon: Horizon
    bodies: Bodies
    sizes: BodySizes
    readahead: Readahead
    recent_entries: RecentEntries
    pumping: Pumping
    isolation: Isolation
    topics: Topics
    dispatcher: Dispatcher
    upkeep: Upkeep
    backups: Backups
    admission: Admission
    adoption: Adoption
    repeating: Repeating
    repeats: Repeats
    commands: Commands
    hearing: Hearing
    pausing: Pausing
    lists: GetPage
    """Pages of messages, whatever state they ask for."""
    bulk_commands: BulkCommands
    retries: Retries
    turns: Turns
    owners: Owners
    counting: Counting
    delayed: DelayedEntries
    tracing: Tracing | None


def wire(given: Surroundings) -> EngineParts:
    """Make the parts of an engine and give each what it needs."""
    ledger, registry, clock, ids = given.ledger, given.registry, given.clock, given.ids
    settings, outlets, reading = given.settings, given.outlets, given.reading or given.offload

    # Records, and when they are due
    counters: Counter[str] = Counter()
    isolation = Isolation(counters, given.on_isolated)
    dead, aside = DeadSet(given.dead_block_bits), Aside()
    reliance = Reliance(ledger)
    batches = Batches(dead)
    horizon = Horizon(
        given.index, reading, dead, settings.lead_ms, settings.wheel_entries, reliance.check,
        lambda cursor: batches.unindexed(cursor, journal.effective_seq),
    )  # fmt: skip
    tenure = Tenure(clock, given.tenure_ms, horizon.wake) if ledger.replicated else None
    postponed = Postponed()
    bodies = Bodies(ledger, horizon, postponed, reading, clock)
    sizes = BodySizes()
    tracing = None if given.tracer is None else Tracing(given.tracer, batches.trace_of)

    # The journal, with the circle
    def decide(first_seq: int, changes: Sequence[Change]) -> list[Effect]:
        return state.decide(first_seq, changes)

    def ended(seq: int) -> None:
        dispatcher.ended(seq)

    journal = Journal(ledger, tenure, horizon, bodies, sizes, isolation, decide, ended, given.on_fault)

    # Topics
    shares = NamespaceShares(given.shared)
    policies = Policies(given.broker_policy, given.namespace_policies)
    by_name, recent_entries, pumping = NamedTopics(), RecentEntries(), Pumping(horizon.wake, tenure)
    repeat_state = RepeatState()
    catalogue = Catalogue(journal, policies, by_name, repeat_state)
    reader = EntryReader(
        ledger, bodies, sizes, recent_entries, ids, clock, policies, aside.seqs, counters, isolation
    )
    writer = SubscriptionWriter(journal, reader, clock, by_name.get)
    subscription_parts = SubscriptionParts(reader, writer, pumping, isolation)
    topic_records = TopicRecords(
        by_name, registry, policies, dead, counters, bodies, recent_entries, ids, clock, subscription_parts
    )
    readahead = Readahead(bodies, horizon, sizes, aside.seqs, topic_records.prepares)

    # The state
    state = EngineState(
        registry=registry,
        ledger_id=ledger.ledger_id,
        dead=dead,
        aside=aside,
        counters=counters,
        policies=policies,
        catalogue=catalogue,
        repeats=repeat_state,
        topics=topic_records,
        batches=batches,
        reliance=reliance,
        horizon=horizon,
        bodies=bodies,
        sizes=sizes,
        readahead=readahead,
    )
    recovery = Recovery(state, ledger, horizon, bodies, sizes, journal)
    retention = Retention(topic_records, policies, reader)
    topics = Topics(
        journal=journal,
        records=topic_records,
        policies=policies,
        catalogue=catalogue,
        reader=reader,
        retention=retention,
        recent_entries=recent_entries,
        clock=clock,
        floor_ms=lambda: state.floor_ms,
        counters=counters,
        parts=subscription_parts,
        tracing=tracing,
    )

    # The way out, and upkeep
    fresh = FreshMark(journal, state, clock) if ledger.replicated else None
    dispatcher = Dispatcher(
        journal=journal,
        state=state,
        horizon=horizon,
        bodies=bodies,
        sizes=sizes,
        readahead=readahead,
        recent_entries=recent_entries,
        postponed=postponed,
        clock=clock,
        ids=ids,
        isolation=isolation,
        outlets=outlets,
        settings=settings,
        launch=given.launch,
        seed=given.seed,
        tracing=tracing,
        fresh=fresh,
        shares=shares,
    )
    upkeep = Upkeep(
        journal=journal,
        state=state,
        ledger=ledger,
        horizon=horizon,
        bodies=bodies,
        sizes=sizes,
        recent_entries=recent_entries,
        topics=topics,
        retention=retention,
        clock=clock,
        isolation=isolation,
        dispatcher=dispatcher,
        settings=settings,
        offload=given.offload,
        folder=given.snapshot_folder,
        on_snapshot=given.on_snapshot,
        tenure=tenure,
    )
    backups = Backups(upkeep.reclaim, registry, clock, upkeep.flush, given.offload, given.snapshot_folder)

    # What doors ask for
    finding = Finding(journal, state, horizon, bodies, clock, ids, dispatcher, upkeep)
    listing = Listing(state, horizon, bodies, postponed, ids, isolation, dispatcher, reading)
    commands = Commands(journal, state, finding, listing, dispatcher, ids, clock)
    admission = Admission(journal, state, bodies, clock, ids, outlets, finding, commands, tracing)
    retries = Retries(journal, state, bodies, finding, commands, ids, clock)
    retrying = Retrying(state, ids, dispatcher, commands)

    def lists(query: MessageQuery) -> Answer[MessagePage]:
        return retrying.list(query) if query.state == "retrying" else commands.list_messages(query)

    walk = CommandWalk(state, ids, finding, commands, retries, lists)
    repeating = Repeating(journal, state, bodies, isolation, admission.versions, dispatcher.flights)
    return EngineParts(
        journal=journal,
        state=state,
        recovery=recovery,
        horizon=horizon,
        bodies=bodies,
        sizes=sizes,
        readahead=readahead,
        recent_entries=recent_entries,
        pumping=pumping,
        isolation=isolation,
        topics=topics,
        dispatcher=dispatcher,
        upkeep=upkeep,
        backups=backups,
        admission=admission,
        adoption=Adoption(
            journal, state, ledger.ledger_id, ids, dispatcher, upkeep, commands, clock, outlets, tracing
        ),
        commands=commands,
        repeating=repeating,
        repeats=Repeats(journal, state, repeating, clock, shares),
        pausing=Pausing(journal, state, dispatcher, finding, commands, clock, shares),
        retries=retries,
        lists=lists,
        bulk_commands=BulkCommands(journal, state, horizon, walk, clock, shares),
        turns=Turns(journal, state, clock, ids, dispatcher, commands, upkeep),
        hearing=Hearing(state, ids, dispatcher, commands),
        owners=Owners(journal, state, ids, commands),
        counting=Counting(state, horizon, reading),
        delayed=DelayedEntries(journal, topics, reader, horizon, ids, commands),
        tracing=tracing,
    )
