"""docs/data-model.md: every type that it names is there, and none that a message meets is missing.

The four types between the timer queue and a consumer say the same of themselves where they stand.
"""

import ast
import importlib
import re
from typing import Final

import pytest

from tarry.engine.dispatch.burst import Burst
from tarry.engine.due.due_batch import DueBatch
from tarry.engine.topics.entries import Received
from tarry.engine.topics.entry_batch import EntryBatch
from tests.processes import ROOT

PAGE: Final = (ROOT / "docs/data-model.md").read_text("utf-8")
ROOMS: Final = (
    "admission/columns.py",
    "due/",
    "dispatch/burst.py",
    "flights/flight.py",
    "topics/entry_batch.py",
)
"""Where the types stand that a message meets on its way, below `engine/`."""


def test_every_type_that_it_names_is_there() -> None:
    named = re.findall(r"`((?:core|engine|index|ledger|registry)\.[a-z_.]+)\.([A-Z]\w+)`", PAGE)
    assert len(named) > 30
    for module, name in named:
        found = getattr(importlib.import_module(f"tarry.{module}"), name, None)
        assert found is not None, f"{module}.{name}"
        assert found.__module__ == f"tarry.{module}", f"{name} is in {found.__module__}, not in {module}"


@pytest.mark.parametrize("kind", [DueBatch, Burst, EntryBatch, Received])
def test_each_type_on_the_way_out_says_who_makes_and_reads_it_and_when_it_dies(kind: type) -> None:
    said = " ".join((kind.__doc__ or "").split())
    assert re.search(r"\. Made (by|out of) .+?\. Read by .+?\. Dies (when|with) .+\.$", said), said


def test_every_type_on_the_way_is_named() -> None:
    engine = ROOT / "src/tarry/engine"
    files = [
        file
        for room in ROOMS
        for file in ([engine / room] if room.endswith(".py") else (engine / room).glob("*.py"))
    ]
    assert files
    missing = [
        f"{file.name}: {node.name}"
        for file in files
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and not re.search(rf"\b{node.name}\b", PAGE)
    ]
    assert not missing, f"docs/data-model.md does not say who makes them and when they die: {missing}"
