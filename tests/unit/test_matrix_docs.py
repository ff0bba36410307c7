"""The pages of the Matrix door and every test on a real Synapse belong together: none is missing on either side."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "futures", "least"), [("matrix", False, 80), ("matrix-futures", True, 40)])
def test_the_tables_and_the_tests_are_the_same(page: str, futures: bool, least: int) -> None:
    text = (ROOT / "docs" / "doors" / f"{page}.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    folder = ROOT / "tests" / "conformance" / "matrix"
    # The older draft has a page of its own.
    files = [file for file in folder.glob("test_*.py") if file.name.startswith("test_futures") is futures]
    tests = {
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
    }
    assert len(tests) > least
    assert named - tests == set(), "named, but there is no such test"
    assert tests - named == set(), "a test that no table names"
