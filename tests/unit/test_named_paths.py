"""Files and modules that pages and docstrings name are there: a room that moves takes its mentions along."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.processes import ROOT

SOURCES: Final = ROOT / "src/tarry"
PAGES: Final = sorted(
    page
    for folder in (".", "docs", "bench", "deploy", "clients", "tests")
    for page in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
    if not {"node_modules", ".cache"} & set(page.parts)
)
MODULES: Final = sorted(SOURCES.rglob("*.py"))
BLOCK: Final = re.compile(r"```.*?```", re.DOTALL)
PATH: Final = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)/?(?:::[^`]+)?`")
DOTTED: Final = re.compile(r"`(tarry\.[a-z_]+(?:\.\w+)*)")
PLACEHOLDER: Final = re.compile(r"(?:^|/)(?:[A-Z]+|x)(?:\.\w+)?(?:/|$)")
"""A path in which the reader puts a name of their own."""
WITHIN: Final = (ROOT, ROOT / "src", SOURCES, SOURCES / "engine")
"""Where a path may begin. Tables of `docs/architecture.md` name rooms of the engine by themselves."""
ELSEWHERE: Final = {
    "registry/registry.sqlite": "in a data folder",
    "pipeline/spark.log": "in a data folder",
    "tests/integration": "in Dapr's repository",
    "tests/msc4140": "in Complement's repository",
    "bench/.cache": "made by a run",
}


@cache
def beginnings() -> frozenset[str]:
    """Names with which a path of this repository begins."""
    return frozenset(
        entry.name for within in WITHIN for entry in within.iterdir() if not entry.name.startswith((".", "_"))
    )


def paths_in(text: str) -> Iterator[str]:
    for path in PATH.findall(BLOCK.sub("", text)):
        if path.partition("/")[0] in beginnings() and not PLACEHOLDER.search(path):
            yield path


def modules_in(text: str) -> Iterator[str]:
    """Dotted names that begin with a part of the package; others are of metrics, files and attributes of spans."""
    for name in DOTTED.findall(BLOCK.sub("", text)):
        if (SOURCES / name.split(".")[1]).is_dir() and not name.endswith(".X"):
            yield name


def is_there(path: str, beside: Path) -> bool:
    return path in ELSEWHERE or any(
        (within / path).exists() or (within / f"{path}.py").exists() for within in (*WITHIN, beside.parent)
    )


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or something that one has."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, name, None)
        return True
    return False


def test_named_files_are_there() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in (*PAGES, *MODULES)
        for path in paths_in(page.read_text("utf-8"))
        if not is_there(path, page)
    ]
    assert not missing, f"these files are named and are not there: {missing}"


def test_named_modules_are_there() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in (*PAGES, *MODULES)
        for name in modules_in(page.read_text("utf-8"))
        if not resolves(name)
    ]
    assert not missing, f"these are named and are not there: {missing}"


def test_a_missing_file_is_seen() -> None:
    assert list(paths_in("`core/nowhere`, `docs/x.md`, `application/json`, ```\n`core/there`\n```")) == [
        "core/nowhere"
    ]
    assert not is_there("core/nowhere", ROOT / "README.md")
    assert is_there("flights/verdicts", ROOT / "README.md")
    assert resolves("tarry.core.tricks.TRICKS")
    assert not resolves("tarry.core.nothing")
