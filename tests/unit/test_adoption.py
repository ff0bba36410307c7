"""A batch is adopted as a whole or not at all, once for each name, and cancelled as a whole."""

import errno
from typing import Any

import pytest

from tarry.core.errors import (
    Conflict,
    DelayTooLong,
    Invalid,
    NotFound,
    Rejected,
    TooLarge,
    TooManyPending,
    Unavailable,
)
from tarry.core.limits import DAY_MS
from tarry.core.rules.policy import Policy
from tarry.core.tenants.holder import Holder
from tarry.index.manifest import BatchManifest, ManifestFile
from tarry.ledger.record import FIRST_BATCH_SEQ as FIRST
from tests.unit.engine_kit import Bench

NAMESPACE = "public/default"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def file(rows: int = 3, name: str = "0", high_ms: int = 2_000_000_000_000) -> ManifestFile:
    return ManifestFile(
        path=f"staged/{'0' * 32}/{name}.parquet", size_bytes=1, rows=rows, slot="300000_0", low_ms=1, high_ms=high_ms
    )  # fmt: skip


def manifest(bench: Bench, **changes: Any) -> BatchManifest:
    ledger = bench.ledger.ledger_id.hex()
    said: dict[str, Any] = {
        "ledger": ledger, "files": [file()], "owners": {"ann": 2, "bob": 1},
        "namespaces": {NAMESPACE: bench.now_ms + DAY_MS}, "fingerprint": "3-abc",
    }  # fmt: skip
    return BatchManifest(**{**said, **changes})


def test_a_batch_is_accepted_with_all_its_messages(bench: Bench) -> None:
    bench.leap(5_000)
    view = bench.ask(bench.engine.batches.adopt("letters", manifest(bench)))
    assert (view.name, view.count, view.remaining, view.namespaces) == ("letters", 3, 3, [NAMESPACE])
    assert (view.adopted_at_ms, view.repeated) == (bench.now_ms, False)
    assert bench.pending.by_holder == {
        Holder(NAMESPACE, "ann"): 2,
        Holder(NAMESPACE, "bob"): 1,
    }
    assert bench.engine.stats().counters["accepted"] == 3
    batch = bench.batches.by_name["letters"]
    assert (batch.first_seq, batch.floor_ms) == (FIRST, bench.now_ms)
    more = bench.ask(bench.engine.batches.adopt("more", manifest(bench)))
    assert more.remaining == 3
    assert bench.batches.by_name["more"].first_seq == FIRST + 3


def test_nothing_is_answered_before_it_is_durable(bench: Bench) -> None:
    answer = bench.engine.batches.adopt("letters", manifest(bench))
    again = bench.engine.batches.adopt("letters", manifest(bench))
    shown = bench.engine.batches.batch("letters")
    assert not any(one.settled for one in (answer, again, shown))
    assert bench.engine.batches.list_batches(10).batches == []
    bench.commit()
    assert (answer.value().repeated, again.value().repeated) == (False, True)
    assert shown.value() == answer.value()
    assert len(bench.batches.by_name) == 1


def test_the_same_request_again_gets_the_same_answer_also_after_a_crash(bench: Bench) -> None:
    first = bench.ask(bench.engine.batches.adopt("letters", manifest(bench)))
    for end in (bench.kill, bench.crash):
        end()
        bench.start()
        again = bench.ask(bench.engine.batches.adopt("letters", manifest(bench)))
        assert again.repeated
        assert again.count == first.count
    # A job that can only be the same one again says no more than its name.
    assert bench.ask(bench.engine.batches.adopt("letters", manifest(bench, fingerprint=""))).repeated
    assert bench.pending.by_holder == {
        Holder(NAMESPACE, "ann"): 2,
        Holder(NAMESPACE, "bob"): 1,
    }
    conflict = bench.refused(
        bench.engine.batches.adopt("letters", manifest(bench, fingerprint="3-xyz")), Conflict
    )
    assert conflict.state == "reused"


def test_what_was_staged_and_not_adopted_is_nothing(bench: Bench) -> None:
    _ = bench.engine.batches.adopt("letters", manifest(bench))
    # The power fails before the record is synced: nobody was answered.
    bench.crash()
    bench.start()
    bench.refused(bench.engine.batches.batch("letters"), NotFound)
    assert not bench.pending.by_holder
    assert not bench.ask(bench.engine.batches.adopt("letters", manifest(bench))).repeated
    assert bench.batches.next_seq == FIRST + 3


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"ledger": "f" * 32}, Conflict),
        ({"owners": {"ann": 2}}, Invalid),
        ({"namespaces": {}}, Invalid),
        ({"namespaces": {"nowhere": 1}}, Invalid),
        ({"files": [file(1), file(2)]}, Invalid),
        ({"namespaces": {"far/off": 4_000_000_000_000}}, DelayTooLong),
        ({"namespaces": {"now/only": 4_000_000_000_000}}, Rejected),
        ({"namespaces": {"few/each": 1}}, TooManyPending),
        ({"files": [file(1, str(n) + "x" * 600) for n in range(500)], "owners": {"ann": 500}}, TooLarge),
    ],
)
def test_what_is_not_allowed_changes_nothing(
    bench: Bench, changes: dict[str, Any], error: type[Exception]
) -> None:
    for name, policy in {
        "far/off": Policy(max_delay_ms=DAY_MS),
        "now/only": Policy(delayed_delivery=False),
        "few/each": Policy(max_pending_per_owner=1),
    }.items():
        bench.ask(bench.engine.set_policy("namespace", name, policy))
    bench.refused(bench.engine.batches.adopt("letters", manifest(bench, **changes)), error)  # type: ignore[type-var]
    assert not bench.batches.by_name
    assert not bench.pending.by_holder


