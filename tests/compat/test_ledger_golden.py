"""Every format that was ever released is still read, byte for byte and field for field."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tarry.ledger.disk import RealDisk
from tarry.ledger.frame import FORMAT_VERSION
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Encoded, decode
from tests.compat.make_ledger_golden import GOLDEN, NAMES, SETTINGS, plain, write
from tests.unit.ledger_kit import LEDGER_ID, StandingClock, arrow_row, contents, record

FOLDERS = sorted(path.name for path in GOLDEN.glob("ledger-v*"))


def opened(folder: Path) -> Ledger:
    ledger = Ledger.open(RealDisk(), str(folder), SETTINGS, StandingClock(), new_ledger_id=LEDGER_ID)
    ledger.arrow_row = arrow_row
    return ledger


def frames(golden: Path) -> list[list[Encoded] | range]:
    expected = json.loads((golden / "expected.json").read_text())["frames"]
    return [
        range(unit[0], unit[-1] + 1)
        if isinstance(unit[0], int)
        else [Encoded._make([*of[:6], bytes.fromhex(of[6])]) for of in unit]
        for unit in expected
    ]


def test_there_is_one_for_each_version() -> None:
    assert [f"ledger-v{version}" for version in range(1, FORMAT_VERSION + 1)] == FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    ledger = opened(folder)
    assert ledger.ledger_id == LEDGER_ID
    assert ledger.notes == []
    expected = [
        of for unit in frames(folder) for of in (map(record, unit) if isinstance(unit, range) else unit)
    ]
    assert contents(ledger) == expected
    for seq, of in enumerate(expected, 1):
        assert ledger.read(seq) == (seq, of.kind, of.lane, of.fire_at_ms, of.body)
    ledger.close()


@pytest.mark.parametrize("name", FOLDERS)
def test_every_kind_of_record_still_decodes(name: str) -> None:
    golden = GOLDEN / name
    expected: list[dict[str, Any]] = json.loads((golden / "expected.json").read_text())["records"]
    bodies = [of.body for unit in frames(golden) if not isinstance(unit, range) for of in unit]
    for body, was in zip(bodies, expected, strict=False):
        of = decode(body)
        assert type(of).__name__ == was["kind"]
        fields = plain(of)
        assert {field: fields[field] for field in was["fields"]} == was["fields"]


def test_the_present_version_still_writes_the_same_bytes(tmp_path: Path) -> None:
    """A change of the layout must not happen unnoticed: it takes a new format version."""
    golden = GOLDEN / f"ledger-v{FORMAT_VERSION}"
    ledger = opened(tmp_path / "again")
    write(ledger, frames(golden))
    ledger.close()
    for name in NAMES:
        assert (tmp_path / "again" / name).read_bytes() == (golden / name).read_bytes(), name
