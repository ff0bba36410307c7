"""Make a golden installation: `python -m tests.compat.make_installation_golden FOLDER`, with the version that it is to be of.

A ledger and a registry that belong together, as a killed server leaves them: the registry lacks the newest records. What a
later version has to make of it is in `test_installation_golden`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import FIRST_BATCH_SEQ, Adopt, StagedFile
from tests.unit.engine_kit import FOREIGN, Bench

HOUR_MS = 3_600_000
A, B = "acme/a", "acme/b"
SETTINGS = LedgerSettings(segment_bytes=1 << 16)
KEYED: dict[str, Any] = {
    "destination": FOREIGN,
    "owner": "ann",
    "due_at_ms": 1_900_000_000_000,
    "payload": b"keyed",
}


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    bench = Bench(ledger_settings=SETTINGS)
    ids: dict[str, str] = {}

    def schedule(name: str, namespace: str, **fields: Any) -> None:
        ids[name] = bench.schedule(FOREIGN, namespace=namespace, payload=name.encode(), **fields).id

    schedule("g-a1", A, owner="ann", group="g", delay_ms=HOUR_MS)
    schedule("g-a2", A, owner="ann", group="g", delay_ms=2 * HOUR_MS)
    # Another tenant's, which joined the same group: groups were by owner alone.
    schedule("g-b", B, owner="ann", group="g", delay_ms=3 * HOUR_MS)
    schedule("done-1", A, owner="ann", group="done", delay_ms=1_000)
    schedule("done-2", A, owner="ann", group="done", delay_ms=HOUR_MS)
    for name, namespace in (("bob-a1", A), ("bob-a2", A), ("bob-b", B)):
        schedule(name, namespace, owner="bob", delay_ms=4 * HOUR_MS)
    ids["k1"] = bench.schedule(**{**KEYED, "namespace": A, "idempotency_key": "k1"}).id
    bench.wait(1_000)
    bench.attempt().answer(_delivered())
    bench.rest()
    files = [StagedFile("staged/x/0.parquet", 100, 3, "300000_0", 1_900_000_000_000, 1_900_000_000_005)]
    adopt = Adopt("letters", FIRST_BATCH_SEQ, 3, 7, 6, files, {"ann": 2, "bob": 1}, [A, B], "print")
    bench.journal.append([adopt], lambda error: None)
    bench.rest()
    bench.ask(bench.engine.flush())
    image = bench.registry.serialize()
    # From here on the registry lacks it.
    schedule("late-1", A, owner="ann", group="late", delay_ms=1_000)
    schedule("late-2", A, owner="ann", group="late", delay_ms=HOUR_MS)
    schedule("bob-later", B, owner="bob", delay_ms=4 * HOUR_MS)
    ids["k2"] = bench.schedule(**{**KEYED, "namespace": B, "idempotency_key": "k2"}).id
    bench.upkeep.flush = lambda: None  # type: ignore[assignment, method-assign, return-value]
    bench.clock.advance(1_000)
    bench.tick()
    while bench.commit():
        bench.tick()
    assert len(bench.outlet.under_way) == 1, "the claim is not durable"
    expected = {"ids": ids, "pending": bench.engine.stats().pending, "now_ms": bench.now_ms}
    (folder / "registry.sqlite").write_bytes(image)
    for name in bench.disk.listdir("ledger"):
        if name[0].isdigit() or name == "head":
            (folder / name).write_bytes(bench.disk.open(f"ledger/{name}").read(1 << 30, 0))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def _delivered() -> Any:
    from tarry.core.messages.delivery import Delivered

    return Delivered()


if __name__ == "__main__":
    main()
