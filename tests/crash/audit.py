"""Judges the books: what was answered and is lost, what came early, twice, after a cancel, or changed.

Works only from what the clients wrote down (`tests.crash.books`) and knows nothing of the server. Each rule gives a
line for each offender. What has no answer may or may not have happened; everything else is certain:

    answered                         must be so
    -------------------------------  ---------------------------------------------------------------
    scheduled, not cancelled, due    in its topic once; at the receiver at least once, under its id
    cancelled                        in no topic; at the receiver not after the answer
    published                        in its topic once, under the entry id that was answered
    acknowledged                     not received by a request that began after the answer
    of a group                       one delivered at the most; one, if all were answered
    a batch cancelled                none of it published after that; the others are as many as was answered
    anything                         not before its due instant, by a clock that a fault may have set wrong
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.crash.books import IN_ORDER, Arrival, Books, Message

SHOWN = 20
"""Offenders shown for each rule."""


def audit(books: Books) -> list[str]:
    """A line for each offender; none if all is well."""
    view = View(books)
    found = [f"complaint: {line}" for line in books.complaints]
    for rule in RULES:
        lines = list(rule(view))
        found += [f"{rule.__name__.strip('_')}: {line}" for line in lines[:SHOWN]]
        if len(lines) > SHOWN:
            found.append(f"{rule.__name__.strip('_')}: … and {len(lines) - SHOWN} more")
    return found


def counted(books: Books) -> Counter[str]:
    """Numbers of offenders so far, by rule; empty if all is well."""
    view = View(books)
    return +Counter({rule.__name__.strip("_"): sum(1 for _ in rule(view)) for rule in RULES})


def missing(books: Books) -> list[str]:
    """Messages that must still come, for a test that waits for all of them."""
    view = View(books)
    return [*_lost(view), *_not_seen_by_a_subscription(view)]


class View:
    """The books, sorted for looking up."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.messages = {message.label: message for message in list(books.messages)}
        self.publications = {one.label: one for one in list(books.publications)}
        # Until all has been read at the end, what the consumers got stands for what is in the topics.
        entries = books.entries or list(
            {(one.topic, one.entry_id): one for one in list(books.receipts)}.values()
        )
        self.entries = entries
        self.in_topic: defaultdict[str, list[int]] = defaultdict(list)
        for entry in entries:
            if entry.label is not None:
                self.in_topic[entry.label].append(entry.entry_id)
        self.arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)
        for arrival in list(books.arrivals):
            if arrival.label is not None:
                self.arrivals[arrival.label].append(arrival)
        # From here on a look-up must not add anything.
        self.in_topic.default_factory = self.arrivals.default_factory = None

    def delivered(self, message: Message) -> int:
        """How often a message arrived where it was sent."""
        if message.way == "topic":
            return len(self.in_topic.get(message.label, ()))
        return sum(arrival.accepted for arrival in self.arrivals.get(message.label, ()))

    def must_arrive(self, message: Message) -> bool:
        """Whether all that was answered says that it goes out."""
        return (
            message.answered
            and message.group is None
            and not message.cancelled
            and not message.cancel_unknown
            and message.is_due
        )

    def is_early(self, at_ms: int, floor_ms: int) -> bool:
        """Whether something came before the earliest instant that is allowed."""
        return at_ms < floor_ms and at_ms + self.books.wrong_by(at_ms) < floor_ms

    def killed_between(self, from_ms: int, to_ms: int) -> bool:
        """Whether a kill was under way at some instant of this time."""
        kills = self.books.kills
        before = bisect_left(kills, from_ms)
        under_way = before % 2 == 1
        return under_way or bisect_right(kills, to_ms) > before


def _lost(view: View) -> Iterator[str]:
    for message in view.messages.values():
        if view.must_arrive(message) and not view.delivered(message):
            yield f"{message.label} to a {message.way} was answered and did not arrive; {message.commands}"
    for one in view.publications.values():
        if one.entry_id is not None and one.label not in view.in_topic:
            yield f"{one.label} was published as entry {one.entry_id} and is not in its topic"


def _doubled(view: View) -> Iterator[str]:
    for label, ids in view.in_topic.items():
        if len(ids) > 1:
            yield f"{label} is in its topic {len(ids)} times, as entries {ids}"
    for label, arrivals in view.arrivals.items():
        accepted = [arrival.at_ms for arrival in arrivals if arrival.accepted]
        for first, again in pairwise(accepted):
            if not view.killed_between(first, again):
                yield f"{label} arrived at {first} and again at {again}, without a crash in between"


def _early(view: View) -> Iterator[str]:
    for entry in view.entries:
        message = view.messages.get(entry.label or "")
        if message is not None and view.is_early(entry.published_at_ms, message.lowest_due_ms):
            early_ms = message.lowest_due_ms - entry.published_at_ms
            yield f"{entry.label} was published {early_ms} ms early; {message.commands}"
    for receipt in view.books.receipts:
        message = view.messages.get(receipt.label or "")
        publication = view.publications.get(receipt.label or "")
        floor_ms = message.lowest_due_ms if message else 0
        if publication is not None and receipt.subscription not in IN_ORDER:
            floor_ms = publication.floor_ms
        if view.is_early(receipt.received_at_ms, floor_ms):
            yield (
                f"{receipt.label} was received {floor_ms - receipt.received_at_ms} ms early by {receipt.subscription}"
            )
    for label, arrivals in view.arrivals.items():
        message = view.messages.get(label)
        for arrival in arrivals:
            floor_ms = 0 if message is None else message.lowest_due_at(arrival.at_ms)
            if view.is_early(arrival.at_ms, floor_ms):
                yield f"{label} arrived {floor_ms - arrival.at_ms} ms early; {message}"


