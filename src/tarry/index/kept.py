"""How much of the history was let go, as it says itself, so that an audit can still count."""

from collections.abc import Sequence

from msgspec import Struct

from tarry.index.files import Folder
from tarry.index.table import IndexFile


class HistoryState(Struct, frozen=True):
    """The state as of one commit of the history."""

    forgotten: int = 0
    """Messages in rows that were let go because they were too old."""
    forgotten_batches: int = 0
    """How many of those rows were of whole batches: of these messages some may have had rows of their own, too."""
    kept_from_day: str = ""
    """The first day of which everything is there; empty for all."""

    def without(self, uri: str, files: Sequence[IndexFile], kept_from_day: str) -> "HistoryState":
        """The state after some files are let go."""
        if not files:
            return self
        folder = Folder(uri)
        messages = batches = 0
        for file in files:
            for rows in folder.read(file.path, ["messages", "batch", "door"]):
                for count, batch, door in zip(
                    *(rows.column(name).to_pylist() for name in rows.column_names), strict=True
                ):
                    messages += count
                    batches += batch is not None and door is None
        return HistoryState(
            self.forgotten + messages,
            self.forgotten_batches + batches,
            max(self.kept_from_day, kept_from_day),
        )
