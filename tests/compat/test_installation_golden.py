"""An installation that an earlier version left, killed, is taken over: nothing is lost, sent twice or counted wrongly."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tarry.core.errors import Conflict
from tarry.core.messages.delivery import Delivered
from tarry.core.messages.message import Message
from tarry.core.tenants.holder import UNSCOPED, Holder
from tarry.registry import migration
from tarry.registry.registry import REGISTRY_FILE, Registry
from tests.compat.make_installation_golden import HOUR_MS, KEYED, SETTINGS, A, B
from tests.compat.make_ledger_golden import GOLDEN
from tests.unit.engine_kit import FOREIGN, Bench

FOLDER = GOLDEN / "installation-v1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
IDS: dict[str, str] = EXPECTED["ids"]


@pytest.fixture
def bench() -> Bench:
    """A server of this version on what the earlier one left."""
    made = Bench(ledger_settings=SETTINGS, start=False)
    made.disk.make_folder("ledger")
    for file in FOLDER.iterdir():
        if file.name[0].isdigit() or file.name == "head":
            copy = made.disk.open(f"ledger/{file.name}", create=True)
            copy.write(file.read_bytes(), 0)
            copy.sync()
    made.disk.sync_folder("ledger")
    made.registry_disk.images.append((FOLDER / REGISTRY_FILE).read_bytes())
    made.clock.set(EXPECTED["now_ms"])
    made.start()
    return made


def test_messages_that_the_registry_had_seen_stay_counted_by_owner_alone(bench: Bench) -> None:
    # `late-1` is being sent, and its sibling ended with the claim.
    assert bench.engine.stats().pending == EXPECTED["pending"]
    assert bench.pending.by_holder == {
        # g-a1, g-a2, g-b, k1, two of the batch; bob-a1, bob-a2, bob-b, one of the batch.
        Holder(UNSCOPED, "ann"): 6, Holder(UNSCOPED, "bob"): 4,
        # late-1; k2; bob-later.
        Holder(A, "ann"): 1, Holder(B, "ann"): 1, Holder(B, "bob"): 1,
    }  # fmt: skip
    before = dict(bench.pending.by_holder)
    bench.ask(bench.engine.flush())
    bench.reopen()
    assert bench.pending.by_holder == before


def test_in_the_end_every_count_is_nothing(bench: Bench) -> None:
    for hours in (0, 1, 2, 3, 4):
        bench.wait(HOUR_MS if hours else 0)
        while bench.outlet.under_way:
            bench.outlet.under_way[0].answer(Delivered())
            bench.rest()
    bench.ask(bench.engine.batches.cancel("letters"))
    for name in ("k1", "k2"):
        bench.ask(bench.engine.cancel(IDS[name]))
    assert bench.pending.by_holder == {}
    assert bench.engine.stats().pending == 0


def test_a_group_in_which_two_tenants_met_is_divided(bench: Bench) -> None:
    bench.rest()
    bench.attempt().answer(Delivered())
    bench.wait(HOUR_MS)
    bench.attempt().answer(Delivered())
    bench.rest()
    states = [bench.state(IDS[name]) for name in ("g-a1", "g-a2", "g-b")]
    assert states == ["sent", "cancelled", "scheduled"]


def test_a_claim_without_a_namespace_closes_the_group_that_it_is_about(bench: Bench) -> None:
    assert bench.state(IDS["late-2"]) == "cancelled"
    late = Message(destination=FOREIGN, owner="ann", group="late", delay_ms=1, namespace=A)
    assert bench.refused(bench.engine.schedule(late), Conflict).state == "closed"
    bench.schedule(FOREIGN, owner="ann", group="late", delay_ms=1, namespace=B)


def test_a_group_that_has_ended_stays_ended(bench: Bench) -> None:
    done = Message(destination=FOREIGN, owner="ann", group="done", delay_ms=1, namespace=A)
    assert bench.refused(bench.engine.schedule(done), Conflict).state == "closed"


@pytest.mark.parametrize(("key", "namespace"), [("k1", A), ("k2", B)])
def test_a_repeated_request_gets_its_first_answer(bench: Bench, key: str, namespace: str) -> None:
    asked = {**KEYED, "namespace": namespace, "idempotency_key": key}
    again = bench.schedule(**asked)
    assert (again.id, again.repeated) == (IDS[key], True)
    other = bench.schedule(**{**asked, "namespace": "acme/c", "payload": b"another tenant's"})
    assert not other.repeated


def test_a_migration_that_is_cut_short_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / REGISTRY_FILE
    path.write_bytes((FOLDER / REGISTRY_FILE).read_bytes())

    def rows() -> dict[str, Any]:
        with sqlite3.connect(path) as file:
            tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: sorted(file.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}

    before = rows()

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(migration, "_rewrite", fail)
        with pytest.raises(KeyboardInterrupt):
            Registry(str(path))
    assert rows() == before
    registry = Registry(str(path))
    assert registry.meta is not None
    assert registry.meta.scoped_from == registry.meta.applied_seq + 1
    registry.close()
    assert rows()["idempotency"][0][0] == UNSCOPED
