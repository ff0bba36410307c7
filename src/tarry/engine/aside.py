"""The seqs of records that are set aside, at this start or earlier ones (`tarry.engine.setting_aside`)."""

from typing import Final

REASON: Final = "set aside at a start, because it could not be processed"
"""The reason of messages that end because their record was set aside."""


class Aside:
    """The seqs that are set aside."""

    def __init__(self) -> None:
        self.seqs: set[int] = set()
        self.known: frozenset[int] = frozenset()
        """Seqs that the registry remembered from earlier starts."""
        self.skipped: set[int] = set()
        """Seqs that were not replayed at this start."""

    def warnings(self) -> list[str]:
        """The seqs, in words."""
        if not self.seqs:
            return []
        return [f"records set aside at a start, by their seqs: {', '.join(map(str, sorted(self.seqs)))}"]
