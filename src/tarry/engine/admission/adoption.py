"""Adoption: a staged batch is accepted as a whole, shown, and cancelled as a whole (R10).

The record that adopts a batch is its acceptance: every message in its files, or none. A name is used once; the same
request again gets the same answer, so that a job that does not know whether it succeeded can simply try again. That the files
are there and are what the manifest says was looked at by the caller, who can wait for a disk.

Cancelling is one record too. Messages that are being sent at that moment, or that have a version of their own, are cancelled
one by one, each by the rules of its own life (R11).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from tarry.core.errors import (
    Conflict,
    DelayTooLong,
    Invalid,
    NotFound,
    Rejected,
    TarryError,
    TooLarge,
)
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import MessageView
from tarry.core.names import check_name, parse_namespace, parse_topic
from tarry.core.rules.policy import Effective
from tarry.core.tenants.holder import Holder
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, all_of, failed
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands
from tarry.engine.state.batches import Batch
from tarry.engine.state.engine_state import EngineState
from tarry.engine.tracing import Tracing
from tarry.engine.upkeep.upkeep import Upkeep
from tarry.index.manifest import DOOR, BatchManifest, StagingPlace, Terms
from tarry.ledger.frame import ROW_BYTES
from tarry.ledger.record import Adopt, CancelBatch, Key, Spared, encode

APART_AT_ONCE: Final = 1_000
"""Messages with a version of their own that are cancelled together."""


class BatchView(Struct, frozen=True, kw_only=True):
    """A batch as it can be shown."""

    name: str
    count: int
    """How many messages it had."""
    remaining: int
    """How many of them have not ended."""
    cancelled: int
    """How many ended when the batch was cancelled."""
    adopted_at_ms: int
    last_due_at_ms: int
    namespaces: list[str]
    cancelled_at_ms: int | None
    repeated: bool = False
    """Whether the batch was adopted before; this is the first answer again."""


class BatchPage(Struct, frozen=True):
    """Some batches, the newest first."""

    batches: list[BatchView]
    next_page: int | None


def view_of(batch: Batch, *, repeated: bool = False) -> BatchView:
    """A batch as it is now."""
    row = batch.row
    return BatchView(
        name=batch.name, count=row.count, remaining=batch.remaining, cancelled=row.cancelled,
        adopted_at_ms=row.adopted_at_ms, last_due_at_ms=row.high_ms, namespaces=row.namespaces,
        cancelled_at_ms=row.cancelled_at_ms, repeated=repeated,
    )  # fmt: skip


class Adoption:
    """Adopts batches, shows them, cancels them."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        ledger_id: bytes,
        ids: Ids,
        dispatcher: Dispatcher,
        upkeep: Upkeep,
        commands: Commands,
        clock: Clock,
        outlets: Iterable[str],
        tracing: Tracing | None,
    ) -> None:
        self._journal = journal
        self._state = state
        self._ledger_id = ledger_id.hex()
        self._ids = ids
        self._tracing = tracing
        self._dispatcher = dispatcher
        self._upkeep = upkeep
        self._commands = commands
        self._clock = clock
        self._outlets = sorted(outlets)
        self._undecided: list[tuple[Batch, Answer[BatchView]]] = []
        """Batches to be cancelled of which some may have been sent before a restart: those are tried again first."""

    def namespaces_of(self, name: str) -> Sequence[str] | None:
        """Namespaces of an adopted batch; None if none has this name."""
        known = self._state.batches.by_name.get(name)
        return None if known is None else known.row.namespaces

    def place(self, index: str, covers: Callable[[str], bool]) -> StagingPlace:
        """Where to stage and on what terms, as far as somebody reaches."""
        policies = self._state.policies
        namespaces = [name for name in policies.places("namespace") if covers(name)]
        topics = [name for name in policies.places("topic") if covers(_namespace_of(name))]
        return StagingPlace(
            index=index,
            ledger=self._ledger_id,
            now_ms=self._clock.now_ms(),
            outlets=self._outlets,
            broker=_terms(policies.effective(None, "")),
            namespaces={name: _terms(policies.effective(None, name)) for name in namespaces},
            unit_max_bytes=self._journal.unit_max_bytes,
            topics={name: _terms(policies.effective(name, _namespace_of(name))) for name in topics},
        )

    # Adopting

    def adopt(self, name: str, manifest: BatchManifest) -> Answer[BatchView]:
        """Accept every message of a batch, or none; the answer comes when that is durable."""
        if self._tracing is None:
            return self._adopt(name, manifest, None)
        take = partial(self._adopt, name, manifest)
        return self._tracing.accepted("adopt", DOOR, manifest.count, (), take)

    def _adopt(self, name: str, manifest: BatchManifest, trace: bytes | None) -> Answer[BatchView]:
        try:
            check_name(name, "name")
            known = self._state.batches.by_name.get(name)
            if known is not None:
                return self._repeat(known, manifest)
            now_ms = self._clock.now_ms()
            self._check(manifest, now_ms)
            record = self._record(name, manifest, now_ms, trace)
            if len(encode(record).body) + ROW_BYTES > self._journal.unit_max_bytes:
                raise TooLarge("manifest", self._journal.unit_max_bytes)
            answer = self._journal.write([record], lambda: view_of(adopted))
            adopted = self._state.batches.by_name[name]
            return answer
        except TarryError as error:
            return failed(error)

    def _repeat(self, known: Batch, manifest: BatchManifest) -> Answer[BatchView]:
        if manifest.fingerprint and known.row.fingerprint != manifest.fingerprint:
            raise Conflict("there is a batch with this name and other messages", "reused")
        return self._show(known, repeated=True)

    def _check(self, manifest: BatchManifest, now_ms: int) -> None:
        if manifest.ledger != self._ledger_id:
            raise Conflict(
                "the batch was staged for another ledger; stage it again for this one", "elsewhere"
            )
        if sum(manifest.owners.values()) != manifest.count:
            raise Invalid("owners", "the counts do not add up to the rows of the files")
        if not manifest.namespaces:
            raise Invalid("namespaces", "a batch has messages of at least one")
        held = _held(manifest)
        if len({file.path for file in manifest.files}) < len(manifest.files):
            raise Invalid("files", "a file stands there twice; name each once")
        for namespace, due_at_ms in manifest.namespaces.items():
            policy = self._state.policies.effective(None, parse_namespace(namespace))
            self._check_delay(namespace, policy, due_at_ms - now_ms)
            self._check_owners(namespace, held.get(namespace, {}), policy.max_pending_per_owner)

    def _check_delay(self, namespace: str, policy: Effective, delay_ms: int) -> None:
        """Raise for a delay that no place of a namespace takes any more: policies may have changed since it was staged.

        Rows were held against the policies of their own topics when they were staged.
        """
        policies = self._state.policies
        topics = [name for name in policies.places("topic") if _namespace_of(name) == namespace]
        there = [policy, *(policies.effective(name, namespace) for name in topics)]
        longest_ms = max(one.longest_ms if one.delayed_delivery else 0 for one in there)
        level = policies.level_at(None, namespace)
        if delay_ms > longest_ms:
            raise (
                DelayTooLong(longest_ms, level("max_delay_ms") if longest_ms == policy.longest_ms else "")
                if longest_ms
                else Rejected(f"delayed delivery is off in {namespace}")
            )

    def _check_owners(self, namespace: str, owners: dict[str, int], limit: int) -> None:
        level = self._state.policies.level_at(None, namespace)
        for owner, count in owners.items():
            self._state.pending.check(Holder(namespace, owner), limit, level, count - 1)

    def _record(self, name: str, manifest: BatchManifest, now_ms: int, trace: bytes | None) -> Adopt:
        floor_ms = max(now_ms, self._state.watermark.fire_at_ms)
        files = [file.staged() for file in manifest.files]
        return Adopt(
            name, self._state.batches.next_seq, manifest.count, floor_ms, now_ms, files, manifest.owners,
            sorted(manifest.namespaces), manifest.fingerprint, trace, _held(manifest),
        )  # fmt: skip

    # Showing

    def batch(self, name: str) -> Answer[BatchView]:
        """A batch by its name."""
        found = self._state.batches.by_name.get(name)
        return failed(NotFound("there is no such batch")) if found is None else self._show(found)

    def _show(self, batch: Batch, *, repeated: bool = False) -> Answer[BatchView]:
        """The batch as it is now, once its adoption and the ends that it counts are durable (R2)."""
        view = view_of(batch, repeated=repeated)
        return self._journal.once_durable(lambda: view)

    def list_batches(
        self, limit: int, page: int | None = None, covers: Callable[[str], bool] = lambda _: True
    ) -> BatchPage:
        """A page of the batches of which somebody reaches every namespace, the newest first."""
        durable_seq = self._journal.durable_seq
        found: list[Batch] = []
        for batch in self._state.batches.in_order():
            if (page is not None and batch.adopt_seq >= page) or batch.adopt_seq > durable_seq:
                continue
            if all(map(covers, batch.row.namespaces)):
                if len(found) == limit:
                    return BatchPage([view_of(one) for one in found], found[-1].adopt_seq)
                found.append(batch)
        return BatchPage([view_of(one) for one in found], None)

    # Cancelling

    def cancel(self, name: str) -> Answer[BatchView]:
        """End every message of a batch that has not ended.

        Once this is answered none of them goes out, except those that remain: of these it is not known whether they
        were sent, and they are tried again until it is (R11).
        """
        batch = self._state.batches.by_name.get(name)
        if batch is None:
            return failed(NotFound("there is no such batch"))
        answer: Answer[BatchView] = Answer()
        if self._is_known(batch):
            self._cancel(batch, answer)
        else:
            self._undecided.append((batch, answer))
        return answer

    def turn(self, now_ms: int) -> None:
        """Cancel batches whose cancels had to wait. After the dispatcher's turn: due messages are under way by then."""
        if not self._undecided:
            return
        undecided, self._undecided = self._undecided, []
        for batch, answer in undecided:
            if self._is_known(batch) or self._journal.failed:
                self._cancel(batch, answer)
            else:
                self._undecided.append((batch, answer))

    def _is_known(self, batch: Batch) -> bool:
        """Whether nothing of a batch may have been sent before the start and was not tried again since (R11)."""
        recovered_at_ms = self._state.recovered_at_ms
        if batch.cancelled_at_ms is not None or batch.adopt_seq > self._state.recovered_seq:
            return True
        loaded = self._dispatcher.lowest_arriving().fire_at_ms > recovered_at_ms
        return loaded and not self._dispatcher.is_untried_between(
            batch.first_seq, batch.last_seq, recovered_at_ms
        )

    def _cancel(self, batch: Batch, answer: Answer[BatchView]) -> None:
        def cancelled(error: TarryError | None) -> None:
            if error is not None:
                answer.fail(error)
            else:
                self._cancel_apart(batch, answer)

        if batch.cancelled_at_ms is not None or not batch.remaining:
            self._journal.when_durable(self._journal.next_seq - 1, cancelled)
            return
        try:
            self._journal.append([self._cancel_record(batch)], cancelled, essential=True)
        except TarryError as error:
            answer.fail(error)
        else:
            self._dispatcher.killed_between(batch.first_seq, batch.last_seq)

    def _cancel_record(self, batch: Batch) -> CancelBatch:
        flights = self._dispatcher.being_sent_between(batch.first_seq, batch.last_seq)
        spared = [Spared(flight.key, flight.head.owner, flight.head.namespace) for flight in flights]
        row = batch.row
        return CancelBatch(batch.name, row.first_seq, row.count, row.high_ms, self._clock.now_ms(), spared)

    def _cancel_apart(self, batch: Batch, answer: Answer[BatchView]) -> None:
        """Cancel the messages of a batch that have rows of their own, one by one; those sent in the meantime stay sent."""
        keys = [key for key in batch.row.spared if key.seq not in self._state.dead]
        self._cancel_each(keys, lambda: self._cancel_moved(batch, batch.first_seq, answer), answer)

    def _cancel_moved(self, batch: Batch, from_seq: int, answer: Answer[BatchView]) -> None:
        """Cancel messages that have a version of their own, which the registry knows, a page at a time."""

        def flushed(flush: Answer[None]) -> None:
            try:
                flush.value()
                rows = self._state.registry.live.select(
                    "origin_seq BETWEEN ? AND ? ORDER BY origin_seq LIMIT ?",
                    (from_seq, batch.last_seq, APART_AT_ONCE),
                )
            except TarryError as error:
                answer.fail(error)
                return
            if not rows:
                self._show(batch).forward_to(answer)
                return
            last_seq = rows[-1][2].origin.seq
            self._cancel_each(
                [row.origin for _, _, row in rows],
                lambda: self._cancel_moved(batch, last_seq + 1, answer),
                answer,
            )

        if batch.apart.total():
            self._upkeep.flush().then(flushed)
        else:
            self._show(batch).forward_to(answer)

    def _cancel_each(
        self, origins: Iterable[Key], done: Callable[[], None], answer: Answer[BatchView]
    ) -> None:
        def came(one: Answer[MessageView]) -> None:
            error = one.error()
            # Sent, or ended otherwise: that is an end too.
            if error is not None and not isinstance(error, Conflict | NotFound) and not answer.settled:
                answer.fail(error)

        make_id = self._ids.make
        singles = [self._commands.cancel(make_id(origin.seq, origin.fire_at_ms)) for origin in origins]
        for single in singles:
            single.then(came)
        all_of(singles).then(lambda _: None if answer.settled else done())


def _held(manifest: BatchManifest) -> dict[str, dict[str, int]]:
    """How many messages belong to each owner, by namespace; raises `Invalid` where that is not said, or not so."""
    held = manifest.held
    if not held and len(manifest.namespaces) == 1:
        return dict.fromkeys(manifest.namespaces, manifest.owners)
    counts: Counter[str] = Counter()
    for owners in held.values():
        counts.update(owners)
    if counts != Counter(manifest.owners) or not held.keys() <= manifest.namespaces.keys():
        raise Invalid(
            "held",
            "does not add up to owners: give the number of messages of each owner in each namespace",
        )
    return held


def _terms(policy: Effective) -> Terms:
    return Terms(
        delayed_delivery=policy.delayed_delivery, tick_ms=policy.tick_ms, slot_ms=policy.slot_ms,
        max_delay_ms=policy.max_delay_ms,
    )  # fmt: skip


def _namespace_of(topic: str) -> str:
    return parse_topic(topic).namespace_name