def _after_a_cancel(view: View) -> Iterator[str]:
    for message in view.messages.values():
        if not message.cancelled:
            continue
        answered_ms = max(command.answered_at_ms for command in message.commands if command.verb == "cancel")
        if message.way == "topic":
            if message.label in view.in_topic:
                yield f"{message.label} is in its topic; {message.commands}"
            continue
        for arrival in view.arrivals.get(message.label, ()):
            if arrival.at_ms > answered_ms:
                yield f"{message.label} arrived {arrival.at_ms - answered_ms} ms after its cancel was answered"
            elif arrival.accepted and not view.killed_between(arrival.at_ms, answered_ms):
                yield f"{message.label} had arrived before its cancel was answered as done"


def _batches(view: View) -> Iterator[str]:
    published = {entry.label: entry.published_at_ms for entry in view.entries}
    members: defaultdict[str, list[Message]] = defaultdict(list)
    for message in view.messages.values():
        if message.batch is not None and message.batch.cancelled_at_ms:
            members[message.batch.name].append(message)
    for name, messages in members.items():
        batch = messages[0].batch
        assert batch is not None
        sent = [published[one.label] for one in messages if one.label in published]
        if sent and max(sent) > batch.cancelled_at_ms:
            yield f"{name} was cancelled, and went on for {max(sent) - batch.cancelled_at_ms} ms after the answer"
        if len(sent) + batch.cancelled != len(messages):
            yield f"of {name} {len(sent)} of {len(messages)} went out, and {batch.cancelled} were said to be cancelled"


def _groups(view: View) -> Iterator[str]:
    groups: defaultdict[str, list[Message]] = defaultdict(list)
    for message in view.messages.values():
        if message.group is not None:
            groups[message.group].append(message)
    for name, members in groups.items():
        sent = [member.label for member in members if view.delivered(member)]
        if len(sent) > 1:
            yield f"of group {name} {sent} went out"
        certain = all(member.id is not None and not member.commands for member in members)
        if certain and not sent:
            yield f"of group {name} none went out"


def _ids(view: View) -> Iterator[str]:
    for label, arrivals in view.arrivals.items():
        ids = {arrival.id for arrival in arrivals}
        message = view.messages.get(label)
        if len(ids) > 1 or (message is not None and message.id is not None and ids != {message.id}):
            yield f"{label} arrived under the ids {ids}, its producer was told {message and message.id}"
    for one in view.publications.values():
        found = view.in_topic.get(one.label)
        if found and one.entry_id is not None and one.entry_id >= 0 and found != [one.entry_id]:
            yield f"{one.label} was published as entry {one.entry_id} and is {found}"


def _strangers(view: View) -> Iterator[str]:
    known = view.messages.keys() | view.publications.keys()
    for entry in (*view.entries, *view.books.receipts):
        if entry.label is None:
            yield f"entry {entry.entry_id} of {entry.topic} holds a payload that nobody sent"
        elif entry.label not in known:
            yield f"entry {entry.entry_id} of {entry.topic} is {entry.label}, which nobody sent"
    for arrival in view.books.arrivals:
        if arrival.label is None or arrival.label not in known:
            yield f"the receiver got {arrival.label}, which nobody sent"


def _entries(view: View) -> Iterator[str]:
    """An entry is the same for everybody, and after every restart."""
    seen: dict[tuple[str, int], str | None] = {}
    for entry in (*view.entries, *view.books.receipts):
        first = seen.setdefault((entry.topic, entry.entry_id), entry.label)
        if first != entry.label:
            yield f"entry {entry.entry_id} of {entry.topic} was {first} and then {entry.label}"


def _acknowledged_came_again(view: View) -> Iterator[str]:
    answered: dict[tuple[str, str, int], int] = {}
    bounds: defaultdict[tuple[str, str], int] = defaultdict(lambda: -1)
    for ack in view.books.acknowledged:
        where = (ack.topic, ack.subscription)
        for entry_id in (*ack.entry_ids, *range(bounds[where] + 1, ack.up_to + 1)):
            answered.setdefault((*where, entry_id), ack.answered_at_ms)
        bounds[where] = max(bounds[where], ack.up_to)
    for receipt in view.books.receipts:
        key = (receipt.topic, receipt.subscription, receipt.entry_id)
        at_ms = answered.get(key)
        if at_ms is not None and at_ms < receipt.asked_at_ms:
            yield f"entry {key} came again {receipt.asked_at_ms - at_ms} ms after its acknowledgement"


def _not_seen_by_a_subscription(view: View) -> Iterator[str]:
    seen: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for receipt in list(view.books.receipts):
        seen[receipt.topic, receipt.subscription].add(receipt.entry_id)
    for (topic, subscription), ids in seen.items():
        for entry in view.entries:
            if entry.topic == topic and entry.entry_id not in ids:
                yield f"entry {entry.entry_id} ({entry.label}) of {topic} never came to {subscription}"


def _states(view: View) -> Iterator[str]:
    """Check that the state of a message at the server is its outcome in the books."""
    for label, state in view.books.states.items():
        message = view.messages[label]
        delivered = view.delivered(message)
        expected = {"sent"} if delivered else set()
        if message.cancelled:
            expected = {"cancelled"}
        elif not delivered:
            if not message.is_due:
                expected.add("scheduled")
            if message.group is not None or message.cancel_unknown:
                expected.add("cancelled")
        if state not in expected:
            yield f"the server says that {label} is {state}; delivered {delivered} times; {message.commands}"


RULES: tuple[Callable[[View], Iterator[str]], ...] = (
    _lost,
    _doubled,
    _early,
    _after_a_cancel,
    _batches,
    _groups,
    _ids,
    _strangers,
    _entries,
    _acknowledged_came_again,
    _not_seen_by_a_subscription,
    _states,
)
