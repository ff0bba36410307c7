"""A restart that nobody notices: the state after a replay is held against the live state, field by field.

The engine that runs decided its units as they came, most of them by what their makers said of them; a second engine recovers
from a copy of the disks and reads the same units back. What they hold at the same head must be the same, but for what no record
says, which each comparison names.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tarry.engine.topics.topic import Topic
from tarry.ledger.record import FIRST_BATCH_SEQ, Entry, Key, decode
from tarry.registry.registry import BatchRow
from tarry.registry.table import _REMOVED, Table
from tarry.testing.clock import SimulatedClock
from tarry.testing.insides import Insides
from tarry.testing.registry import RegistryDisk
from tarry.testing.world import World
from tests.simulation.checker import Violation

COUNTED = ("accepted", "cancelled", "failed")
"""Counters that records alone change. That a delayed entry was sent no record says, nor that an attempt failed."""


def check_replay(world: World) -> bool:
    """Raise a `Violation` if a restart at this moment would arrive at another state; False if there is something to be written."""
    ledger = world.ledger
    if ledger.failed is not None or ledger.durable_seq != ledger.next_seq - 1:
        return False
    # An end that found no room on a full disk is in memory alone: a restart would try its message again.
    if world.dispatcher.end_writer.waits_for_space:
        return False
    again = _restarted(world)
    for what, live, replayed in _compared(world, again):
        if live != replayed:
            live, replayed = _apart(live, replayed), _apart(replayed, live)
            raise Violation(f"after a restart {what} would be {replayed!r}, and is {live!r}")
    again.registry.close()
    return True


def _apart(these: Any, those: Any) -> Any:
    """Values as a violation shows them: of rows, those that differ."""
    if not isinstance(these, dict) or not isinstance(those, dict):
        return these
    return {key: row for key, row in these.items() if key not in those or those[key] != row}


def _restarted(world: World) -> World:
    """Another world, in which the engine has just recovered from a copy of the disks."""
    again = World(
        settings=world.settings,
        ledger_settings=world.ledger_settings,
        broker_policy=world.broker_policy,
        namespace_policies=world.namespace_policies,
        dead_block_bits=world.dead_block_bits,
        log=None if world.log is None else world.log.copy(),
        start=False,
    )
    again.clock = SimulatedClock(world.clock._at_ms)
    again.disk = world.disk.copy(0)
    again.disk.capacity_bytes = None
    again.registry_disk = RegistryDisk()
    again.registry_disk.images.append(world.registry_disk.images[-1])
    again.index = world.index
    # Every other one in steps, as a standby does: that must make no difference.
    again.in_steps = world.clock.now_ms() % 2 == 0
    again.start()
    while again.work():
        pass
    return again


Comparison = tuple[str, Any, Any]
"""The name of a field, its value in the engine that runs, and its value in the restarted one."""


def _compared(live: Insides, again: Insides) -> Iterator[Comparison]:
    def both(what: str, look: Any) -> Comparison:
        return what, look(live), look(again)

    yield both("counts", lambda of: [of.counters[name] for name in COUNTED])
    yield both(
        "pending messages", lambda of: (of.pending.by_holder, of.pending.total, of.pending.scoped_from)
    )
    yield both("the watermark", lambda of: of.engine_state.passed)
    yield both("the last mark", lambda of: of.engine_state.marked_at_ms)
    yield both("stranded messages", lambda of: +of.engine_state.stranded)
    yield both("records set aside", lambda of: of.engine_state.aside.seqs)
    yield both("policies", lambda of: of.engine_state.policies._set)
    yield both("the catalogue", lambda of: of.engine_state.catalogue._entered)
    yield both("paused places", lambda of: of.engine_state.pauses.by_place)
    yield both("paused messages", lambda of: +of.engine_state.paused)
    yield both("repeats", lambda of: of.engine_state.repeats.by_name)
    yield both("bulk commands", lambda of: of.engine_state.command_book.by_number)
    yield both("names", lambda of: _rows(of.registry.names))
    yield both("subjects", lambda of: _rows(of.registry.subjects))
    yield both("batches", _batches)
    yield both("the next batch", lambda of: of.batches.next_seq)
    yield from _groups(live, again)
    yield from _topics(live, again)
    yield from _versions(live, again)
    yield from _ended(live, again)


def _batches(of: Insides) -> dict[str, BatchRow]:
    """Batches whose time is not over. When the index has the files of one, and when its seqs are forgotten, no record says."""
    rows = {one.name: msgspec.structs.replace(one.stored(), past=False) for one in of.batches._ordered}
    watermark_ms = of.engine_state.passed.key.fire_at_ms
    return {
        name: row for name, row in rows.items() if row.high_ms >= watermark_ms or row.waiting or row.apart
    }


def _rows(table: Table[Any]) -> dict[tuple[Any, ...], Any]:
    """The rows of a table with the changes that it awaits to be flushed."""
    rows = dict(table.rows())
    for changes in (table._flushing, table._changes):
        for key, change in changes.items():
            if change is _REMOVED:
                rows.pop(key, None)
            else:
                rows[key] = change[1]
    return rows


def _groups(live: Insides, again: Insides) -> Iterator[Comparison]:
    """Open groups are the same; those that have ended are forgotten some time later, which no record says."""
    ours, theirs = _rows(live.registry.groups), _rows(again.registry.groups)

    def open_(rows: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
        return {key: group for key, group in rows.items() if group.closed_at_ms is None}

    yield "open groups", open_(ours), open_(theirs)
    yield "groups that have ended", ours, {key: theirs.get(key) for key in ours}
    for name in ("seqs", "_leaders", "_holders", "_unscoped"):
        yield f"Groups.{name}", getattr(live.groups, name), getattr(again.groups, name)


def _topics(live: Insides, again: Insides) -> Iterator[Comparison]:
    ours, theirs = live.engine.topics.by_name, again.engine.topics.by_name
    yield "topics", set(ours), set(theirs)
    for name, topic in ours.items():
        other = theirs[name]
        for field in ("incarnation", "partitions", "epoch", "next", "visible"):
            yield f"{field} of {name}", getattr(topic, field), getattr(other, field)
        # When entries are forgotten no record says.
        yield f"the first entry of {name}", True, other.first <= topic.first
        ids = np.arange(topic.first, topic.next)
        yield f"places of {name}", topic.seqs(ids).tolist(), other.seqs(ids).tolist()
        yield f"sizes of {name}", _sizes(topic), {at: _sizes(other).get(at) for at in _sizes(topic)}
        # When delayed entries are ready no record says; those whose records are gone, because nobody needs them, are at a start.
        waits = {
            entry_id
            for entry_id in topic.waiting.between(topic.first, topic.next).tolist()
            if topic.seq(entry_id) >= live.first_seq
        }
        yield (
            f"waiting entries of {name}",
            [],
            sorted(waits - set(other.waiting.between(0, other.next).tolist())),
        )
        producers = {producer: known.row() for producer, known in topic.producers.items()}
        yield f"producers of {name}", producers, {p: known.row() for p, known in other.producers.items()}
        yield from _subscriptions(topic, other)


def _sizes(topic: Topic) -> dict[int, int]:
    return {number: chunk[-1] for number, chunk in topic._chunks.items()}


def _subscriptions(topic: Topic, other: Topic) -> Iterator[Comparison]:
    """Durable subscriptions: the others end with the process."""
    ours = {name: sub for name, sub in topic.subscriptions.items() if sub.durable}
    yield f"subscriptions of {topic.name}", set(ours), set(other.subscriptions)
    for name, sub in ours.items():
        theirs = other.subscriptions[name]
        for field in ("type", "properties", "incarnation", "partial"):
            yield f"{field} of {name}", getattr(sub, field), getattr(theirs, field)
        acked = [one.acked.above.between(one.acked.below, topic.next).tolist() for one in (sub, theirs)]
        yield f"acknowledged entries of {name}", (sub.acked.below, acked[0]), (theirs.acked.below, acked[1])


def _versions(live: Insides, again: Insides) -> Iterator[Comparison]:
    """Versions that live: those above both views of the index, which in the engine that runs may be on their way."""
    cursor = max(live.horizon.view.cursor, again.horizon.view.cursor)
    out = live.dispatcher.keys_out_of_wheel()[1].tolist()
    living = []
    for of, more in ((live, [*out, *live.postponed]), (again, [])):
        parts = (of.horizon.wheel, of.horizon.tail)
        seqs = {seq for part in parts for seq in part.entries((0, 0), 1 << 30).seqs.tolist()} | set(more)
        above = np.array(sorted(seq for seq in seqs if cursor < seq < FIRST_BATCH_SEQ), np.int64)
        alive = above[~of.dead.contains_many(above)].tolist()
        living.append([seq for seq in alive if seq < of.first_seq or not _is_done_with(of, Key(0, seq))])
    ready = _ready(live, again)
    yield "living versions", living[0], [seq for seq in living[1] if seq not in ready]


def _is_done_with(of: Insides, current: Key) -> bool:
    """Whether it is the key of a delayed entry that nobody waits for: its topic has forgotten it, and perhaps the ledger too."""
    if current.seq >= of.first_seq:
        body: Any = of.bodies.one(current.seq) if current.seq < FIRST_BATCH_SEQ else None
    else:
        (body,) = of.horizon.index.newest().bodies([current], 1 << 30)
        if body is None:
            return True
    record = decode(body) if isinstance(body, bytes) else None
    return isinstance(record, Entry) and not of.engine_state.topics.waits(record, current.seq)


def _ready(live: Insides, again: Insides) -> set[int]:
    """Seqs of delayed entries that are ready in the engine that runs, and will be in the other."""
    waits = set(live.engine_state.topics.waiting_seqs().tolist())
    return set(again.engine_state.topics.waiting_seqs().tolist()) - waits


def _ended(live: Insides, again: Insides) -> Iterator[Comparison]:
    ready = _ready(live, again)
    current = _rows(again.registry.live)
    untold = {key for key, row in current.items() if row.current.seq in ready}
    # The row of an entry that its topic forgot while it waited stays, and nobody asks for it.
    touched = _rows(live.registry.live)
    both = ((live, touched), (again, current))
    forgotten = {key for of, rows in both for key, row in rows.items() if _is_done_with(of, row.current)}
    yield (
        "touched messages",
        {key: row for key, row in touched.items() if key not in forgotten},
        {key: row for key, row in current.items() if key not in untold | forgotten},
    )
    ended = []
    for of in (live, again):
        rows = _rows(of.registry.finalised)
        for deferred in of.registry._ended:
            rows.update({key: row for key, _, row in deferred()})
        ended.append(rows)
    ours = {key: row for key, row in ended[0].items() if key not in untold | forgotten}
    theirs = {key: ended[1].get(key) for key in ours}
    now_ms = again.engine.clock.now_ms()
    for key, row in theirs.items():
        if row is not None and row.finalised_at_ms == now_ms:
            # A delayed entry that was ready before, at an instant that no record says.
            theirs[key] = msgspec.structs.replace(row, finalised_at_ms=ours[key].finalised_at_ms)
    yield "ended messages", ours, theirs
