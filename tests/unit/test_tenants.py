"""Tenants do not meet: one owner's name in two namespaces is two owners, with groups, keys, limits and counts of their own."""

from itertools import product
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tarry.core.errors import Conflict, Invalid, TooManyPending
from tarry.core.limits import MAX_GROUP_MEMBERS
from tarry.core.messages.delivery import Delivered
from tarry.core.messages.message import Message
from tarry.core.rules.policy import Policy
from tarry.core.tenants.holder import Holder
from tarry.engine.state.batches import Batches
from tarry.index.manifest import BatchManifest, ManifestFile
from tarry.ledger.columns import Coded, coded, count_holders, holders_of
from tarry.ledger.record import FIRST_BATCH_SEQ, Adopt, Claim, StagedFile, encode
from tarry.ledger.record import decode as decode_record
from tests.unit.engine_kit import FOREIGN, Bench, schedule_arrow

A, B = "acme/a", "acme/b"
DAY = 1_900_000_000_000


@pytest.fixture
def bench() -> Bench:
    return Bench()


def member(namespace: str, **fields: Any) -> Message:
    return Message(**{"destination": FOREIGN, "namespace": namespace, "owner": "ann", "group": "g", "delay_ms": 1000, **fields})  # fmt: skip


# Groups


def test_a_foreign_message_does_not_cancel_those_of_a_group_of_the_same_name(bench: Bench) -> None:
    mine = bench.ask(bench.engine.schedule(member(A, delay_ms=60_000)))
    theirs = bench.ask(bench.engine.schedule(member(B)))
    bench.wait(1000)
    bench.verdict(Delivered())
    assert (bench.state(theirs.id), bench.state(mine.id)) == ("sent", "scheduled")
    bench.crash()
    bench.start()
    bench.wait(60_000)
    bench.verdict(Delivered())
    assert bench.state(mine.id) == "sent"


def test_nor_does_one_that_is_fired_into_a_topic(bench: Bench) -> None:
    mine = bench.ask(bench.engine.schedule(member(A, destination=f"persistent://{A}/t", delay_ms=60_000)))
    theirs = bench.ask(bench.engine.schedule(member(B, destination=f"persistent://{B}/t")))
    bench.wait(1000)
    assert (bench.state(theirs.id), bench.state(mine.id)) == ("sent", "scheduled")


def test_nor_does_one_that_is_sent_by_command(bench: Bench) -> None:
    mine = bench.ask(bench.engine.schedule(member(A)))
    theirs = bench.ask(bench.engine.schedule(member(B)))
    answer = bench.engine.send(theirs.id)
    bench.rest()
    bench.verdict(Delivered())
    assert answer.settled
    assert bench.state(mine.id) == "scheduled"


def test_a_conflict_does_not_tell_of_another_tenants_group(bench: Bench) -> None:
    for _ in range(MAX_GROUP_MEMBERS):
        bench.ask(bench.engine.schedule(member(A, delay_ms=60_000)))
    assert bench.refused(bench.engine.schedule(member(A)), Conflict).state == "full"
    bench.ask(bench.engine.schedule(member(B)))
    bench.wait(1000)
    bench.verdict(Delivered())
    assert bench.refused(bench.engine.schedule(member(B)), Conflict).state == "closed"
    # Nor can it be used: whoever has no due instant needs a group of its own that has one.
    untimed = member("acme/c", delay_ms=None)
    assert bench.refused(bench.engine.schedule(untimed), Conflict).state == "untimed"


def test_a_group_is_led_within_its_namespace(bench: Bench) -> None:
    bench.ask(bench.engine.schedule(member(B, group="led", delay_ms=60_000)))
    leader = Message(destination=FOREIGN, namespace=A, owner="ann", leads="led", delay_ms=1000)
    scheduled = bench.ask(
        bench.engine.schedule_many([leader, member(A, group="led", delay_ms=5)], all_or_none=True)
    )
    assert scheduled[1].due_at_ms is None
    assert bench.engine.group_owners(A, "led") == {"ann"} == bench.engine.group_owners(B, "led")
    bench.ask(bench.engine.cancel(scheduled[0].id))
    assert bench.state(scheduled[1].id) == "cancelled"
    assert bench.engine.group_owners(B, "led") == {"ann"}


# Idempotency keys


def keyed(namespace: str, payload: bytes) -> Message:
    return Message(
        destination=FOREIGN,
        namespace=namespace,
        owner="ann",
        delay_ms=60_000,
        payload=payload,
        idempotency_key="k",
    )


def test_keys_of_two_tenants_are_two_keys(bench: Bench) -> None:
    # Both on their way at once, and then both known.
    answers = [bench.engine.schedule(keyed(namespace, namespace.encode())) for namespace in (A, B)]
    first = [bench.ask(answer) for answer in answers]
    assert len({one.id for one in first}) == 2
    for flushed in (False, True):
        if flushed:
            bench.ask(bench.engine.flush())
            bench.reopen()
        for namespace, one in zip((A, B), first, strict=True):
            again = bench.ask(bench.engine.schedule(keyed(namespace, namespace.encode())))
            assert (again.id, again.repeated) == (one.id, True)
            other = bench.engine.schedule(keyed(namespace, b"another request"))
            assert bench.refused(other, Conflict).state == "reused"


def test_the_namespace_of_a_topic_counts_as_well(bench: Bench) -> None:
    asked = [msgspec.structs.replace(keyed(A, b""), destination=f"persistent://{one}/t", namespace=None) for one in (A, B)]  # fmt: skip
    assert not any(bench.ask(bench.engine.schedule(one)).repeated for one in asked)
    assert all(bench.ask(bench.engine.schedule(one)).repeated for one in asked)


# Limits and counts


