"""Every test that docs/guarantees.md names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:tests/[\w/]+\.py|test_\w+)(?:::\w+)?)`", TEXT)))


def test_there_are_many() -> None:
    assert len(NAMED) > 60


@pytest.mark.parametrize("named", NAMED)
def test_it_exists(named: str) -> None:
    file, _, test = named.partition("::")
    path = ROOT / (file if file.endswith(".py") else f"tests/unit/{file}.py")
    assert path.is_file()
    assert not test or re.search(rf"^(async )?def {test}\(", path.read_text("utf-8"), re.MULTILINE)
