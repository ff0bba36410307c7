"""Tests look into the engine through `tarry.testing.insides` alone, so that its parts can move."""

import re
from pathlib import Path

from tarry.testing.insides import Insides, InsidesOf
from tests.unit.engine_kit import Bench

TESTS = Path(__file__).parent.parent
REACHES = re.compile(r"engine\.(_?parts|journal|dispatcher)\b(?! import)|\b(journal|dispatcher)\._")
DOUBLES = {"test_alarm.py", "test_traces.py"}
"""They have engines of their own, which look as the driver sees one."""


def test_no_test_reaches_through_the_engine() -> None:
    reaches = {
        f"{path.relative_to(TESTS)}:{at}: {line.strip()}"
        for path in TESTS.rglob("*.py")
        if path.name not in DOUBLES | {Path(__file__).name}
        for at, line in enumerate(path.read_text().splitlines(), 1)
        if REACHES.search(line) and not line.startswith(("from ", "import "))
    }
    assert not reaches


def test_every_look_sees_something() -> None:
    bench = Bench()
    looks = [name for name, of in vars(Insides).items() if isinstance(of, property) and name != "engine"]
    assert len(looks) > 20
    for name in looks:
        assert getattr(bench, name) is not None, name
        assert type(getattr(InsidesOf(bench.engine), name)) is type(getattr(bench, name)), name
