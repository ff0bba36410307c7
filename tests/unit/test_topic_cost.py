"""Costs of topics: memory and registry of one with one entry, flushes with very many, and how many a namespace may have."""

import gc
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from tarry.core.errors import Conflict, Invalid, Unavailable
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer
from tarry.engine.journal import units
from tarry.engine.settings import EngineSettings
from tarry.engine.topics import topic_records
from tarry.engine.topics.entries import NewEntry
from tarry.engine.topics.topic import Topic
from tarry.ledger.ledger import LedgerSettings
from tarry.registry.registry import Registry
from tests.unit.engine_kit import Bench, full
from tests.unit.pulsar_kit import TOPIC, Desk, Type

COUNT = 1_500
KIB = 1024
STATE = ("engine/topics/topic.py", "engine/topics/topic_records.py", "engine/topics/topics.py", "engine/topics/topic.py",
         "engine/topics/publication.py", "engine/journal/journal.py", "core/sets/savedset.py", "core/sets/seqset.py")  # fmt: skip
"""Where what is kept of a topic is allocated."""


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=16 << 20))


def publish_to_many(bench: Bench, count: int, **fields: Any) -> None:
    for number in range(count):
        _ = bench.engine.topics.publish(f"topic-{number}", [NewEntry(payload=b"x", **fields)])
        if number % 200 == 0:
            bench.rest()
    bench.wait(2000)


def grown(work: Callable[[], None]) -> int:
    """How many bytes more are allocated where topics keep what they know."""
    tracemalloc.start()
    try:
        work()
        gc.collect()
        kept = tracemalloc.take_snapshot().statistics("filename")
    finally:
        tracemalloc.stop()
    return sum(one.size for one in kept if one.traceback[0].filename.endswith(STATE))


@pytest.mark.parametrize("delayed", [False, True])
def test_a_topic_with_one_entry_costs_two_kibibytes_at_the_most(bench: Bench, delayed: bool) -> None:
    due = {"deliver_at_ms": bench.now_ms + 3_600_000} if delayed else {}
    bench.publish("warm", b"x")
    bench.wait(2000)
    rows_before = len(bench.registry.serialize())
    memory = grown(lambda: publish_to_many(bench, COUNT, **due))
    # As much again is round about them in a real process: the allocator's, and names.
    assert memory / COUNT < KIB
    assert (len(bench.registry.serialize()) - rows_before) / COUNT < 2 * KIB


def test_a_hole_in_the_acknowledgements_costs_little_in_the_registry(bench: Bench) -> None:
    sub = bench.subscribe("t")
    bench.publish("t", *[b"x"] * 4000)
    bench.ask(sub.ack([3, 3999]))
    bench.wait(2000)
    ((_, data),) = [(key, data) for key, data in bench.registry.acks.rows()]
    assert len(data) == 4
    bench.reopen()
    assert bench.engine.topics.subscription("t", "sub").backlog == 3998


def test_a_flush_visits_the_topics_that_changed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_to_many(bench, 300)
    visited: list[str] = []
    save = Topic.save

    def noted(self: Topic, registry: Registry) -> None:
        visited.append(self.name)
        save(self, registry)

    monkeypatch.setattr(Topic, "save", noted)
    bench.publish("topic-7", b"y")
    bench.wait(2000)
    assert visited == [full("topic-7")]


def test_of_very_many_topics_most_are_saved_before_the_flush(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_records, "SAVED_TOGETHER", 10)
    at_once: list[int] = []
    cut = bench.engine_state.cut

    def counted(last_seq: int) -> Any:
        at_once.append(len(bench.engine_state.topics._touched))
        return cut(last_seq)

    monkeypatch.setattr(bench.engine_state, "cut", counted)
    publish_to_many(bench, 500)
    assert max(at_once) <= 10
    bench.crash()
    bench.start()
    assert len(bench.engine.topics.names()) == 500
    assert all(bench.engine.topics.stats(name).next_entry == 1 for name in bench.engine.topics.names())


