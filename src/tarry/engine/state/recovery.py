"""Recovery: arriving at the state of the ledger's head.

The registry gives what it has reached, the ledger the rest. Of what waits, the index has everything up to its cursor, so that
only the ledger above it is read, keys alone, into the tail. What the index cannot be trusted with is refused here.
"""

from collections.abc import Collection
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Unavailable
from tarry.core.policy import Policy
from tarry.engine.due.horizon import VERSIONS
from tarry.engine.isolation import FAULTS
from tarry.engine.journal.journal import Journal
from tarry.engine.records.changes import changes_of
from tarry.engine.state.aside import explained
from tarry.index.index import IndexView
from tarry.ledger.read_record import read_entry
from tarry.ledger.record import Key, Kind, decode, decode_many
from tarry.ledger.replay import Frame
from tarry.ledger.watermark import Watermark

READ_TOGETHER: Final = 1_000


class AheadOfLedger(Unavailable):
    """The index has read more than there is: two backups were mixed."""


def recover(journal: Journal, set_aside: Collection[int] = ()) -> None:
    """Bring a new journal to the state of its ledger, without the records at some seqs."""
    now_ms = journal.clock.now_ms()
    applied = _load(journal)
    journal.aside.seqs.update(set_aside)
    view = _newest(journal)
    cursor = 0 if view is None else view.cursor
    _ready_overdue(journal, _replay(journal, applied, cursor))
    journal.topics.records.replayed()
    journal.recovered(now_ms)
    horizon = journal.horizon
    horizon.check = lambda newer: check_view(journal, newer)
    horizon.begin(journal.passed, now_ms)
    if view is not None:
        horizon.take(view)
    horizon.advance(now_ms)


def check_view(journal: Journal, view: IndexView) -> None:
    """Raise `Unavailable` unless a view belongs to this ledger and has all that was reclaimed because of it."""
    ledger, relied = journal.ledger, journal.relied
    if relied.seq and view.identity != relied.index:
        raise Unavailable(
            "the index was removed or replaced by another, and with it messages that are nowhere else:"
            " bring its folder back from a backup"
        )
    if view.cursor < relied.seq:
        raise Unavailable(
            f"the index ends at seq {view.cursor}, but {relied.seq} was reached before: it is an older copy"
        )
    # A new index begins with the ledger, wherever that is; until it does, it has reached nothing.
    if 0 < view.cursor < ledger.first_seq - 1:
        raise Unavailable(
            f"the index ends at seq {view.cursor}, but the ledger begins at {ledger.first_seq}: it is an older copy"
        )


def _newest(journal: Journal) -> IndexView | None:
    """The index's newest version; None while it cannot be read, which the horizon tries again."""
    try:
        view = journal.horizon.index.newest()
        check_view(journal, view)
        if view.cursor > journal.ledger.durable_seq:
            # Once the ledger has grown that far, nobody could tell.
            raise AheadOfLedger(
                f"the index has reached seq {view.cursor}, but the ledger ends at {journal.ledger.durable_seq}:"
                " the ledger is older than the index"
            )
    except AheadOfLedger:
        raise
    except Unavailable as trouble:
        journal.horizon.report(VERSIONS, str(trouble), journal.clock.now_ms())
        journal.horizon.blocked = journal.relied.seq > 0
        return None
    return view


def _load(journal: Journal) -> int:
    """Take over what the registry has; gives the seq that it has reached."""
    ledger, registry, meta = journal.ledger, journal.registry, journal.registry.meta
    applied = 0
    if meta is not None:
        if meta.ledger_id != ledger.ledger_id:
            raise Unavailable(
                "the registry and the ledger are not of the same installation: were two backups mixed?"
            )
        if meta.applied_seq > ledger.durable_seq:
            raise Unavailable(
                f"the registry has reached seq {meta.applied_seq}, but the ledger ends at"
                f" {ledger.durable_seq}: the ledger is older than the registry"
            )
        applied = meta.applied_seq
        journal.passed = Watermark(meta.watermark, tuple(meta.ceilings))
        journal.marked_at_ms, journal.ahead = meta.marked_at_ms, meta.ahead
        journal.counters.update(meta.counters)
        journal.relied = meta.relied
        journal.sizes.load(meta.sizes)
        journal.stranded.update(meta.stranded)
        journal.aside.seqs.update(meta.set_aside)
        journal.aside.known = frozenset(meta.set_aside)
    if applied + 1 < ledger.first_seq:
        raise Unavailable(
            f"the registry has reached seq {applied}, but the ledger begins at {ledger.first_seq}:"
            " restore the registry from its snapshot"
        )
    journal.topics.records.load(registry)
    journal.batches.load(registry)
    journal.groups.load()
    journal.catalogue.load(registry)
    journal.repeats.load(registry)
    journal.pending.load(registry)
    for (scope, name), policy in registry.policies.rows():
        journal.policies.apply(scope, name, msgspec.convert(policy, Policy))
    return applied


