"""Findings: the results of checks of `tarry doctor`."""

from typing import Literal, NamedTuple

Level = Literal["ok", "note", "bad"]


class Finding(NamedTuple):
    """The result of one check. `note` is worth knowing; `bad` keeps Tarry from working as it should."""

    about: str
    level: Level
    text: str
