"""Make the golden registry of the present format: `python -m tests.compat.make_registry_golden`.

Run it once for each format version, as `make_ledger_golden`.
"""

import json
import sys
from typing import Any, get_args

import numpy as np

from tarry.core.sets.savedset import SavedSet
from tarry.engine.topics.entry_log import save_set
from tarry.engine.topics.topic import Topic
from tarry.registry.migration import FORMAT_VERSION
from tarry.registry.registry import REGISTRY_FILE, Meta, Registry
from tarry.registry.snapshots import write_snapshot
from tarry.registry.table import Table
from tests.compat.make_ledger_golden import GOLDEN, plain, sample

TOPIC = "persistent://public/default/orders"
BITS = {"chunks", "waiting", "acks"}
"""The tables whose values are places and bits: they are filled by `topic` and `acks`."""
KEYS: dict[str, list[tuple[tuple[Any, ...], tuple[Any, ...]]]] = {
    "live": [((1,), ("ann", 1_700_000_000_001)), ((2,), (None, None))],
    "finalised": [((3,), ("ann", 1_700_000_000_003)), ((4,), (None, 1_700_000_000_004))],
    "groups": [(("acme/a", "ann", "open"), (None,)), (("acme/a", "ann", "closed"), (1_700_000_000_005,))],
    "subjects": [(("room",), ())],
    "idempotency": [(("acme/a", "ann", "key é"), (1_700_000_000_006,))],
    "lines": [(("acme/a", "ann", "key é", 2), (1_700_000_000_006,))],
    "names": [(("acme/a", "trial é"), (5,))],
    "owners": [(("acme/a", "ann"), ()), (("", "ann"), ())],
    "policies": [(("namespace", "public/default"), ())],
    "topics": [(("persistent://public/default/empty",), ())],
    "subscriptions": [((TOPIC, "sub"), ())],
    "producers": [((TOPIC, "producer"), ())],
    "sequences": [((TOPIC, "producer"), ())],
    "batches": [(("letters",), ()), (("cards",), ())],
    "batch_files": [(("letters",), ())],
    "catalogue": [(("tenant", "public"), ())],
}
"""Keys of the rows of each table, with the columns to search by."""


def topic() -> Topic:
    """A topic with entries, one of which waits."""
    made = Topic(TOPIC, 1_700_000_000_000)
    made.place_many(0, np.arange(100, 103), np.full(3, 100))
    made.place(3, 7, 50)
    made.waiting.add(2)
    return made


def acks() -> SavedSet:
    """The acknowledged entries of a subscription, above the bound of its row."""
    made = SavedSet()
    # In two blocks.
    made.add_many(np.array([1, 3, 200_000]))
    return made


def value_type(table: Table[Any]) -> Any:
    """The type of a table's rows."""
    return get_args(table._decoder.type)[2]


def fill(registry: Registry) -> None:
    """Rows in every table, and the place that it has reached."""
    for table in registry.tables:
        for n, (key, searched) in enumerate(KEYS.get(table.name, ()), 1):
            table.put(key, sample(value_type(table), table.name, n), searched)
    topic().save(registry)
    save_set(acks(), registry.acks, TOPIC, "sub")
    flush = registry.begin(sample(Meta, "meta", 1))
    registry.write(flush)
    registry.done(flush)


def rows_of(registry: Registry) -> dict[str, Any]:
    """Every row as JSON, by table; those of bits apart."""
    return {
        table.name: sorted(
            [[list(key), list(searched), plain(value)] for key, searched, value in table.select("1", ())],
            key=str,
        )
        for table in registry.tables
        if table.name not in BITS
    }


def main() -> None:
    """Write the golden files of the present format version."""
    folder = GOLDEN / f"registry-v{FORMAT_VERSION}"
    if folder.exists():
        sys.exit(f"{folder} exists. Golden files are made once; see the docstring.")
    folder.mkdir()
    registry = Registry(":memory:")
    fill(registry)
    write_snapshot(registry._writer, str(folder / REGISTRY_FILE), lambda copy: None)
    (folder / f"{REGISTRY_FILE}.sha256").unlink()
    expected = {"format": FORMAT_VERSION, "meta": plain(registry.meta), "tables": rows_of(registry)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