def test_a_batch_is_held_against_the_most_that_a_place_of_its_namespace_allows(bench: Bench) -> None:
    """Its rows were held against the policies of their own topics when they were staged."""
    for scope, name, policy in (
        ("namespace", "shop/eu", Policy(delayed_delivery=False)),
        ("topic", "shop/eu/later", Policy(delayed_delivery=True, max_delay_ms=DAY_MS)),
    ):
        bench.ask(bench.engine.set_policy(scope, name, policy))  # type: ignore[arg-type]
    beyond = manifest(bench, namespaces={"shop/eu": bench.now_ms + DAY_MS + 1})
    assert bench.refused(bench.engine.batches.adopt("beyond", beyond), DelayTooLong).max_delay_ms == DAY_MS
    later = manifest(bench, namespaces={"shop/eu": bench.now_ms + DAY_MS})
    assert bench.ask(bench.engine.batches.adopt("later", later)).name == "later"


def test_a_bad_name_is_refused(bench: Bench) -> None:
    for name in ("", "a/b", "\n", "x" * 256):
        bench.refused(bench.engine.batches.adopt(name, manifest(bench)), Invalid)


def test_a_failed_disk_accepts_nothing(bench: Bench) -> None:
    bench.disk.fail_next("sync", errno.EIO)
    bench.refused(bench.engine.batches.adopt("letters", manifest(bench)), Unavailable)


def test_batches_are_listed_newest_first_by_pages(bench: Bench) -> None:
    for n in range(5):
        said: dict[str, Any] = {}
        if n == 3:
            said["namespaces"] = {NAMESPACE: 1, "shop/eu": 1}
            said["held"] = {NAMESPACE: {"ann": 2}, "shop/eu": {"bob": 1}}
        bench.ask(bench.engine.batches.adopt(f"b{n}", manifest(bench, **said)))
    names: list[str] = []
    page = bench.engine.batches.list_batches(2)
    while True:
        names += [view.name for view in page.batches]
        if page.next_page is None:
            break
        page = bench.engine.batches.list_batches(2, page.next_page)
    assert names == ["b4", "b3", "b2", "b1", "b0"]
    seen = bench.engine.batches.list_batches(10, covers=lambda namespace: namespace == NAMESPACE)
    assert [view.name for view in seen.batches] == ["b4", "b2", "b1", "b0"]


def test_a_batch_of_ten_million_is_cancelled_by_one_record(bench: Bench) -> None:
    count = 10_000_000
    bench.ask(bench.engine.batches.adopt("all", manifest(bench, files=[file(count)], owners={"ann": count})))
    bench.ask(bench.engine.batches.adopt("other", manifest(bench)))
    before = bench.next_seq
    view = bench.ask(bench.engine.batches.cancel("all"))
    assert (view.count, view.remaining, view.cancelled) == (count, 0, count)
    assert view.cancelled_at_ms == bench.now_ms
    assert bench.next_seq == before + 1
    dead = bench.dead
    assert [seq in dead for seq in (FIRST, FIRST + count - 1, FIRST + count)] == [True, True, False]
    assert bench.pending.by_holder == {
        Holder(NAMESPACE, "ann"): 2,
        Holder(NAMESPACE, "bob"): 1,
    }
    assert bench.engine.stats().counters["cancelled"] == count
    # Again, also after a restart, it is the same.
    assert bench.ask(bench.engine.batches.cancel("all")) == view
    bench.reopen()
    assert bench.ask(bench.engine.batches.cancel("all")) == view
    assert FIRST + 77 in bench.dead
    assert bench.pending.by_holder == {
        Holder(NAMESPACE, "ann"): 2,
        Holder(NAMESPACE, "bob"): 1,
    }
    bench.refused(bench.engine.batches.cancel("none"), NotFound)


def test_the_terms_are_those_of_what_somebody_reaches(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("namespace", "shop/eu", Policy(tick_ms=1000)))
    bench.ask(bench.engine.set_policy("namespace", "shop/us", Policy(tick_ms=2000)))
    bench.ask(bench.engine.set_policy("topic", "shop/eu/orders", Policy(slot_ms=60_000)))
    place = bench.engine.batches.place("/somewhere", lambda namespace: namespace == "shop/eu")
    assert (place.index, place.now_ms, place.outlets) == ("/somewhere", bench.now_ms, ["sim"])
    assert place.broker.tick_ms == 1
    assert {name: terms.tick_ms for name, terms in place.namespaces.items()} == {"shop/eu": 1000}
    assert list(place.topics) == ["persistent://shop/eu/orders"]
    orders = place.topics["persistent://shop/eu/orders"]
    assert (orders.tick_ms, orders.slot_ms) == (1000, 60_000)
