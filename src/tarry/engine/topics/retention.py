"""Retention of entries that nobody takes, or that everybody has taken: time to live, backlog quota, retention.

Time to live counts from the due instant or the publication, whichever is later: an entry that still waits is never done
with by it. A quota that refuses producers loses nothing, so it counts everything that is stored; one that evicts does lose
entries, so it neither counts nor evicts what still waits. Retention keeps what every subscription is done with.

BodySizes are those of whole chunks, spread evenly over their entries. All of it is looked at once in a while, in rounds over all
topics and their subscriptions, and a bounded number of entries in one turn of the loop.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.limits import SECOND_MS
from tarry.core.names import parse_topic
from tarry.core.quantities import duration_in_words, size_in_words
from tarry.core.rules.policy import Effective
from tarry.core.sets.absent import Absent
from tarry.engine.namespaces.policies import Policies
from tarry.engine.topics.entries import Received
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.entry_reader import EntryReader
from tarry.engine.topics.subscription import Subscription
from tarry.engine.topics.topic import OverQuota, Topic
from tarry.engine.topics.topic_records import TopicRecords

EVERY_MS: Final = SECOND_MS
SOON_MS: Final = 20
"""When there is more to look at than one turn may."""
LOOK_AT: Final = 1_024
"""Entries that are looked at in one turn, of all topics: some milliseconds of the loop's time."""
EACH: Final = 4
"""A topic or a subscription costs as much as so many entries."""
EVICT_AT_ONCE: Final = 4_096
"""Entries of one subscription that are evicted in one turn. None of them is read."""
FIELDS: Final = ("message_ttl_ms", "backlog_bytes", "backlog_ms", "retention_ms")
"""The policies that are upheld here."""
EVICT_TO: Final = 0.9
"""An eviction goes down to this share of the limit, so that not every entry causes one."""


