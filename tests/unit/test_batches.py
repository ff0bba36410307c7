"""The state of batches from their records: counts, the dead, and what a restart has again."""

from typing import Any

from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.core.sets.deadset import DeadSet
from tarry.core.tenants.holder import Holder
from tarry.engine.state.batches import Batches
from tarry.ledger.record import FIRST_BATCH_SEQ as FIRST
from tarry.ledger.record import Adopt, CancelBatch, Finalise, Key, Put, Record, Spared, StagedFile
from tarry.registry.registry import Meta, Registry
from tests.unit.engine_kit import FOREIGN, Bench

DAY = 1_900_000_000_000
NAMESPACE = "public/default"
ANN, BOB = Holder(NAMESPACE, "ann"), Holder(NAMESPACE, "bob")


def adopt(name: str = "letters", first_seq: int = FIRST, owners: dict[str, int] | None = None) -> Adopt:
    owners = owners or {"ann": 3, "bob": 2}
    count = sum(owners.values())
    file = StagedFile("staged/x/0.parquet", 100, count, "300000_0", DAY, DAY + 5)
    held = {NAMESPACE: owners}
    return Adopt(name, first_seq, count, 7, 6, [file], owners, [NAMESPACE], "print", held=held)


def cancel(batch: Adopt, *spared: Spared, at_ms: int = 50) -> CancelBatch:
    return CancelBatch(batch.name, batch.first_seq, batch.count, DAY + 5, at_ms, list(spared))


def decided(*records: Adopt | CancelBatch) -> Batches:
    batches = Batches(DeadSet())
    for seq, record in enumerate(records, 1):
        batches.decide(seq, record)
    return batches


def test_a_seq_leads_to_its_batch() -> None:
    batches = decided(adopt(), adopt("more", FIRST + 5), adopt("far", FIRST + 100))
    names = {
        seq: (batch := batches.of(FIRST + seq)) and batch.name for seq in (0, 4, 5, 9, 10, 99, 100, 104, 105)
    }
    assert names == {
        0: "letters", 4: "letters", 5: "more", 9: "more", 10: None, 99: None, 100: "far", 104: "far", 105: None,
    }  # fmt: skip
    assert batches.of(FIRST - 1) is None
    assert batches.next_seq == FIRST + 105


def test_what_ends_is_counted_where_it_was() -> None:
    batches = decided(adopt())
    batch = batches.by_name["letters"]
    batches.ended(FIRST, *ANN)
    batches.moved(FIRST + 1, *ANN)
    batches.ended(FIRST + 4, *BOB)
    assert (batch.waiting, batch.apart, batch.remaining) == ({ANN: 1, BOB: 1}, {ANN: 1}, 3)
    batches.ended(FIRST + 1, *ANN, apart=True)
    assert (batch.waiting, batch.apart) == ({ANN: 1, BOB: 1}, {})


def test_a_cancel_ends_all_but_what_stands_apart() -> None:
    dead = DeadSet()
    batches = Batches(dead)
    batch = adopt()
    assert batches.decide(1, batch) == {ANN: 3, BOB: 2}
    batches.moved(FIRST + 1, *ANN)
    assert batches.decide(2, cancel(batch, Spared(Key(DAY, FIRST + 4), "bob", NAMESPACE))) == {
        ANN: -2,
        BOB: -1,
    }
    assert dead.between(0, 1 << 60).tolist() == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
    letters = batches.by_name["letters"]
    assert (letters.remaining, letters.row.cancelled, letters.cancelled_at_ms) == (2, 3, 50)
    # The one that was being sent is tried again, by a version of its own, and ends.
    batches.moved(FIRST + 4, *BOB)
    batches.ended(FIRST + 4, *BOB, apart=True)
    assert letters.apart == {ANN: 1}
    # Once is enough.
    assert batches.decide(3, cancel(batch, at_ms=60)) == {}
    assert letters.cancelled_at_ms == 50


def test_the_tail_has_the_files_that_the_index_lacks() -> None:
    batches = decided(adopt(), adopt("more", FIRST + 5), adopt("gone", FIRST + 10))
    assert [batch.name for batch in batches.unindexed(0, 3)] == ["letters", "more", "gone"]
    assert [batch.name for batch in batches.unindexed(0, 2)] == ["letters", "more"]
    assert [batch.name for batch in batches.unindexed(1, 3)] == ["more", "gone"]
    batches.decide(4, cancel(adopt("gone", FIRST + 10)))
    assert [batch.name for batch in batches.unindexed(1, 4)] == ["more"]
    batches.indexed(2)
    assert [len(batch.files) for batch in batches.by_name.values()] == [0, 0, 1]


