"""Shared parts of the tests of batches: a place to stage in, rows, and stagers."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from tarry.index.incoming import Mapping
from tarry.index.manifest import BatchManifest, StagingPlace, Terms, new_token
from tarry.index.staging import StagedFiles, Stager, manifest_of

NOW_MS = 1_900_000_000_000


def terms(**changes: Any) -> Terms:
    return Terms(**{"delayed_delivery": True, "tick_ms": 1, "slot_ms": 300_000, "max_delay_ms": 0, **changes})


def place(folder: Path, **changes: Any) -> StagingPlace:
    said: dict[str, Any] = {
        "index": str(folder / "index"), "ledger": "0" * 32, "now_ms": NOW_MS, "outlets": ["https"], "broker": terms(),
        "namespaces": {}, "topics": {},
    }  # fmt: skip
    return StagingPlace(**{**said, **changes})


def stage(
    at: StagingPlace,
    *batches: pa.RecordBatch,
    mapping: Mapping | None = None,
    name: str = "letters",
    part: str = "0",
) -> StagedFiles:
    """Stage rows as one task would."""
    Path(at.index).mkdir(parents=True, exist_ok=True)
    stager = Stager(at, mapping or Mapping(destination="orders"), name, new_token(name), part)
    for batch in batches:
        stager.add(batch)
    return stager.finish()


def staged_manifest(
    at: StagingPlace, rows: int = 10, name: str = "letters", due_at_ms: int | None = None
) -> BatchManifest:
    """Rows for one topic, a second apart, staged."""
    first_ms = at.now_ms + 60_000 if due_at_ms is None else due_at_ms
    batch = pa.record_batch(
        {
            "due": pa.array([first_ms + 1000 * n for n in range(rows)], pa.int64()),
            "payload": [f"{name} {n}" for n in range(rows)],
        }
    )
    return manifest_of(at, [stage(at, batch, name=name)])