def test_what_lives_in_very_many_topics_is_looked_for_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits until all topics were asked which segments of the ledger they need."""
    monkeypatch.setattr(topic_records, "LOOKED_AT_TOGETHER", 20)
    bench = Bench(
        settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000),
        ledger_settings=LedgerSettings(segment_bytes=1 << 16),
    )
    asked = 0
    needed = Topic.needed_seqs

    def counted(self: Topic, *args: Any) -> Any:
        nonlocal asked
        asked += 1
        return needed(self, *args)

    monkeypatch.setattr(Topic, "needed_seqs", counted)
    publish_to_many(bench, 500)
    publish_to_many(bench, 500)
    most = 0
    for _ in range(1000):
        before = asked
        bench.leap(10)
        most = max(most, asked - before)
    assert asked > 500
    assert most <= 20
    assert bench.first_seq > 1
    for name in bench.engine.topics.names():
        assert len(bench.drain(name).got) == 2


def steps_of(bench: Bench, answer: Answer[Any]) -> list[int]:
    """How many topics came or went in each turn, until the answer is there; others are served after the first one."""
    counts = [len(bench.engine.topics.names())]
    other = bench.engine.topics.publish("other/place/t", [NewEntry(payload=b"x")])
    while not answer.settled:
        bench.tick()
        bench.commit()
        counts.append(len(bench.engine.topics.names()))
        assert other.settled
    return [abs(after - before) for before, after in pairwise(counts)]


def test_a_namespace_with_very_many_topics_is_removed_in_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their policies and schemas, which count as topics do; what a crash leaves can be removed."""
    monkeypatch.setattr(units, "WRITTEN_TOGETHER", 10)
    engine, names = bench.engine, [f"acme/ns/t{number}" for number in range(95)]
    bench.ask(engine.catalogue.add_tenant("acme", b"{}"))
    bench.ask(engine.catalogue.add_namespace("acme/ns"))
    for name in names:
        bench.publish(name, b"x")
        bench.ask(engine.catalogue.enter("schema", f"persistent://{name}/0", b"{}"))
    for name in ("acme/ns/t1", "acme/ns/not-there"):
        bench.ask(engine.set_policy("topic", name, Policy(tick_ms=5)))
    bench.publish("other/place/t", b"x")
    removed = engine.catalogue.remove_namespace("acme/ns", force=True)
    for _ in range(3):
        bench.commit()
    assert not removed.settled
    assert not engine.catalogue.has_namespace("acme/ns"), "a client that connects again made its topic anew"
    bench.reopen()
    engine = bench.engine
    assert engine.catalogue.has_namespace("acme/ns")
    assert 0 < len(engine.topics.names("acme/ns")) < 95
    changed = steps_of(bench, engine.catalogue.remove_namespace("acme/ns", force=True))
    assert 0 < max(changed) <= 10
    for _ in range(2):
        engine = bench.engine
        assert engine.topics.names() == ["persistent://other/place/t"]
        assert [engine.policy("topic", name) for name in (*names, "acme/ns/not-there")] == [None] * 96
        assert all(engine.catalogue.get("schema", f"persistent://{name}/0") is None for name in names)
        assert engine.catalogue.namespaces() == ["other/place", "public/default"]
        bench.reopen()


def test_a_tenant_is_removed_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "WRITTEN_TOGETHER", 10)
    for number in range(60):
        bench.publish(f"acme/ns-{number % 3}/t{number}", b"x")
    bench.publish("other/place/t", b"x")
    changed = steps_of(bench, bench.engine.catalogue.remove_tenant("acme", force=True))
    assert 0 < max(changed) <= 10
    assert bench.engine.catalogue.tenants() == ["other", "public"]


