"""The tables of the index on a real object store: its fence holds there, and the server reads what was committed (R6, R7)."""

import itertools

import pytest

from tarry.core.errors import Conflict
from tarry.index.delta import DeltaIndex
from tarry.index.schema import INDEX
from tarry.index.table import GuardedTable
from tarry.ledger.record import Key
from tests.cluster.object_store import BUCKET, ObjectStore
from tests.unit.test_index_table import LEDGER, files

_names = itertools.count()


@pytest.fixture
def uri(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/tables-{next(_names)}/index"


def opened(uri: str, store: ObjectStore) -> GuardedTable:
    return GuardedTable.open(uri, INDEX, LEDGER, store.options)


def test_of_two_appends_from_one_version_one_fails(uri: str, store: ObjectStore) -> None:
    one, two = opened(uri, store), opened(uri, store)
    one.append(files(one, "300000_0", [5, 7]), 1, 10, {})
    with pytest.raises(Conflict, match="came first"):
        two.append(files(two, "300000_0", [5, 7]), 1, 10, {})
    two.refresh()
    with pytest.raises(Conflict, match="does not follow"):
        two.append([], 1, 10, {})
    two.append(files(two, "300000_0", [9], first_seq=11), 11, 11, {})
    assert opened(uri, store).cursor() == 11
    assert sum(file.rows for file in opened(uri, store).files()) == 3


def test_files_are_replaced_under_the_fence(uri: str, store: ObjectStore) -> None:
    one = opened(uri, store)
    old = files(one, "3600000_0", [1, 2, 3])
    one.append(old, 1, 3, {})
    two = opened(uri, store)
    one.replace(old, files(one, "300000_0", [1, 2, 3]), {})
    with pytest.raises(Conflict):
        two.replace(old, files(two, "300000_0", [1, 2, 3]), {})
    assert sum(file.rows for file in opened(uri, store).files()) == 3


def test_the_server_reads_what_was_committed(uri: str, store: ObjectStore) -> None:
    index = DeltaIndex(uri, LEDGER, store.options)
    assert index.newest().cursor == 0
    table = opened(uri, store)
    table.append(files(table, "300000_0", [5, 7, 9]), 1, 10, {})
    view = index.newest()
    assert view.cursor == 10
    loaded = view.load(Key(0, 0), Key(8, 0), 100)
    assert loaded.due[1].tolist() == [1, 2]
