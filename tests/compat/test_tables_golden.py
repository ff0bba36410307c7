"""Every form of the two Delta tables that was ever released is still read, and the present one is still written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tarry.index.row_groups import GROUPS
from tests.compat.make_ledger_golden import GOLDEN
from tests.compat.make_tables_golden import TABLES, VERSION, read, write
from tests.compat.test_registry_golden import holds

FOLDERS = sorted(path.name for path in GOLDEN.glob("tables-v*"))


def log_of(table: Path) -> list[dict[str, Any]]:
    """The commits of a table, without the fields that differ each time."""
    said: list[dict[str, Any]] = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, path.read_text().splitlines()):
            if "metaData" in action:
                meta = action["metaData"]
                said.append(
                    {name: meta[name] for name in ("partitionColumns", "configuration", "description")}
                )
                said.append(json.loads(meta["schemaString"]))
            elif "add" in action:
                add = action["add"]
                said.append(
                    {name: add[name] for name in ("partitionValues", "dataChange")} | json.loads(add["stats"])
                )
            elif "txn" in action:
                said.append({name: action["txn"][name] for name in ("appId", "version")})
            elif "tarry" in action.get("commitInfo", {}):
                said.append(json.loads(action["commitInfo"]["tarry"]))
    # Within a commit the order means nothing.
    return sorted(said, key=lambda one: json.dumps(one, sort_keys=True))  # fmt: skip


def files_of(table: Path) -> list[Any]:
    """The files of a table as Parquet sees them: folder, columns with their types, row groups, compression."""
    found = []
    for path in sorted(table.rglob("*.parquet")):
        meta = pq.read_metadata(path)
        columns = [
            (one.path, one.physical_type, str(one.logical_type), one.max_definition_level)
            for one in meta.schema
        ]
        codecs = {meta.row_group(0).column(n).compression for n in range(meta.num_columns)}
        place = path.relative_to(table).parts[0]
        found.append([place, columns, meta.num_rows, meta.metadata[GROUPS.encode()], codecs])
    return sorted(found, key=str)  # fmt: skip


def test_there_is_one_for_each() -> None:
    assert [f"tables-v{version}" for version in range(1, VERSION + 1)] == FOLDERS


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder)
    was = json.loads((folder / "expected.json").read_text())
    assert len(was["keys"]) == 4
    now = json.loads(json.dumps(read(folder)))
    for part in was:
        assert holds(now[part], was[part]), part


def test_the_present_version_still_writes_the_same(tmp_path: Path) -> None:
    """A change of the tables must not happen unnoticed: it takes another golden folder."""
    write(tmp_path)
    for name, _ in TABLES:
        golden = GOLDEN / f"tables-v{VERSION}" / name
        assert log_of(tmp_path / name) == log_of(golden)
        assert files_of(tmp_path / name) == files_of(golden)