def flushed(batches: Batches, registry: Registry) -> Batches:
    batches.save(registry)
    flush = registry.begin(Meta(b"", 9, Key(0, 0), {}, batches.next_seq))
    registry.write(flush)
    registry.done(flush)
    again = Batches(DeadSet())
    again.load(registry)
    return again


def test_the_registry_brings_it_all_back() -> None:
    registry = Registry(":memory:")
    dead = DeadSet()
    batches = Batches(dead)
    batches.decide(3, adopt())
    batches.decide(4, adopt("more", FIRST + 5))
    batches.decide(5, cancel(adopt("more", FIRST + 5), Spared(Key(DAY, FIRST + 6), "ann", NAMESPACE)))
    batches.ended(FIRST, *ANN)
    again = flushed(batches, registry)
    assert not batches.changed
    assert again.next_seq == batches.next_seq == FIRST + 10
    for name, batch in batches.by_name.items():
        assert again.by_name[name].stored() == batch.stored()
        assert again.by_name[name].files == batch.files
    assert again._dead.between(0, 1 << 60).tolist() == [FIRST + 5, FIRST + 7, FIRST + 8, FIRST + 9]
    registry.close()


def test_what_is_past_is_forgotten_in_two_steps_and_its_seqs_are_never_used_again() -> None:
    registry = Registry(":memory:")
    dead = DeadSet()
    batches = Batches(dead)
    batches.decide(3, adopt())
    batches.decide(4, cancel(adopt()))
    assert not batches.past(Key(DAY + HOUR_MS, 0))
    past = batches.past(Key(DAY + HOUR_MS + 10, 0))
    assert len(dead) == 5, "the wheel is to be swept first"
    batches.let_go(past)
    assert len(dead) == 0
    assert not batches.past(Key(DAY + HOUR_MS + 10, 0))
    again = flushed(batches, registry)
    assert again.by_name["letters"].files == []
    assert len(again._dead) == 0
    again.forget(Key(DAY + 8 * DAY_MS, 0))
    assert not again.by_name
    last = flushed(again, registry)
    assert not last.by_name
    assert last.next_seq == FIRST + 5
    registry.close()


def test_a_batch_with_a_message_that_stands_apart_stays_known() -> None:
    batches = decided(adopt())
    batches.moved(FIRST, *ANN)
    batches.let_go(batches.past(Key(DAY + 30 * DAY_MS, 0)))
    batches.forget(Key(DAY + 30 * DAY_MS, 0))
    assert batches.of(FIRST) is not None
    batches.ended(FIRST, *ANN, apart=True)
    batches.forget(Key(DAY + 30 * DAY_MS, 0))
    assert batches.of(FIRST) is None


# In the journal


def append(bench: Bench, *records: Record) -> None:
    bench.journal.append(list(records), lambda error: None)
    bench.rest()


def put(owner: str, origin: Key, kills: Key, fire_at_ms: int) -> Put:
    return Put(
        fire_at_ms, fire_at_ms, 0, "public/default", FOREIGN, None, owner, "bulk", None, None, origin, 1, False, b"",
        {}, 0, None, kills,
    )  # fmt: skip


def end(owner: str, origin: Key, kills: Key) -> Finalise:
    return Finalise(
        kills,
        origin,
        "sent",
        5,
        None,
        None,
        1,
        5,
        5,
        "public/default",
        FOREIGN,
        None,
        owner,
        "bulk",
        None,
        False,
    )


def state(bench: Bench) -> tuple[Any, ...]:
    batches = {name: (batch.stored(), batch.files) for name, batch in bench.batches.by_name.items()}
    dead = bench.dead.between(FIRST, 1 << 60).tolist()
    return dict(bench.pending.by_holder), dict(bench.counters), batches, dead, bench.batches.next_seq


def test_a_restart_arrives_at_the_same_counts_wherever_the_registry_was() -> None:
    for flush_after in range(6):
        bench = Bench()
        steps: list[Record] = [
            adopt(),
            end("ann", Key(DAY, FIRST), Key(DAY, FIRST)),
            put("ann", Key(DAY, FIRST + 1), Key(DAY, FIRST + 1), DAY + 9),
            adopt("more", FIRST + 5),
            cancel(adopt(), Spared(Key(DAY, FIRST + 2), "ann", NAMESPACE)),
        ]
        for at, record in enumerate(steps):
            if at == flush_after:
                bench.ask(bench.engine.flush())
            bench.journal.append([record], lambda error: None)
            bench.commit()
        before = state(bench)
        bench.reopen()
        assert state(bench) == before
        owners, counters, _, dead, next_seq = before
        assert owners == {ANN: 5, BOB: 2}
        assert counters["accepted"] == 10
        assert counters["cancelled"] == 2
        assert dead == [FIRST, FIRST + 1, FIRST + 3, FIRST + 4]
        assert next_seq == FIRST + 10
