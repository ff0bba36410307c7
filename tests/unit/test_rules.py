"""The rules R1 to R15: each cited number is defined in docs/rules.md, and each rule has code and tests that cite it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.processes import ROOT

RULES: Final = ROOT / "docs/rules.md"
CITED: Final = re.compile(r"(?<![\w'/@])R(\d{1,2})(?: ([a-z])(?=\)|:))?(?![\w/])")
"""A rule as prose cites it: `R2`, `(R12 d)`; not the repeat `R5/PT30M` of Dapr's jobs."""


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a page, or the comments and docstrings of a module, in which rules are cited."""
    is_python = path.suffix == ".py"
    inside = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        quotes = line.count('"""')
        if not is_python or inside or quotes or "#" in line:
            yield number, line.partition("#")[2] if is_python and not inside and not quotes else line
        if quotes % 2:
            inside = not inside


def citations(*folders: str) -> dict[str, list[str]]:
    """Each cited rule, with the places that cite it."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".py", ".md"} or path in {RULES, Path(__file__)}:
                continue
            for number, line in prose_of(path):
                for rule, part in CITED.findall(line):
                    found.setdefault(f"R{rule}{part and f' {part}'}", []).append(
                        f"{path.relative_to(ROOT)}:{number}"
                    )
    return found


def defined() -> set[str]:
    """The rules that the page defines, and the lettered parts of them."""
    rules: set[str] = set()
    rule = ""
    for line in RULES.read_text("utf-8").splitlines():
        if heading := re.match(r"## (R\d+): \w", line):
            rule = heading[1]
            rules.add(rule)
        elif line.startswith("## "):
            rule = ""
        elif rule and (part := re.match(r"- \*\*([a-z])\*\*: ", line)):
            rules.add(f"{rule} {part[1]}")
    return rules


def test_every_cited_rule_is_defined() -> None:
    unknown = {
        rule: places for rule, places in citations("src", "tests", "docs").items() if rule not in defined()
    }
    assert not unknown, f"cited, and not in docs/rules.md: {unknown}"


def test_there_are_fifteen_rules() -> None:
    assert {rule for rule in defined() if " " not in rule} == {f"R{number}" for number in range(1, 16)}


def test_every_rule_is_cited_by_code_and_by_a_test() -> None:
    code, tests = citations("src"), citations("tests")
    for number in range(1, 16):
        assert code.get(f"R{number}"), f"no code says that it obeys R{number}"
        assert tests.get(f"R{number}"), f"no test says that it fails without R{number}"
