"""Findings: the results of checks of `tarry doctor`."""

from typing import Literal, NamedTuple

CheckLevel = Literal["ok", "note", "bad"]


class CheckResult(NamedTuple):
    """The result of one check. `note` is worth knowing; `bad` keeps Tarry from working as it should."""

    about: str
    level: CheckLevel
    text: str
