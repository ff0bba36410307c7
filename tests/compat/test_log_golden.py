"""Records of the replicated log that were ever released are still read, and the present version still writes them so."""

import json
from pathlib import Path

import pytest

from tarry.ledger.log.envelope import LOG_VERSION
from tests.compat.make_log_golden import GOLDEN, folded, records

VERSIONS = sorted(GOLDEN.glob("log-v*/records.json"))


def test_there_is_one_for_each_version() -> None:
    assert [path.parent.name for path in VERSIONS] == [f"log-v{n}" for n in range(1, LOG_VERSION + 1)]


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: str(path.parent.name))
def test_they_are_read_as_they_were_written(path: Path) -> None:
    golden = json.loads(path.read_text())
    assert folded([bytes.fromhex(one) for one in golden["records"]]) == golden["folded"]


def test_the_present_version_still_writes_the_same_bytes() -> None:
    golden = json.loads(VERSIONS[-1].read_text())
    assert [one.hex() for one in records()] == golden["records"]
