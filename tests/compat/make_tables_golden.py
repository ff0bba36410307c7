"""Make the golden tables of the present format: `python -m tests.compat.make_tables_golden`.

Run it once for each format, as `make_ledger_golden`. The tables have no version of their own: the number in the folder's name
is raised when they change otherwise than by a column at the end.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.index.adopted import files_of
from tarry.index.columns import RECORDS, index_rows, seen_in
from tarry.index.delta import DeltaIndex
from tarry.index.files import Folder, write_partitions
from tarry.index.history import history_rows
from tarry.index.schema import HISTORY, INDEX
from tarry.index.state import CommitState
from tarry.index.table import GuardedTable
from tarry.ledger.record import (
    FIRST_BATCH_SEQ,
    NO_PUT,
    Adopt,
    CancelBatch,
    Entry,
    Finalise,
    Key,
    Mark,
    PolicySet,
    Put,
    Record,
    Spared,
    decode,
    encode,
)  # fmt: skip
from tests.compat.make_ledger_golden import GOLDEN, described
from tests.unit.ledger_kit import LEDGER_ID
from tests.unit.staging_kit import NOW_MS, place, stage

VERSION: Final = 1
TOPIC: Final = "persistent://public/default/orders"
DEFAULT_MS: Final = 300_000
TABLES: Final = (("index", INDEX), ("history", HISTORY))
ALL: Final = (Key(0, 0), Key(1 << 47, 0))


def put(fire_at_ms: int, door: str = "http") -> Put:
    """A version for a topic, with a bit of everything that a row repeats."""
    return Put(
        fire_at_ms, fire_at_ms, NOW_MS, "public/default", TOPIC, "key é", "ann", door, "group", None, None, 2, False,
        b"payload", {"name": "value"}, NOW_MS, None,
    )  # fmt: skip


def batches(index: Path) -> list[list[Record]]:
    """Records of the ledger, as they reach the tables: what waits, what has ended, a batch, and what ended of it."""
    far, near = put(NOW_MS + 40 * DAY_MS), put(NOW_MS + HOUR_MS, "matrix")
    delayed = Entry(TOPIC, NOW_MS + 9, NOW_MS, 8, None, NO_PUT, b"later", due_at_ms=NOW_MS + 8, door="pulsar")
    rows = pa.record_batch({"due": pa.array([NOW_MS - 5, NOW_MS + 3 * HOUR_MS]), "payload": ["one", "two"]})
    staged = stage(place(index.parent), rows, name="letters")
    adopt = Adopt(
        "letters", FIRST_BATCH_SEQ, 2, NOW_MS + 5, NOW_MS + 5, [file.staged() for file in staged.files], {"": 2},
        ["public/default"],
    )  # fmt: skip
    fired = msgspec.Raw(encode(near).body)
    return [
        [far, put(NOW_MS + 2 * HOUR_MS), near, delayed, PolicySet("namespace", "public/default", {"slot_ms": 60_000})],
        [
            Finalise(
                Key(NOW_MS + 2 * HOUR_MS, 2), Key(NOW_MS, 1), "cancelled", NOW_MS + 7, "why", None, 3, NOW_MS + 7, NOW_MS,
                "public/default", TOPIC, "key é", "ann", "http", None, False,
            ),
            Entry(TOPIC, 0, NOW_MS + HOUR_MS + 2, 9, Key(near.fire_at_ms, 3), fired, owner="ann"),
            adopt,
            Mark(Key(NOW_MS, 0), NOW_MS),
        ],
        [CancelBatch("cards", FIRST_BATCH_SEQ + 2, 10, NOW_MS + DAY_MS, NOW_MS + DAY_MS, [Spared(Key(NOW_MS, FIRST_BATCH_SEQ + 3), "ann")])],
    ]  # fmt: skip


def columns_of(records: list[Record], first_seq: int) -> pa.RecordBatch:
    """Records as the ledger's columns."""
    encoded = [encode(one) for one in records]
    values: dict[str, list[Any]] = {"seq": list(range(first_seq, first_seq + len(encoded)))}
    for name in RECORDS.names[1:]:
        values[name] = [getattr(one, name) for one in encoded]
    return pa.RecordBatch.from_pydict(values, RECORDS)


def write(folder: Path) -> None:
    """Commit them one after another, as the pipeline does."""
    index, history = (GuardedTable.open(str(folder / name), layout, LEDGER_ID) for name, layout in TABLES)
    state, seq = CommitState(), 0
    for number, records in enumerate(batches(folder / "index")):
        found = columns_of(records, seq + 1)
        rows = index_rows(found, NOW_MS, state.namespaces(), state.other_ms(DEFAULT_MS))
        seen, adopted = seen_in(found)
        files = write_partitions(rows, index.uri, INDEX, f"part-{number}")
        files += [file for adopt in adopted for file in files_of(adopt)]
        state = state.after([seen], DEFAULT_MS, NOW_MS)
        ended = write_partitions(history_rows(found, bodies=True), history.uri, HISTORY, f"part-{number}")
        last_seq = seq + len(records)
        history.append(ended, seq + 1, last_seq, {"forgotten": 0})
        index.append(files, seq + 1, last_seq, msgspec.to_builtins(state))
        seq = last_seq


def read(folder: Path) -> dict[str, Any]:
    """All that is in the tables, as the server and the pipeline read it, as JSON."""
    view = DeltaIndex(str(folder / "index"), LEDGER_ID).newest()
    due = view.load(*ALL, 1_000).due
    keys = list(map(Key, due.fire_at_ms.tolist(), due.seqs.tolist()))
    found: dict[str, Any] = {
        "keys": [[*key, lane] for key, lane in zip(keys, due.lanes.tolist(), strict=True)],
        "bodies": [
            described(decode(body)) if isinstance(body, bytes) else None
            for body in view.bodies(keys, 1 << 20)
        ],
    }
    for name, layout in TABLES:
        table = GuardedTable.open(str(folder / name), layout, LEDGER_ID)
        files = sorted(table.files(), key=lambda file: (file.partition, file.low, file.base, file.low_seq))
        state = table.state()
        found[name] = {
            "cursor": table.cursor(),
            "state": msgspec.to_builtins(msgspec.convert(state, CommitState)) if name == "index" else state,
            "files": [
                {field: value for field, value in msgspec.to_builtins(file).items() if field not in ("path", "size", "written_ms")}
                for file in files
            ],
            "rows": [
                {column: value.hex() if isinstance(value, bytes) else value for column, value in row.items()}
                for file in files
                for rows in Folder(table.uri).read(file.path)
                for row in rows.to_pylist()
            ],
        }  # fmt: skip
    return found


def main() -> None:
    """Write the golden files of the present format."""
    folder = GOLDEN / f"tables-v{VERSION}"
    if folder.exists():
        sys.exit(f"{folder} exists. Golden files are made once; see the docstring.")
    folder.mkdir()
    write(folder)
    for log in folder.rglob("_delta_log/*.json"):
        # Where it was made is nobody's affair.
        log.write_text(log.read_text().replace(str(folder), "/golden"))
    (folder / "expected.json").write_text(json.dumps(read(folder), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
