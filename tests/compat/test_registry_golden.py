"""Every registry that was ever released is still read, row for row and field for field."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import numpy as np
import pytest

from tarry.core.sets.savedset import SavedSet
from tarry.engine.topics.topic import Topic
from tarry.registry.migration import FORMAT_VERSION, SCOPED_VERSION
from tarry.registry.registry import REGISTRY_FILE, Registry
from tests.compat.make_ledger_golden import GOLDEN, plain
from tests.compat.make_registry_golden import BITS, KEYS, TOPIC, acks, fill, rows_of, topic

FOLDERS = sorted(path.name for path in GOLDEN.glob("registry-v*"))


def holds(now: Any, was: Any) -> bool:
    """Whether all that was written then is there still; fields that came later do not matter."""
    if isinstance(was, dict):
        return isinstance(now, dict) and all(name in now and holds(now[name], was[name]) for name in was)
    if isinstance(was, list):
        return len(now) == len(was) and all(map(holds, now, was))
    return bool(now == was)


def begins(now: Any, was: Any) -> bool:
    """Whether a packed row begins as it did: fields are added only at the end."""
    if isinstance(was, list):
        return isinstance(now, list) and len(now) >= len(was) and all(map(begins, now, was))
    return bool(now == was)


def migrated(was: dict[str, Any]) -> dict[str, Any]:
    """The content of a registry of format 1, as it stands in one of format 2: without a namespace, where there is to be one."""
    tables = dict(was["tables"])
    for name in ("groups", "idempotency", "owners"):
        tables[name] = [[["", *key], searched, value] for key, searched, value in tables[name]]
    tables["batches"] = [
        [key, searched, value | {name: {"": value[name]} for name in ("waiting", "apart")}]
        for key, searched, value in tables["batches"]
    ]
    meta = was["meta"] | {"scoped_from": was["meta"]["applied_seq"] + 1}
    return {"tables": tables, "meta": meta}


@pytest.fixture(params=FOLDERS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Registry, Any]]:
    """A golden registry, opened, and what was in it."""
    shutil.copy(GOLDEN / request.param / REGISTRY_FILE, tmp_path)
    with closing(Registry(str(tmp_path / REGISTRY_FILE))) as registry:
        yield registry, json.loads((GOLDEN / request.param / "expected.json").read_text())


def test_there_is_one_for_each_version() -> None:
    assert [f"registry-v{version}" for version in range(1, FORMAT_VERSION + 1)] == FOLDERS


def test_every_table_is_in_it() -> None:
    assert {*KEYS, *BITS} == {table.name for table in Registry(":memory:").tables}


def test_it_is_read_as_it_was_written(golden: tuple[Registry, Any]) -> None:
    registry, was = golden
    was = was if was.get("format", 1) >= SCOPED_VERSION else migrated(was)
    now = json.loads(json.dumps(rows_of(registry) | {"meta": plain(registry.meta)}))
    assert holds(now["meta"], was["meta"])
    for name, rows in was["tables"].items():
        assert rows, name
        assert holds(now[name], rows), name


def test_places_and_bits_are_read_as_they_were_written(golden: tuple[Registry, Any]) -> None:
    registry, _ = golden
    expected, found = topic(), Topic(TOPIC, 0)
    for (_, number), data in registry.chunks.rows():
        found.load_chunk(number, data)
    ids = np.arange(expected.next)
    assert found.seqs(ids).tolist() == expected.seqs(ids).tolist() == [100, 101, 102, 7]
    found.next = expected.next
    assert found.mean_bytes(0, 4) == expected.mean_bytes(0, 4) == 350 / 4
    waiting, acked = SavedSet(), SavedSet()
    for bits, table in ((waiting, registry.waiting), (acked, registry.acks)):
        for (*_, number), data in table.rows():
            bits.load(number, data)
    assert waiting.between(0, 1 << 40).tolist() == [2]
    assert acked.between(0, 1 << 40).tolist() == acks().between(0, 1 << 40).tolist() == [1, 3, 200_000]


def test_the_present_version_still_writes_the_same_rows(tmp_path: Path) -> None:
    """A change of the layout must not happen unnoticed: it takes a new format version."""
    with closing(Registry(str(tmp_path / REGISTRY_FILE))) as registry:
        fill(registry)
    then = GOLDEN / f"registry-v{FORMAT_VERSION}" / REGISTRY_FILE
    with (
        closing(sqlite3.connect(tmp_path / REGISTRY_FILE)) as now,
        closing(sqlite3.connect(f"file:{then}?mode=ro&immutable=1", uri=True)) as was,
    ):
        for said in ("user_version", "application_id"):
            assert now.execute(f"PRAGMA {said}").fetchone() == was.execute(f"PRAGMA {said}").fetchone()
        made = dict(now.execute("SELECT name, sql FROM sqlite_master"))
        for name, sql in was.execute("SELECT name, sql FROM sqlite_master").fetchall():
            assert made[name] == sql, name
        names = [name for (name,) in was.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            rows = [sorted(of.execute(f"SELECT * FROM {name}").fetchall()) for of in (now, was)]
            for (*columns, body, crc), (*old_columns, old_body, _) in zip(*rows, strict=True):
                assert columns == old_columns, name
                assert crc == google_crc32c.value(body)
                assert begins(msgspec.msgpack.decode(body), msgspec.msgpack.decode(old_body)), name
