"""Due messages and delayed entries that were read together, as columns.

When ten thousand messages are due at one instant, those that were read together ahead of it stay together, as far as they can,
until they are shown to a consumer: whoever passes a batch on does not look at each of its rows. On the way it is read (`bodies` and
`readahead`), gets the keys with which its rows are due (dispatch), and is fired into a topic (a burst), where its rows are entries.

Of ten thousand messages that are due at one instant most are alike in all that deciding about them needs, their dispatch class. So
that is looked at when a message is read, for the most part ahead of its due instant; then it is decided once, and counted.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.core.names import TOPIC_SCHEME
from tarry.ledger.read_record import PutHead, ReadEntry, ReadPut
from tarry.ledger.record import Key


class DispatchClass:
    """Messages that differ in nothing that matters when they are sent. Each object is equal to itself alone."""

    __slots__ = ("destination", "door", "known", "late_from_ms", "namespace", "owner", "plain")

    def __init__(self, head: PutHead, late_from_ms: int | None, plain: bool, known: bool) -> None:
        self.destination = head.destination
        self.namespace = head.namespace
        self.owner = head.owner
        self.door = head.door
        self.late_from_ms = late_from_ms
        """Since when they are late, if they ever are."""
        self.plain = plain
        """Whether they are for a topic and there is nothing to decide about each: no time to live, no group."""
        self.known = known
        """Whether the registry has rows of them."""

    def late_ms(self, now_ms: int) -> int:
        """How late they are at an instant. What has no due instant never is."""
        return 0 if self.late_from_ms is None else now_ms - self.late_from_ms


def dispatch_classes(heads: Sequence[PutHead]) -> list[DispatchClass]:
    """The dispatch class of each message; one object for all that are alike."""
    found: dict[tuple[object, ...], DispatchClass] = {}
    column: list[DispatchClass] = []
    for head in heads:
        due_at_ms, accepted_at_ms = head.due_at_ms, head.accepted_at_ms
        late_from_ms = due_at_ms if due_at_ms is None or due_at_ms > accepted_at_ms else accepted_at_ms
        loose = head.ttl_ms is None and head.group is None
        known = head.listed or head.origin is not None
        key = (head.destination, head.namespace, head.owner, head.door, late_from_ms, loose, known)
        alike = found.get(key)
        if alike is None:
            plain = loose and head.destination.startswith(TOPIC_SCHEME)
            alike = found[key] = DispatchClass(head, late_from_ms, plain, known)
        column.append(alike)
    return column


Read = ReadPut | ReadEntry | Damage | None
"""A version or a delayed entry; `Damage` or None for one that cannot be read, or is not there."""


class DueBatch:
    """Messages and delayed entries that were read together, as columns of one length: each with its body, and a version with its dispatch class.

    Made by `Readahead`, before its rows are due or then, and by a `Burst` for messages that are added one by one. Read by
    dispatch, by the burst that fires it, and by doors that write columns. Dies when its rows are decided about; one that was fired
    with the last `EntryBatch` that has its rows.
    """

    __slots__ = (
        "__weakref__",
        "alike",
        "bodies",
        "fired_at_ms",
        "fires",
        "first_entry_id",
        "kinds",
        "prepared_bytes",
        "read",
        "seqs",
        "size_bytes",
        "source",
    )

    def __init__(self) -> None:
        self.read: list[Read] = []
        self.bodies: list[bytes] = []
        self.alike: list[DispatchClass | None] = []
        self.kinds: Counter[DispatchClass | None] = Counter()
        """How many of them are alike."""
        self.size_bytes = 0
        """Bytes of the bodies."""
        self.prepared_bytes = 0
        """Bytes of what doors have prepared of it, about."""
        self.source: tuple[DueBatch, Sequence[int]] | None = None
        """The whole batch that these rows were cut from, and their positions there: a door may have prepared the whole."""
        self.fires = array("q")
        """Fire instants of the keys; none before dispatch has taken the batch, which knows the keys of versions that were put off."""
        self.seqs = array("q")
        """Seqs of the keys, likewise."""
        self.first_entry_id = 0
        """The id of the entry that the first row is, once the batch was fired into a topic. The others follow."""
        self.fired_at_ms = 0

    def __len__(self) -> int:
        return len(self.read)

    def add(self, read: Read, body: bytes, alike: DispatchClass | None, key: Key) -> None:
        """Take one more, of which nothing is prepared."""
        self.read.append(read)
        self.bodies.append(body)
        self.alike.append(alike)
        self.kinds[alike] += 1
        self.size_bytes += len(body)
        self.fires.append(key[0])
        self.seqs.append(key[1])

    def set_keys(self, fires: NDArray[np.int64], seqs: NDArray[np.int64]) -> None:
        """Take the keys of all rows."""
        self.fires, self.seqs = array("q", fires.tobytes()), array("q", seqs.tobytes())

    def fire(self, first_entry_id: int, at_ms: int) -> None:
        """The rows are entries of a topic from now on, numbered from one on."""
        self.first_entry_id, self.fired_at_ms = first_entry_id, at_ms

    def entry_ids(self, rows: slice) -> range:
        """The ids of the entries that some rows are."""
        return range(self.first_entry_id + rows.start, self.first_entry_id + rows.stop)

    def at(self, places: Sequence[int]) -> "DueBatch":
        """A new batch of the rows at these positions."""
        some = DueBatch()
        some.read = [self.read[at] for at in places]
        some.bodies = [self.bodies[at] for at in places]
        some.alike = [self.alike[at] for at in places]
        some.kinds.update(some.alike)
        some.size_bytes = sum(map(len, some.bodies))
        if self.seqs:
            some.fires = array("q", [self.fires[at] for at in places])
            some.seqs = array("q", [self.seqs[at] for at in places])
        whole, rows = self.source or (self, range(len(self)))
        some.prepared_bytes = self.prepared_bytes * len(places) // max(1, len(self))
        some.source = whole, [rows[at] for at in places]
        return some


Prepare = Callable[[DueBatch], int]
"""Has a door write down what it will show of the entries that a batch becomes, in a cache of its own; gives the bytes of that, which
are held as long as the batch lives."""


def joined(parts: Iterable[DueBatch]) -> DueBatch:
    """All rows of some batches, to be looked at one by one."""
    whole = DueBatch()
    for part in parts:
        whole.read += part.read
        whole.bodies += part.bodies
        whole.alike += part.alike
        whole.kinds.update(part.kinds)
        whole.size_bytes += part.size_bytes
        whole.fires += part.fires
        whole.seqs += part.seqs
    return whole
