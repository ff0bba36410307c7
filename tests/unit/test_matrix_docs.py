"""docs/doors/matrix.md and every test on a real Synapse belong together: none is missing on either side."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_and_the_tests_are_the_same() -> None:
    text = (ROOT / "docs" / "doors" / "matrix.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    folder = ROOT / "tests" / "conformance" / "matrix"
    # The older draft has a page of its own.
    files = [file for file in folder.glob("test_*.py") if not file.name.startswith("test_futures")]
    tests = {
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
    }
    assert len(tests) > 80
    assert named - tests == set(), "named, but there is no such test"
    assert tests - named == set(), "a test that no table names"
