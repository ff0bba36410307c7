"""Messages and delayed entries that were read together, as columns.

When ten thousand messages are due at one instant, what was read together ahead of it stays together, as far as it can,
until it is shown to a consumer: whoever passes it on does not look at each.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tarry.core.errors import Damage
from tarry.engine.due.dispatch_class import DispatchClass
from tarry.ledger.read_record import ReadEntry, ReadPut

Read = ReadPut | ReadEntry | Damage | None
"""A version or a delayed entry; `Damage` or None for one that cannot be read, or is not there."""


class DecodedBatch:
    """Messages and delayed entries that were read together, as columns of one length: each with its body, and a version with its dispatch class."""

    __slots__ = (
        "__weakref__",
        "alike",
        "bodies",
        "kinds",
        "prepared_bytes",
        "read",
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
        self.source: tuple[DecodedBatch, Sequence[int]] | None = None
        """The whole batch that these rows were cut from, and their positions there: a door may have prepared the whole."""

    def __len__(self) -> int:
        return len(self.read)

    def add(self, read: Read, body: bytes, alike: DispatchClass | None) -> None:
        """Take one more, of which nothing is prepared."""
        self.read.append(read)
        self.bodies.append(body)
        self.alike.append(alike)
        self.kinds[alike] += 1
        self.size_bytes += len(body)

    def at(self, places: Sequence[int]) -> "DecodedBatch":
        """A new batch of the rows at these positions."""
        some = DecodedBatch()
        some.read = [self.read[at] for at in places]
        some.bodies = [self.bodies[at] for at in places]
        some.alike = [self.alike[at] for at in places]
        some.kinds.update(some.alike)
        some.size_bytes = sum(map(len, some.bodies))
        whole, rows = self.source or (self, range(len(self)))
        some.prepared_bytes = self.prepared_bytes * len(places) // max(1, len(self))
        some.source = whole, [rows[at] for at in places]
        return some


Prepare = Callable[[DecodedBatch], int]
"""Has a door write down what it will show of the entries that a batch becomes, in a cache of its own; gives the bytes of that, which
are held as long as the batch lives."""


def joined(parts: Iterable[DecodedBatch]) -> DecodedBatch:
    """All of them, to be looked at one by one."""
    whole = DecodedBatch()
    for part in parts:
        whole.read += part.read
        whole.bodies += part.bodies
        whole.alike += part.alike
        whole.kinds.update(part.kinds)
        whole.size_bytes += part.size_bytes
    return whole