class Retention:
    """Upholds the policies about entries that lie in topics."""

    def __init__(self, records: TopicRecords, policies: Policies, reader: EntryReader) -> None:
        self._records = records
        self._policies = policies
        self._reader = reader
        self._looked: dict[Subscription, int] = {}
        """Where the look at a subscription's entries goes on."""
        self._upheld = False
        self._round: list[Topic] = []
        """The topics that are yet to be looked at in this round; `_more` says whether one of it has more to look at."""
        self._topic: Topic | None = None
        self._subs: list[Subscription] = []
        """The topic that is looked at, and those of its subscriptions that are yet to be."""
        self._more = False
        self._left = 0
        """How much more this turn may look at."""

    def let_go(self, now_ms: int) -> bool:
        """Forget entries that all subscriptions acknowledged a while ago; gives whether there may be more."""
        return self._records.let_go(now_ms)

    def turn(self, now_ms: int) -> int:
        """Look at topics that have such a policy; gives the instant of the next turn."""
        again_ms = now_ms + (SOON_MS if self.let_go(now_ms) else EVERY_MS)
        said = self._policies.says(*FIELDS)
        if not said and not self._upheld:
            return again_ms
        # Once more after the last of them is gone: what was full is full no longer.
        self._upheld = said
        if not self._round and self._topic is None:
            self._round = list(self._records.by_name.values())
            self._more = False
        self._left = LOOK_AT
        while self._left > 0 and (self._topic is not None or self._round):
            self._left -= EACH
            self._go_on(now_ms)
        self._looked = {sub: at for sub, at in self._looked.items() if not sub.closed}
        return now_ms + SOON_MS if self._round or self._topic is not None or self._more else again_ms

    def _go_on(self, now_ms: int) -> None:
        """Look at the next subscription or, after the last one of a topic, at the topic itself."""
        topic = self._topic
        if topic is None:
            topic = self._topic = self._round.pop()
            self._subs = [sub for sub in topic.subscriptions.values() if sub.durable]
        policy = self._policies.at_topic(topic.name)
        if self._subs and (policy.message_ttl_ms or _evicts(policy)):
            sub = self._subs.pop()
            if not sub.closed:
                self._more |= self._uphold(sub, policy, now_ms)
            return
        self._topic = None
        self._subs = []
        topic.over = self._over(topic, policy, now_ms)
        if policy.retention_ms:
            self._records.trim(topic, self._kept_from(topic, policy, now_ms))

    def _uphold(self, sub: Subscription, policy: Effective, now_ms: int) -> bool:
        """Uphold the policies of one subscription; whether there is more to look at."""
        more = False
        if policy.message_ttl_ms:
            more |= self.expire(sub, now_ms - policy.message_ttl_ms)
        if _evicts(policy) and policy.backlog_ms:
            more |= self.expire(sub, now_ms - policy.backlog_ms)
        if _evicts(policy) and policy.backlog_bytes:
            more |= self._evict(sub, policy.backlog_bytes)
        return more

    # Time to live

    def expire(self, sub: Subscription, before_ms: int) -> bool:
        """Be done with the entries that could be had before an instant; whether there is more to look at."""
        ids = due_entries(sub, self._looked.get(sub, 0)).first(LOOK_AT)
        self._left -= len(ids)
        over: list[int] = []
        young = False
        for entry_id, entry in zip(ids.tolist(), self._read(sub.topic, ids), strict=True):
            if entry is None or entry.available_at_ms < before_ms:
                over.append(entry_id)
            elif entry.published_at_ms >= before_ms:
                # Whatever comes after it was published later still.
                young = True
                break
        if over:
            sub.expired += len(over)
            _ = sub.ack(over)
        more = len(ids) == LOOK_AT and not young
        if more:
            self._looked[sub] = int(ids[-1]) + 1
        else:
            self._looked.pop(sub, None)
        return more

    def _read(self, topic: EntryLog, ids: NDArray[np.int64]) -> Sequence[Received | None]:
        return self._reader.entries(topic.seqs(ids))

    # Quota

    def _over(self, topic: Topic, policy: Effective, now_ms: int) -> OverQuota | None:
        """The quota for which producers are to be refused, if there is one."""
        if _evicts(policy):
            return None
        subs = [sub for sub in topic.subscriptions.values() if sub.durable]
        if policy.backlog_bytes and any(backlog_bytes(sub) >= policy.backlog_bytes for sub in subs):
            return self._quota(topic, policy, size_in_words(policy.backlog_bytes), "backlog_bytes")
        if policy.backlog_ms and self._is_old(topic, subs, now_ms - policy.backlog_ms):
            return self._quota(topic, policy, duration_in_words(policy.backlog_ms), "backlog_ms")
        return None

    def _is_old(self, topic: Topic, subs: Sequence[Subscription], before_ms: int) -> bool:
        """Whether an entry that could be had before an instant lies in a backlog."""
        oldest = np.concatenate([np.empty(0, np.int64), *(due_entries(sub).first(1) for sub in subs)])
        return any(
            entry is not None and entry.available_at_ms < before_ms for entry in self._read(topic, oldest)
        )

    def _quota(self, topic: Topic, policy: Effective, quota: str, field: str) -> OverQuota:
        level = self._policies.level_at(topic.name, parse_topic(topic.name).namespace_name)
        return OverQuota(policy.backlog_action, quota, field, level(field))

    def _evict(self, sub: Subscription, limit_bytes: int) -> bool:
        """Be done with the oldest entries that are due, until the rest is within the limit."""
        each = sub.topic.mean_bytes(sub.acked.below, sub.topic.visible)
        due = len(due_entries(sub))
        if due * each <= limit_bytes:
            return False
        count = due - int(limit_bytes * EVICT_TO / each)
        ids = due_entries(sub).first(min(count, EVICT_AT_ONCE)).tolist()
        sub.expired += len(ids)
        _ = sub.ack(ids)
        return count > EVICT_AT_ONCE

    # Retention

    def _kept_from(self, topic: Topic, policy: Effective, now_ms: int) -> int:
        bound = topic.unneeded_below()
        kept = topic.first
        if policy.retention_ms > 0:
            kept = self._reader.first_published(topic, now_ms - policy.retention_ms)
        if policy.retention_bytes >= 0 and (each := topic.mean_bytes(topic.first, bound)):
            kept = max(kept, bound - int(policy.retention_bytes / each))
        return min(bound, kept)


def _evicts(policy: Effective) -> bool:
    """Whether a quota is kept by evicting entries, and not by refusing producers."""
    return policy.backlog_action == "consumer_backlog_eviction"


def due_entries(sub: Subscription, start: int = 0) -> Absent:
    """The entries from one on that a subscription has not acknowledged and that do not wait for their due instant."""
    topic = sub.topic
    return Absent((sub.acked.above, topic.waiting), max(start, sub.acked.below, topic.first), topic.visible)


def delayed_count(sub: Subscription) -> int:
    """How many entries a subscription has yet to get that wait for their due instant."""
    return sub.backlog - len(due_entries(sub)) if len(sub.topic.waiting) else 0


def backlog_bytes(sub: Subscription) -> int:
    """About how much a subscription has not acknowledged, what still waits included."""
    return int(sub.backlog * sub.topic.mean_bytes(sub.acked.below, sub.topic.visible))
