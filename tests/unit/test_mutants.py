"""The list of mutants fits the code: each can be made, and its tests are there. `make mutants` runs them."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import judged
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


def test_a_mutant_is_noticed_by_a_test_that_fails(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("limit = 3\nspare = 1\n")
    (tmp_path / "test_code.py").write_text(
        "from pathlib import Path\n\n\ndef test_a():\n"
        "    assert 'limit = 3' in Path(__file__).with_name('code.py').read_text()\n"
    )

    def judge(old: str, new: str, test: str = "test_code.py") -> tuple[str, str]:
        return judged(Mutant(file="code.py", harm="h", old=old, new=new, tests=[test]), tmp_path)

    assert judge("limit = 3", "limit = 4") == ("noticed", "test_code.py::test_a")
    assert judge("spare = 1", "spare = 2")[0] == "unnoticed"
    assert judge("limit = 3", "limit = 4", "test_gone.py")[0] == "broken"
    assert (tmp_path / "code.py").read_text() == "limit = 3\nspare = 1\n"
