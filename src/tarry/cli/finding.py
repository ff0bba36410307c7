"""What a check of `tarry doctor` says."""

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "bad"]


class Finding(NamedTuple):
    """What a check found. `note` is worth knowing; `bad` keeps Tarry from working as it should."""

    about: str
    level: Level
    text: str
