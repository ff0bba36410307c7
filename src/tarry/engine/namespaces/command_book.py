"""The bulk commands that there were, as the records say. An entry of the catalogue's records each."""

from typing import Final

import msgspec

from tarry.core.bulk_command import FINISHED, BulkCommand
from tarry.ledger.record import Catalogued
from tarry.registry.registry import Registry

BULK_COMMAND: Final = "bulk_command"
"""The sort of catalogue records that are about bulk commands."""

_decoder = msgspec.json.Decoder(BulkCommand)


class CommandBook:
    """All bulk commands by their numbers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.by_number: dict[int, BulkCommand] = {}

    def decide(self, record: Catalogued) -> None:
        """Take a record into the state, when it is enqueued or replayed."""
        if record.value is None:
            self._registry.catalogue.remove(record.sort, record.name)
        else:
            self._registry.catalogue.put((record.sort, record.name), record.value)
        self._take(record.name, record.value)

    def load(self, registry: Registry) -> None:
        """Take everything back from the registry."""
        for (sort, name), value in registry.catalogue.rows():
            if sort == BULK_COMMAND:
                self._take(name, value)

    def _take(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.by_number.pop(int(name), None)
        else:
            self.by_number[int(name)] = _decoder.decode(value)

    def unfinished(self) -> list[BulkCommand]:
        """Those that are not over, the oldest first."""
        found = [one for one in self.by_number.values() if one.phase not in FINISHED]
        return sorted(found, key=lambda one: one.number)


def entered(command: BulkCommand) -> Catalogued:
    """The record of how far a bulk command has come."""
    return Catalogued(BULK_COMMAND, str(command.number), msgspec.json.encode(command))


def forgotten(number: int) -> Catalogued:
    """The record by which a bulk command is forgotten."""
    return Catalogued(BULK_COMMAND, str(number), None)
