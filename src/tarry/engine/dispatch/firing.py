"""Firing: due messages for Tarry's own topics become entries, by units that end their versions (R5).

Messages are gathered in a burst as they are decided about, and a burst is written before anything else that takes entry
ids. A member of a group is fired by itself, for the same unit ends its siblings (R11).
"""

import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Unavailable
from tarry.core.messages.ids import Ids
from tarry.core.telemetry import faults
from tarry.engine.dispatch.burst import Burst
from tarry.engine.dispatch.sent_report import SentReport
from tarry.engine.due.due_batch import DueBatch
from tarry.engine.due.postponed import Later
from tarry.engine.flights.end_writer import SPACE_RETRY_MS, EndWriter
from tarry.engine.journal.journal import Journal
from tarry.engine.records.changes import NewEntries, Written
from tarry.engine.state.engine_state import EngineState
from tarry.engine.topics.recent_entries import RecentEntries
from tarry.ledger.lanes import lane_of
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import Entry, Key, Record

log = logging.getLogger(__name__)


class Firing:
    """The burst that is being gathered, and the units that fire messages and are not durable yet."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        recent_entries: RecentEntries,
        ids: Ids,
        end_writer: EndWriter,
        sent: SentReport,
        later: Later,
        all_durable: Callable[[], None],
    ) -> None:
        """`all_durable` is called when the last of the units under way is durable, or never will be."""
        self._journal = journal
        self._state = state
        self._recent_entries = recent_entries
        self._ids = ids
        self._end_writer = end_writer
        self._sent = sent
        self._later = later
        self._all_durable = all_durable
        self._burst = Burst(0)
        self._under_way: dict[int, NDArray[np.int64]] = {}
        """Seqs of the versions that each unit ends, by the number of the unit."""

    def __bool__(self) -> bool:
        """Whether any unit is not durable yet."""
        return bool(self._under_way)

    def seqs(self) -> Iterator[int]:
        """The seqs of the versions that units under way end."""
        for seqs in self._under_way.values():
            yield from seqs.tolist()

    def begin(self, now_ms: int) -> None:
        """Begin a burst, which fires its messages at this instant."""
        self._burst = Burst(now_ms)

    def batch_for(self, topic: str) -> DueBatch:
        """The batch of the burst for a topic to which messages are added one by one."""
        return self._burst.of(topic)

    def take(self, topic: str, batches: Sequence[DueBatch]) -> None:
        """Take batches into the burst whose rows are all messages for one topic."""
        self._burst.extend(topic, batches)

    def fire(self) -> None:
        """Write the messages that were gathered, and begin another burst."""
        burst, self._burst = self._burst, Burst(self._burst.now_ms)
        if len(burst):
            for part in burst.parts(self._journal.unit_max_bytes):
                self._fire(part)

    def _fire(self, burst: Burst) -> None:
        unit = self._end_writer.open(burst.floor())
        self._under_way[unit] = seqs = burst.seqs()

        def done(error: Exception | None) -> None:
            self._durable(unit)
            if error is None:
                self._keep_recent(burst, written, first)
                self._sent.tell_burst(burst)
                self._end_writer.settled(map(int, seqs))

        try:
            written = burst.written(self._state.topics.next_id)
            first = self._journal.append(written, done)
        except Unavailable as error:
            done(error)
            for put, _, key in burst.items():
                self._later(key, lane_of(put.namespace, put.owner, put.door), burst.now_ms + SPACE_RETRY_MS)
        except Exception as error:
            done(error)
            raise

    def _keep_recent(self, burst: Burst, written: Written, first_seq: int) -> None:
        """Keep entries at hand whose topic has consumers."""
        topics = self._state.topics.by_name
        for new in written.changes:
            if isinstance(new, NewEntries) and (topic := topics.get(new.topic)) and topic.has_consumers:
                try:
                    burst.keep_recent(self._recent_entries, self._ids, new, first_seq)
                except Exception as error:  # noqa: BLE001 - it is speed alone: whoever reads them finds which one it is
                    log.error("entries are not kept at hand because of %s", faults.told(error))

    def fire_grouped(self, key: Key, head: PutHead, body: bytes, now_ms: int) -> None:
        """Fire a member of a group: the same unit ends its siblings (R11)."""
        assert head.group is not None
        entry_id = self._state.topics.next_id(head.destination)
        records: list[Record] = [Entry(head.destination, 0, now_ms, entry_id, key, msgspec.Raw(body))]
        records += self._state.groups.ends_of_siblings(head, head.origin or key, now_ms)
        unit = self._end_writer.open(key)
        self._under_way[unit] = np.array([key.seq])

        def done(error: Exception | None) -> None:
            self._durable(unit)
            if error is None:
                self._sent.tell_grouped(key.seq, head, body, now_ms)
                self._end_writer.settled([key.seq])

        try:
            self._journal.append(records, done)
        except Unavailable as error:
            done(error)
            self._later(key, lane_of(head.namespace, head.owner, head.door), now_ms + SPACE_RETRY_MS)
        except Exception as error:
            done(error)
            raise

    def _durable(self, unit: int) -> None:
        self._end_writer.close(unit)
        del self._under_way[unit]
        if not self._under_way:
            self._all_durable()
