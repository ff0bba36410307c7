"""Every test that docs/doors/dapr.md names for a sentence of the proposal exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "doors" / "dapr.md").read_text("utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`((?:brokers/)?test_\w+)(?:::(\w+))?`", TEXT)
    assert len(named) > 30
    for file, test in named:
        folder = "tests/conformance/dapr" if file.startswith("brokers/") else "tests/unit"
        path = ROOT / folder / f"{file}.py"
        assert path.is_file(), file
        assert not test or re.search(rf"^(async )?def {test}\(", path.read_text("utf-8"), re.MULTILINE), test
    for path_named in re.findall(r"`(tests/[\w/]+\.py)`", TEXT):
        assert (ROOT / path_named).is_file()
