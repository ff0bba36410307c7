"""The list of mutants, as it stands in the files."""

import tomllib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tests.processes import ROOT

LISTS: Final = Path(__file__).with_name("lists")


class Mutant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change."""

    file: str
    """Relative to the root of the project."""
    harm: str
    """The harm that a user would meet."""
    old: str
    new: str
    tests: list[str] = []
    """Arguments for pytest: the closest tests."""
    equivalent: str = ""
    """Why nobody could notice, if nobody could."""

    @property
    def name(self) -> str:
        """A short name for reports."""
        return f"{self.file.removeprefix('src/tarry/')}: {self.harm}"

    def applied(self, text: str) -> str:
        """A file's text with the change in it; raises `ValueError` unless the old text stands there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: the old text stands in the file {text.count(self.old)} times")
        return text.replace(self.old, self.new)

    def in_tree(self, root: Path = ROOT) -> str:
        """The file of a tree with the change in it."""
        return self.applied((root / self.file).read_text("utf-8"))


class _List(Struct, forbid_unknown_fields=True):
    mutant: list[Mutant]


def mutants(part: str = "*") -> list[Mutant]:
    """All mutants of a part; of every part by default."""
    found: list[Mutant] = []
    for path in sorted(LISTS.glob(f"{part}.toml")):
        found += msgspec.convert(tomllib.loads(path.read_text("utf-8")), _List).mutant
    return found
