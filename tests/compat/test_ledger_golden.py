"""Every format that was ever released is still read, byte for byte and field for field."""

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Struct

from tarry.ledger.disk import RealDisk
from tarry.ledger.frame import FORMAT_VERSION
from tarry.ledger.ledger import Ledger
from tarry.ledger.read_record import decode_head, read_entry
from tarry.ledger.record import NO_PUT, Encoded, Entry, Record, decode, decode_put
from tests.compat.make_ledger_golden import GOLDEN, NAMES, SETTINGS, plain, write
from tests.unit.ledger_kit import LEDGER_ID, StandingClock, contents

SORTS = {
    *("Put", "Finalise", "published", "fired", "delayed", "Claim", "Ack"),
    *("Subscribe", "Unsubscribe", "Seek", "PolicySet", "Mark", "Topic", "Adopt", "CancelBatch", "Catalogued"),
}
"""Kinds of records that have a golden file; the three in small letters are entries."""
LATER = sorted(GOLDEN.glob("records-v*/*.json"))
"""Records of kinds that were added to a format version after its golden ledger was made: one file for each."""
FOLDERS = sorted(path.name for path in GOLDEN.glob("ledger-v*"))


def opened(folder: Path) -> Ledger:
    return Ledger.open(RealDisk(), str(folder), SETTINGS, StandingClock(), new_ledger_id=LEDGER_ID)


def frames(golden: Path) -> list[list[Encoded]]:
    expected = json.loads((golden / "expected.json").read_text())["frames"]
    return [[Encoded._make([*of[:6], bytes.fromhex(of[6])]) for of in unit] for unit in expected]


def decoded(golden: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The bodies of the golden ledger that are real records, each with what it was when it was written."""
    expected: list[dict[str, Any]] = json.loads((golden / "expected.json").read_text())["records"]
    bodies = [of.body for unit in frames(golden) for of in unit]
    return list(zip(bodies[: len(expected)], expected, strict=True))


def assert_same(of: Struct, was: dict[str, Any]) -> None:
    """Every field that was written then has its name and its value still; later fields do not matter."""
    assert written_then(plain(of), was) == was


def written_then(now: Any, was: Any) -> Any:
    """A record as read now, without the fields that came later."""
    if isinstance(was, dict) and isinstance(now, dict):
        return {field: written_then(now.get(field, "not there"), was[field]) for field in was}
    if isinstance(was, list) and isinstance(now, list) and len(now) == len(was):
        return [written_then(*pair) for pair in zip(now, was, strict=True)]
    return now


NEWER_NAMES = {"Topic": "TopicSet"}
"""The name that a kind's struct has now, where a golden file has an earlier one."""


def kind_in(was: dict[str, Any]) -> str:
    return NEWER_NAMES.get(was["kind"], str(was["kind"]))


def assert_part(of: Struct, was: dict[str, Any]) -> None:
    """All that is read has the value that was written under that name; what came later has its default."""
    now = plain(of)
    later = {field.name: plain(field.default) for field in msgspec.structs.fields(of)}
    assert now == {field: was.get(field, later[field]) for field in now}


def test_there_is_one_for_each_version() -> None:
    assert [f"ledger-v{version}" for version in range(1, FORMAT_VERSION + 1)] == FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    ledger = opened(folder)
    assert ledger.ledger_id == LEDGER_ID
    assert ledger.notes == []
    expected = [of for unit in frames(folder) for of in unit]
    assert contents(ledger) == expected
    for seq, of in enumerate(expected, 1):
        assert ledger.read(seq) == (seq, of.kind, of.lane, of.fire_at_ms, of.body)
    ledger.close()


@pytest.mark.parametrize("name", FOLDERS)
def test_every_kind_of_record_still_decodes(name: str) -> None:
    seen = set()
    for body, was in decoded(GOLDEN / name):
        of = decode(body)
        assert type(of).__name__ == kind_in(was)
        assert_same(of, was["fields"])
        sort = was["kind"]
        if isinstance(of, Entry):
            assert (of.put != NO_PUT) == ("fired" in was)
            sort = "fired" if "fired" in was else "delayed" if of.fire_at_ms else "published"
            if "fired" in was:
                assert_same(decode_put(of.put), was["fired"])
        seen.add(sort)
    assert seen >= SORTS


@pytest.mark.parametrize("path", LATER, ids=lambda path: str(path.stem))
def test_kinds_of_records_that_came_after_the_golden_ledger_still_decode(path: Path) -> None:
    was = json.loads(path.read_text())
    of = decode(bytes.fromhex(was["body"]))
    assert type(of).__name__ == kind_in(was)
    assert_same(of, was["fields"])


def test_every_kind_of_record_has_a_golden_one() -> None:
    golden = {kind_in(was) for name in FOLDERS for _, was in decoded(GOLDEN / name)}
    golden |= {kind_in(json.loads(path.read_text())) for path in LATER}
    assert {kind.__name__ for kind in get_args(Record)} == golden


@pytest.mark.parametrize("name", FOLDERS)
def test_what_reads_only_a_part_of_a_record_reads_the_same(name: str) -> None:
    for body, was in decoded(GOLDEN / name):
        if was["kind"] == "Put":
            assert_part(decode_head(body), was["fields"])
        elif was["kind"] == "Entry":
            of = read_entry(body)
            assert_part(msgspec.structs.replace(of, put=None), {**was["fields"], "put": None})
            assert (of.put is not None) == ("fired" in was)
            if of.put is not None:
                assert_part(of.put, was["fired"])


def test_the_present_version_still_writes_the_same_bytes(tmp_path: Path) -> None:
    """A change of the layout must not happen unnoticed: it takes a new format version."""
    golden = GOLDEN / f"ledger-v{FORMAT_VERSION}"
    ledger = opened(tmp_path / "again")
    write(ledger, frames(golden))
    ledger.close()
    for name in NAMES:
        assert (tmp_path / "again" / name).read_bytes() == (golden / name).read_bytes(), name
