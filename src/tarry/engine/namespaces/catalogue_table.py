"""Records of the catalogue, by their sorts: each goes into the registry's table and to the state that its sort belongs to.

The one place that writes that table and reads it back: a new sort is a state with `sorts` and `take`, and nothing else. A
sort that only a newer version knows stays in the table for that version.
"""

from collections.abc import Sequence
from typing import Protocol

from tarry.ledger.record import Catalogued
from tarry.registry.registry import Registry


class SortedRecords(Protocol):
    """The state that records of some sorts add up to."""

    @property
    def sorts(self) -> Sequence[str]:
        """The sorts of these records."""

    def take(self, sort: str, name: str, value: bytes | None) -> None:
        """Take what a record says of a name; None if it says that the name is gone."""


class CatalogueTable:
    """All records of the catalogue."""

    def __init__(self, registry: Registry, *states: SortedRecords) -> None:
        self._registry = registry
        self._states = {sort: state for state in states for sort in state.sorts}

    def decide(self, record: Catalogued) -> None:
        """Take a record into the state, when it is enqueued or replayed."""
        if record.value is None:
            self._registry.catalogue.remove(record.sort, record.name)
        else:
            self._registry.catalogue.put((record.sort, record.name), record.value)
        self._take(record.sort, record.name, record.value)

    def load(self) -> None:
        """Take everything back from the registry; of two sorts of one name the first by the alphabet comes first."""
        for (sort, name), value in sorted(self._registry.catalogue.rows(), key=lambda row: row[0]):
            self._take(sort, name, value)

    def _take(self, sort: str, name: str, value: bytes | None) -> None:
        state = self._states.get(sort)
        if state is not None:
            state.take(sort, name, value)
