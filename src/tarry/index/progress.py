"""How far the pipeline is, as a small file: the program writes it, the server's metrics and `tarry doctor` read it.

It is for people and alarms. Nothing is decided by it: what is indexed is what the tables say.
"""

import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

NAME: Final = "progress.json"
FRESH_MS: Final = 20_000
"""A program that runs has written within this."""


class Progress(Struct, frozen=True, kw_only=True):
    """The pipeline program's last report."""

    state: Literal["starting", "running", "stopped", "failed"] = "starting"
    at_ms: int = 0
    """When it said so."""
    pid: int = 0
    started_at_ms: int = 0
    durable_seq: int = 0
    """The ledger's durable head, as it was seen last."""
    cursor: int = 0
    """The seq up to which the index is complete."""
    behind_ms: int = 0
    """For how long the head has been past the cursor."""
    commits: int = 0
    """Batches committed, over all lives."""
    last_commit_at_ms: int = 0
    last_commit: dict[str, Any] = {}
    failures: int = 0
    """Lives that ended with an error."""
    failure: str | None = None
    """The error that ended the last of them."""
    failed_at_ms: int = 0

    @property
    def lag(self) -> int:
        """Records that are durable and not indexed."""
        return max(0, self.durable_seq - self.cursor)

    def is_up(self, now_ms: int) -> bool:
        """Whether it runs, by its own account."""
        return self.state in ("starting", "running") and now_ms - self.at_ms < FRESH_MS


def write_progress(folder: str | Path, progress: Progress) -> None:
    """Put it in the place of the one before, so that a reader sees one or the other."""
    path = Path(folder) / NAME
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(progress)) + b"\n")
    os.replace(draft, path)


def read_progress(folder: str | Path) -> Progress | None:
    """The report in a folder; None if there is none that can be read."""
    try:
        return msgspec.json.decode((Path(folder) / NAME).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
