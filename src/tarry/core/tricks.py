"""Tricks for speed, each behind one method, which asks here whether it is on.

They are always on for users. A benchmark (`bench/tricks.py`) and tests switch them off one at a time, to measure what each
earns and to see that nothing but speed depends on it; ADR 0023 has the numbers.
"""

from typing import Final

from msgspec import Struct


class Tricks(Struct):
    """Switches for the tricks, all on by default."""

    read_ahead: bool = True
    """Reading and decoding bodies before their fire instant (`engine.bodies.readahead.Readahead.turn`)."""
    prepared: bool = True
    """Writing ahead what a door will show of entries (`engine.bodies.readahead.Readahead._prepare`)."""
    recent_entries: bool = True
    """Keeping the entries of a burst in memory, as columns (`engine.topics.recent_entries.RecentEntries.add_batch`)."""
    known_heads: bool = True
    """Remembering the fields of requests' heads (`http.head.Heads.read`)."""
    one_topic: bool = True
    """Passing whole batches on whose messages are all for one topic (`engine.dispatch.decisions.Decisions._one_topic`)."""
    lazy_ids: bool = True
    """Entering the ids of leases only when somebody asks for one (`core.sets.lazy_id_map.LazyIdMap.add`)."""


TRICKS: Final = Tricks()
"""The switches of this process."""
