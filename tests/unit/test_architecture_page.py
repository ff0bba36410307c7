"""docs/architecture.md is true of the tree: it has each package, each room of the engine and each module in it, and no others."""

import re
from collections.abc import Iterator
from typing import Final

from tests.processes import ROOT

PACKAGE: Final = ROOT / "src" / "tarry"
ENGINE: Final = PACKAGE / "engine"
PAGE: Final = (ROOT / "docs/architecture.md").read_text("utf-8")
INSIDE: Final = PAGE[PAGE.index("### Inside the engine") : PAGE.index("## The life of a message")]


def modules() -> set[str]:
    """The modules of the engine, with their rooms."""
    paths = (path.relative_to(ENGINE).with_suffix("") for path in ENGINE.rglob("*.py"))
    return {str(path) for path in paths if path.name != "__init__"}


def told() -> Iterator[tuple[str, list[str]]]:
    """Each name in the tables, with what it may mean: a module of the rooms in the line above its table, or of the engine's top."""
    rooms: list[str] = []
    for line in INSIDE.splitlines():
        if line.startswith("`engine/"):
            rooms = re.findall(r"`engine/([a-z_]+)/`", line)
        if not line.startswith("| `"):
            continue
        room = re.match(r"\| `([a-z_]+)/` \|", line)
        names = re.findall(r"`([a-z_/]+)`", line if room else line.split("|")[1])
        for name in names[1:] if room else names:
            yield name, [name, *(f"{one}/{name}" for one in ([room[1]] if room else rooms))]


def test_every_package_has_a_row() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert not {name for name in packages if f"`{name}/`" not in PAGE and f"`{name}/" not in PAGE}


def test_every_module_of_the_engine_is_told_of_in_its_room() -> None:
    meant = {meaning for _, meanings in told() for meaning in meanings}
    assert not sorted(modules() - meant)


def test_no_module_is_told_of_that_is_not_there() -> None:
    elsewhere = {str(path.relative_to(PACKAGE).with_suffix("")) for path in PACKAGE.rglob("*.py")}
    known = modules() | elsewhere
    assert not [name for name, meanings in told() if not known & set(meanings)]
