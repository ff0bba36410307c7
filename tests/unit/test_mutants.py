"""The list of mutants fits the code: each can be made, and its tests are there. `make mutants` runs them."""

import ast
from collections import Counter

import pytest

from tests.mutants.mutant import LISTS, Mutant, mutants
from tests.processes import ROOT

ALL = mutants()
PARTS = {path.stem for path in LISTS.glob("*.toml")}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_mutant_can_be_made(part: str) -> None:
    for mutant in mutants(part):
        changed = mutant.in_tree()
        assert changed != (ROOT / mutant.file).read_text("utf-8"), mutant.name
        if mutant.file.endswith(".py"):
            ast.parse(changed)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_mutant_has_tests_or_is_equivalent(part: str) -> None:
    for mutant in mutants(part):
        assert bool(mutant.tests) != bool(mutant.equivalent), mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), f"{mutant.name}: there is no {path}"
            assert not name or name.partition("[")[0] in (ROOT / path).read_text("utf-8"), mutant.name


def test_there_are_many_over_all_parts() -> None:
    by_folder = Counter(mutant.file.split("/")[2] for mutant in ALL)
    assert len(ALL) >= 150
    assert set(by_folder) >= {
        "core",
        "ledger",
        "registry",
        "index",
        "engine",
        "outlets",
        "doors",
        "serve",
        "pipeline",
    }


def test_the_old_text_has_to_stand_in_the_file_once() -> None:
    mutant = Mutant(file="README.md", harm="h", old="a", new="b", tests=["t"])
    for text in ("", "aa"):
        with pytest.raises(ValueError, match="times"):
            mutant.applied(text)
    assert mutant.applied("xay") == "xby"
