"""Reading entries of topics: as they were published, and as one subscription gets them.

Most entries are at hand because they are recent; the others are read from the ledger. One that is gone, damaged or set aside
is passed over by everybody.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.core.messages.ids import Ids
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.bodies.body_sizes import BodySizes
from tarry.engine.isolation import Isolation
from tarry.engine.namespaces.policies import Policies
from tarry.engine.topics.entries import Received, received_entries
from tarry.engine.topics.entry_batch import EntryBatch
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.ledger.ledger import Ledger
from tarry.ledger.read_record import read_entries

log = logging.getLogger(__name__)


class EntryReader:
    """Reads entries by the seqs of their records, or by their ids."""

    def __init__(
        self,
        ledger: Ledger,
        bodies: Bodies,
        sizes: BodySizes,
        recent_entries: RecentEntries,
        ids: Ids,
        clock: Clock,
        policies: Policies,
        aside: AbstractSet[int],
        counters: "Counter[str]",
        isolation: Isolation,
    ) -> None:
        self._ledger = ledger
        self._bodies = bodies
        self._sizes = sizes
        self._recent_entries = recent_entries
        self._ids = ids
        self._clock = clock
        self._policies = policies
        self._aside = aside
        self._counters = counters
        self._isolation = isolation

    @property
    def stopped(self) -> bool:
        """Whether nothing more is given out: the disk has failed, and entries may have places that it does not have."""
        return self._ledger.failed is not None

    def together(self, seqs: NDArray[np.int64]) -> int:
        """How many of the entries at these seqs can be read together."""
        return self._sizes.together(seqs)

    # By seq

    def bodies(self, seqs: NDArray[np.int64]) -> list[bytes | None]:
        """The bodies of entries; None for one that is gone or damaged."""
        found: list[bytes | None] = []
        if self._aside:
            seqs = np.where(np.isin(seqs, list(self._aside)), 0, seqs)
        for body in self._bodies.entries(seqs):
            if isinstance(body, Damage):
                self._counters["damaged"] += 1
                log.error("an entry cannot be read and is passed over: %s", body)
            found.append(body if isinstance(body, bytes) else None)
        return found

    def entries(self, seqs: NDArray[np.int64]) -> Sequence[Received | None]:
        """Entries as consumers get them the first time; None for one that is gone or damaged."""
        recent = self._recent_entries.find(seqs)
        if isinstance(recent, EntryBatch):
            return recent
        found = list(recent)
        missing = [at for at, entry in enumerate(found) if entry is None]
        if missing:
            bodies = self.bodies(seqs[missing])
            there = [(at, body) for at, body in zip(missing, bodies, strict=True) if body is not None]
            try:
                received: Sequence[Received | None] = self._received([body for _, body in there])
            except Exception:  # noqa: BLE001 - one of them cannot be shown, and the others can
                received = [self._received_or_none(int(seqs[at]), body) for at, body in there]
            for (at, _), entry in zip(there, received, strict=True):
                found[at] = entry
        return found

    def _received(self, bodies: list[bytes]) -> list[Received]:
        return received_entries(read_entries(bodies), self._ids)

    def _received_or_none(self, seq: int, body: bytes) -> Received | None:
        """An entry, or None for one that cannot be shown: it is passed over, as a damaged one is."""
        try:
            return self._received([body])[0]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this entry
            self._isolation.reason(seq, error, "was read")
            return None

    # By id

    def entry(self, topic: EntryLog, entry_id: int) -> Received | None:
        """One entry as a consumer gets it the first time; None if it is gone."""
        return self.entries(topic.seqs(np.array([entry_id], np.int64)))[0]

    def for_subscription(
        self,
        topic: EntryLog,
        entry_ids: NDArray[np.int64],
        seqs: NDArray[np.int64],
        redeliveries: Mapping[int, int],
        partial: Mapping[int, Sequence[int]],
    ) -> tuple[Sequence[Received], list[int]]:
        """The entries that there are to give out, and the ids of those that are gone or whose time to live is over.

        `redeliveries` says how often some were given out before, `partial` which of their messages are left.
        """
        now_ms = self._clock.now_ms()
        ttl_ms = self._policies.at_topic(topic.name).message_ttl_ms
        entries: list[Received] = []
        gone: list[int] = []
        found = self.entries(seqs)
        if not (ttl_ms or redeliveries or partial):
            if isinstance(found, EntryBatch):
                return found, []
            there = [entry for entry in found if entry is not None and entry.ttl_ms is None]
            if len(there) == len(found):
                # The common case: there is nothing to decide about each.
                return there, []
        for entry_id, entry in zip(entry_ids.tolist(), found, strict=True):
            if entry is None or ((ttl_ms or entry.ttl_ms is not None) and entry.has_expired(now_ms, ttl_ms)):
                gone.append(entry_id)
            elif entry_id in redeliveries or entry_id in partial:
                again, left = redeliveries.get(entry_id, 0), partial.get(entry_id, ())
                entries.append(replace(entry, redelivery_count=again, left=left))
            else:
                entries.append(entry)
        return entries, gone

    # By time

    def published_at_ms(self, topic: EntryLog, entry_id: int) -> int | None:
        """When an entry was published; None if it is gone."""
        if topic.seq(entry_id) < self._ledger.first_seq:
            return None
        entry = self.entry(topic, entry_id)
        return None if entry is None else entry.published_at_ms

    def first_published(self, topic: EntryLog, at_ms: int) -> int:
        """The first entry of a topic that was published at an instant or later."""
        low, high = topic.first, topic.visible
        while low < high:
            middle = (low + high) // 2
            # What everybody has acknowledged may be gone: the next one that is there tells the time.
            at = topic.first_at(self._ledger.first_seq, middle, high)
            while at < high and (published_at_ms := self.published_at_ms(topic, at)) is None:
                at = topic.first_at(self._ledger.first_seq, at + 1, high)
            if at == high or (published_at_ms or 0) >= at_ms:
                high = middle
            else:
                low = at + 1
        return low