def test_another_tenant_does_not_use_up_a_limit() -> None:
    bench = Bench(broker_policy=Policy(max_pending_per_owner=2))
    for _ in range(2):
        bench.schedule(FOREIGN, namespace=B, owner="ann", delay_ms=1000)
    over = Message(destination=FOREIGN, namespace=B, owner="ann", delay_ms=1000)
    bench.refused(bench.engine.schedule(over), TooManyPending)
    bench.schedule(FOREIGN, namespace=A, owner="ann", delay_ms=1000)
    many = bench.ask(bench.engine.schedule_many([msgspec.structs.replace(over, namespace=A)] * 2))
    assert [type(one) for one in many[1:]] == [TooManyPending]


def test_nor_as_columns() -> None:
    bench = Bench(broker_policy=Policy(max_pending_per_owner=2))
    rows = pa.record_batch({"destination": [f"persistent://{one}/t" for one in (B, B, B, A, A)]})
    result = bench.ask(
        schedule_arrow(bench.engine, rows, Message(destination="", owner="ann", delay_ms=1000))
    )
    assert {row: type(error) for row, error in result.errors.items()} == {2: TooManyPending}
    assert bench.pending.by_holder == {Holder(A, "ann"): 2, Holder(B, "ann"): 2}


def test_holders_are_counted_alike_whether_there_are_few_or_many() -> None:
    for places, owners in ((2, 3), (50, 70)):
        pairs = list(product([f"n/{n % 7}" for n in range(places)], [f"o{n}" for n in range(owners)]))[::3]
        namespaces, names = coded([one for one, _ in pairs]), coded([one for _, one in pairs])
        expected: dict[Holder, int] = {}
        for pair in pairs:
            expected[Holder(*pair)] = expected.get(Holder(*pair), 0) + 1
        assert count_holders(holders_of(namespaces, names)) == expected
    sparse = Coded([f"n/{n}" for n in range(100)], coded([str(n) for n in range(100)]).codes)
    assert count_holders(holders_of(sparse, coded([f"o{n}" for n in range(100)])))[Holder("n/7", "o7")] == 1


# Batches


def manifest(bench: Bench, held: dict[str, dict[str, int]] | None, **changes: Any) -> BatchManifest:
    file = ManifestFile(
        path="staged/x/0.parquet", size_bytes=1, rows=4, slot="300000_0", low_ms=DAY, high_ms=DAY
    )
    said: dict[str, Any] = {
        "ledger": bench.ledger.ledger_id.hex(), "files": [file], "owners": {"ann": 3, "bob": 1},
        "namespaces": {A: DAY, B: DAY}, "held": held or {},
    }  # fmt: skip
    return BatchManifest(**{**said, **changes})


def test_a_batch_is_counted_by_namespace_and_owner(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("namespace", A, Policy(max_pending_per_owner=2)))
    held = {A: {"ann": 1, "bob": 1}, B: {"ann": 2}}
    bench.ask(bench.engine.batches.adopt("one", manifest(bench, held)))
    counts = {Holder(A, "ann"): 1, Holder(A, "bob"): 1, Holder(B, "ann"): 2}
    assert bench.pending.by_holder == counts
    bench.ask(bench.engine.flush())
    bench.reopen()
    assert bench.pending.by_holder == counts
    # Two more of ann's would be one too many there; in the other namespace they are not.
    more = {A: {"ann": 2, "bob": 1}, B: {"ann": 1}}
    bench.refused(bench.engine.batches.adopt("two", manifest(bench, more)), TooManyPending)
    bench.ask(bench.engine.batches.adopt("two", manifest(bench, {A: {"ann": 1}, B: {"ann": 2, "bob": 1}})))
    for name in ("one", "two"):
        answer = bench.engine.batches.cancel(name)
        bench.wait(1)
        bench.ask(answer)
    assert bench.pending.by_holder == {}


@pytest.mark.parametrize(
    "held",
    [None, {A: {"ann": 3}}, {A: {"ann": 3, "bob": 1}, "acme/c": {}}, {A: {"ann": 3}, B: {"eve": 1}}],
    ids=["not said", "too few", "elsewhere", "others"],
)
def test_a_batch_of_several_namespaces_says_what_belongs_where(
    bench: Bench, held: dict[str, dict[str, int]] | None
) -> None:
    assert bench.refused(bench.engine.batches.adopt("one", manifest(bench, held)), Invalid).field == "held"
    assert not bench.pending.by_holder


def test_of_one_namespace_it_need_not(bench: Bench) -> None:
    bench.ask(bench.engine.batches.adopt("one", manifest(bench, None, namespaces={A: DAY})))
    assert bench.pending.by_holder == {Holder(A, "ann"): 3, Holder(A, "bob"): 1}


def test_records_of_earlier_versions_still_decode() -> None:
    claim = Claim(7, "g", "ann", 5)
    files = [StagedFile("staged/x/0.parquet", 1, 3, "300000_0", DAY, DAY)]
    adopt = Adopt("letters", FIRST_BATCH_SEQ, 3, 7, 6, files, {"ann": 2, "bob": 1}, [A, B])
    for record, added in ((claim, 1), (adopt, 1)):
        body = msgspec.msgpack.decode(encode(record).body)
        assert decode_record(msgspec.msgpack.encode(body[:-added])) == record
    from tarry.core.sets.deadset import DeadSet

    batches = Batches(DeadSet())
    # Which message is in which namespace nobody knows: they are counted by owner alone, in and out.
    assert batches.decide(1, adopt) == {Holder("", "ann"): 2, Holder("", "bob"): 1}
    assert batches.ended(FIRST_BATCH_SEQ, B, "ann") == Holder("", "ann")
    assert batches.by_name["letters"].waiting == {Holder("", "ann"): 1, Holder("", "bob"): 1}
