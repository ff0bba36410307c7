"""The bulk commands that there were, as the records say. An entry of the catalogue's records each."""

from typing import Final

import msgspec

from tarry.core.messages.bulk_command import FINISHED, BulkCommand
from tarry.ledger.record import Catalogued

BULK_COMMAND: Final = "bulk_command"
"""The sort of catalogue records that are about bulk commands."""

_decoder = msgspec.json.Decoder(BulkCommand)


class CommandBook:
    """All bulk commands by their numbers."""

    sorts = (BULK_COMMAND,)

    def __init__(self) -> None:
        self.by_number: dict[int, BulkCommand] = {}

    def take(self, sort: str, name: str, value: bytes | None) -> None:
        """Take how far a command has come; None forgets it."""
        if value is None:
            self.by_number.pop(int(name), None)
        else:
            self.by_number[int(name)] = _decoder.decode(value)

    def unfinished(self) -> list[BulkCommand]:
        """Commands that are not over, the oldest first."""
        found = [one for one in self.by_number.values() if one.phase not in FINISHED]
        return sorted(found, key=lambda one: one.number)


def entered(command: BulkCommand) -> Catalogued:
    """The record of how far a bulk command has come."""
    return Catalogued(BULK_COMMAND, str(command.number), msgspec.json.encode(command))


def forgotten(number: int) -> Catalogued:
    """The record by which a bulk command is forgotten."""
    return Catalogued(BULK_COMMAND, str(number), None)
