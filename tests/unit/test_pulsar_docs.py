"""Every test that docs/doors/pulsar.md names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "doors" / "pulsar.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+(?:::\w+)?)`", TEXT)))
FOLDERS = ("tests/conformance/pulsar", "tests/unit", "tests/property")
FILES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", TEXT)))


def test_there_are_many() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("named", NAMED)
def test_it_exists(named: str) -> None:
    file, _, test = named.partition("::")
    (path,) = (found for folder in FOLDERS if (found := ROOT / folder / f"{file}.py").is_file())
    assert not test or re.search(rf"^(async )?def {test}\(", path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_named_by_its_path_exists(path: str) -> None:
    assert (ROOT / path).is_file()