def _replay(journal: Journal, applied: int, cursor: int) -> NDArray[np.int64]:
    """Keys of everything above the cursor, whole records above the registry's seq.

    Gives the seqs of delayed entries that may be below the watermark: of those up to the cursor no key was read.
    """
    waiting: list[Any] = []
    ledger = journal.ledger
    journal.replayed_from = max(ledger.first_seq, min(applied, cursor) + 1)
    for frame in ledger.frames(journal.replayed_from):
        fixed = frame.fixed
        seqs = np.arange(frame.first_seq, frame.first_seq + frame.count, dtype=np.int64)
        journal.sizes.add_many(frame.first_seq, fixed["size"].astype(np.int64))
        kills = fixed["kills_seq"]
        journal.dead.add_many(kills[kills > 0])
        fire = fixed["fire_at_ms"]
        delayed = (fixed["kind"] == Kind.ENTRY) & (fire > 0)
        chosen = ((fixed["kind"] == Kind.PUT) | delayed) & (seqs > cursor)
        if chosen.any():
            due = fire[chosen].astype(np.int64), seqs[chosen], fixed["lane"][chosen].astype(np.uint16)
            waiting.append((*due, delayed[chosen]))
        if frame.first_seq + frame.count > applied + 1:
            _decide(journal, frame, max(0, applied + 1 - frame.first_seq))
    # A delayed entry waits if its topic says so; the others were ready before.
    entries_waiting = journal.topics.records.waiting_seqs()
    overdue = [entries_waiting[entries_waiting <= cursor]]
    for fires, seqs, lanes, delayed in waiting:
        alive = ~journal.dead.contains_many(seqs) & (~delayed | np.isin(seqs, entries_waiting))
        ready = alive & delayed & journal.passed.passed(fires, seqs)
        overdue.append(seqs[ready])
        alive &= ~ready
        if alive.any():
            journal.horizon.tail.add_many(fires[alive], seqs[alive], lanes[alive])
    return np.concatenate(overdue)


def _decide(journal: Journal, frame: Frame, start: int) -> None:
    """Decide the records of a frame from a place on, but for those that are set aside."""
    bodies: list[bytes | None] = list(map(frame.body, range(start, frame.count)))
    first_seq = frame.first_seq + start
    for seq in journal.aside.seqs:
        if first_seq <= seq < first_seq + len(bodies):
            journal.aside.skipped.add(seq)
            bodies[seq - first_seq] = None
    try:
        journal.decide(first_seq, changes_of(decode_many(bodies)))
    except FAULTS:
        raise
    except Exception:
        for seq, body in enumerate(bodies, first_seq):
            if body is not None:
                _decide_one(journal, seq, body)
        raise


def _decide_one(journal: Journal, seq: int, body: bytes) -> None:
    try:
        journal.decide(seq, changes_of([decode(body)]))
    except Exception as error:
        raise explained(seq, error) from error


def _ready_overdue(journal: Journal, waiting: NDArray[np.int64]) -> None:
    """Delayed entries below the watermark were ready before, whatever the clock says now: no record says so, and the registry may not have heard of it."""
    waiting = np.sort(waiting)
    for start in range(0, len(waiting), READ_TOGETHER):
        seqs = waiting[start : start + READ_TOGETHER]
        for seq, body in zip(seqs.tolist(), journal.bodies.many(seqs), strict=True):
            if not isinstance(body, bytes) or seq in journal.aside.seqs:
                journal.topics.records.ready_unread(seq)
            elif journal.passed.has_passed(Key((entry := read_entry(body)).fire_at_ms, seq)):
                journal.topics.records.ready([seq], [entry])