def test_a_removal_for_which_there_is_no_room_is_told_and_may_be_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "WRITTEN_TOGETHER", 10)
    for number in range(30):
        bench.publish(f"acme/ns/t{number}", b"x")
    removed = bench.engine.catalogue.remove_namespace("acme/ns", force=True)
    append, full_disk = bench.ledger.append_unit, Unavailable("there is no room")
    monkeypatch.setattr(bench.ledger, "append_unit", mock.Mock(side_effect=full_disk))
    assert bench.refused(removed, Unavailable) is full_disk
    monkeypatch.setattr(bench.ledger, "append_unit", append)
    assert bench.engine.catalogue.has_namespace("acme/ns")
    assert len(bench.engine.topics.names("acme/ns")) == 20
    bench.ask(bench.engine.catalogue.remove_namespace("acme/ns", force=True))
    assert not bench.engine.catalogue.has_namespace("acme/ns")


def test_very_many_partitions_are_made_and_ended_in_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "WRITTEN_TOGETHER", 10)
    bench.publish("other/place/t", b"x")
    changed = steps_of(bench, bench.engine.topics.create("parted", 95))
    assert 0 < max(changed) <= 10
    assert bench.engine.topics.partitions(full("parted")) == 95
    deleted = bench.engine.topics.delete("parted")
    bench.commit()
    bench.reopen()
    assert 1 < len(bench.engine.topics.names("public/default")) < 96, "a crash in the middle"
    assert not deleted.settled
    changed = steps_of(bench, bench.engine.topics.delete("parted"))
    assert 0 < max(changed) <= 10
    assert bench.engine.topics.names() == ["persistent://other/place/t"]


def test_a_namespace_has_so_many_topics(bench: Bench) -> None:
    topics = bench.engine.topics
    bench.ask(bench.engine.set_policy("namespace", "public/default", Policy(max_topics=3)))
    bench.ask(topics.create("a"))
    bench.publish("b", b"x")
    bench.refused(topics.create("parted", 2), Conflict)
    bench.subscribe("c")
    for refused in (
        topics.create("d"),
        topics.publish("d", [NewEntry(payload=b"x")]),
        topics.subscribe("d", "sub"),
        topics.subscribe("d", "reader", durable=False),
    ):
        told = bench.refused(refused, Conflict)
        assert "namespace public/default has its limit of 3 topics, set on " in str(told)
        assert "max_topics" in str(told)
    bench.publish("a", b"x")
    bench.publish("other/place/d", b"x")
    bench.ask(topics.delete("a"))
    bench.ask(topics.create("d"))
    bench.ask(bench.engine.set_policy("namespace", "public/default", Policy(max_topics=0)))
    bench.ask(topics.create("e"))


def test_a_message_for_one_topic_too_many_is_refused_or_fails_with_the_reason(bench: Bench) -> None:
    accepted = [bench.schedule(f"due-{number}", delay_ms=1000, listed=True) for number in range(3)]
    bench.ask(bench.engine.set_policy("namespace", "public/default", Policy(max_topics=2)))
    bench.ask(bench.engine.topics.create("dead-letters"))
    bench.ask(bench.engine.topics.create("other"))
    with pytest.raises(Conflict, match="limit of 2 topics"):
        bench.schedule("one-more", delay_ms=1000)
    bench.wait(1500)
    for one in accepted:
        view = bench.view(one.id)
        assert (view.state, "limit of 2 topics" in (view.reason or "")) == ("failed", True)
    assert len(bench.engine.topics.names()) == 2


def test_a_pulsar_client_is_told_of_the_limit() -> None:
    desk = Desk()
    desk.bench.ask(desk.bench.engine.set_policy("namespace", "public/default", Policy(max_topics=1)))
    client = desk.client()
    assert client.produce().type == Type.PRODUCER_SUCCESS
    refused = desk.client().produce(topic=TOPIC + "2")
    assert "limit of 1 topics" in refused.error.message


@pytest.mark.parametrize("limit", [-1, 1 << 60])
def test_a_limit_that_cannot_be_is_refused(limit: int) -> None:
    with pytest.raises(Invalid, match="max_topics"):
        Policy(max_topics=limit).check()
