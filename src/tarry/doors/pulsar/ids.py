"""Message ids as Pulsar's clients know them: a ledger, an entry, and the partition of a partitioned topic.

Each topic is one ledger, and so is each topic that later has its name: the ledger id follows from the topic's
incarnation. So the ids of two topics or partitions, or of a topic before and after it was deleted, are never equal.
Earlier versions gave out ledger 1 for every topic; such ids still mean the topic that they are used with.
"""

from typing import Final

from tarry.core.names import partition_number
from tarry.doors.pulsar.frames import NO_ID, Places, places_of
from tarry.engine.api import EntryLog

EARLIER_LEDGER: Final = 1
"""The ledger of every topic in ids that earlier versions gave out."""


def ledger_of(incarnation: int) -> int:
    """The ledger id of a topic of this incarnation."""
    return incarnation + EARLIER_LEDGER


def is_of(ledger: int, topic: EntryLog) -> bool:
    """Whether a ledger id is that of a topic."""
    return ledger in (EARLIER_LEDGER, ledger_of(topic.incarnation))


def entry_of(ledger: int, entry: int, topic: EntryLog) -> int:
    """The entry of a topic at which an id is: ids of an earlier topic are before all of its entries, of a later one behind."""
    if NO_ID in (ledger, entry) or min(ledger, entry) < 0:
        return 0
    if is_of(ledger, topic):
        return entry
    return topic.next if ledger > ledger_of(topic.incarnation) else 0


def places_in(topic: EntryLog) -> Places:
    """How the ids of a topic's entries are written in MESSAGE."""
    return places_of(ledger_of(topic.incarnation), partition_number(topic.name))


def text_of_id(topic: EntryLog, entry: int) -> str:
    """An id as Pulsar's administration writes it."""
    return f"{ledger_of(topic.incarnation)}:{entry}"
