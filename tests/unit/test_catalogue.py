"""The catalogue: tenants, namespaces and schemas are kept, and what is in use is there without being entered."""

import pytest

from tarry.core.errors import Conflict, Invalid, NotFound
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer
from tarry.ledger.record import Catalogued
from tests.unit.engine_kit import Bench, full


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_in_use_is_there(bench: Bench) -> None:
    catalogue = bench.engine.catalogue
    assert (catalogue.tenants(), catalogue.namespaces()) == (["public"], ["public/default"])
    bench.publish("acme/eu/orders", b"x")
    bench.ask(bench.engine.set_policy("namespace", "acme/us", Policy(tick_ms=5)))
    bench.ask(catalogue.add_tenant("empty", b"{}"))
    assert catalogue.tenants() == ["acme", "empty", "public"]
    assert catalogue.namespaces("acme") == ["acme/eu", "acme/us"]
    assert catalogue.namespaces("acm") == []


def test_a_namespace_needs_its_tenant_and_is_entered_once(bench: Bench) -> None:
    catalogue = bench.engine.catalogue
    bench.refused(catalogue.add_namespace("acme/eu"), NotFound)
    bench.ask(catalogue.add_tenant("acme", b"{}"))
    bench.ask(catalogue.add_namespace("acme/eu"))
    bench.refused(catalogue.add_namespace("acme/eu"), Conflict)
    bench.refused(catalogue.add_namespace("acme"), Invalid)
    bench.refused(catalogue.add_tenant("a b", b"{}"), Invalid)


@pytest.mark.parametrize("flushed", [False, True])
def test_it_survives_a_crash(bench: Bench, flushed: bool) -> None:
    catalogue = bench.engine.catalogue
    bench.ask(catalogue.add_tenant("acme", b'{"a":1}'))
    bench.ask(catalogue.add_namespace("acme/eu"))
    bench.ask(catalogue.add_namespace("acme/us"))
    bench.ask(catalogue.remove_namespace("acme/us"))
    bench.ask(catalogue.enter("schema", full("orders"), b"[]"))
    bench.ask(bench.engine.topics.create("parted", 3))
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    catalogue = bench.engine.catalogue
    assert catalogue.get("tenant", "acme") == b'{"a":1}'
    assert catalogue.namespaces("acme") == ["acme/eu"]
    assert catalogue.get("schema", full("orders")) == b"[]"
    assert catalogue.get("schema", full("bills")) is None
    assert bench.engine.topics.partitions(full("parted")) == 3


@pytest.mark.parametrize("flushed", [False, True])
def test_a_sort_that_only_a_newer_version_knows_is_kept_for_it(bench: Bench, flushed: bool) -> None:
    written: Answer[None] = Answer()
    bench.journal.append(
        [Catalogued("of-tomorrow", "name", b"x"), Catalogued("tenant", "acme", b"{}")],
        written.completer(lambda: None),
    )
    bench.ask(written)
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    bench.ask(bench.engine.flush())
    rows = dict(bench.registry.catalogue.rows())
    assert rows[("of-tomorrow", "name")] == b"x"
    assert bench.engine.catalogue.tenants() == ["acme", "public"]


def test_what_holds_something_is_removed_only_by_force(bench: Bench) -> None:
    catalogue = bench.engine.catalogue
    bench.ask(catalogue.add_tenant("acme", b"{}"))
    bench.publish("acme/eu/orders", b"x", deliver_at_ms=bench.now_ms + 1000)
    bench.ask(bench.engine.set_policy("topic", "acme/eu/orders", Policy(tick_ms=5)))
    bench.ask(catalogue.enter("schema", "persistent://acme/eu/orders", b"[]"))
    bench.publish("acme/eu2/orders", b"x")
    bench.refused(catalogue.remove_namespace("acme/eu"), Conflict)
    bench.refused(catalogue.remove_tenant("acme"), Conflict)
    bench.ask(catalogue.remove_namespace("acme/eu", force=True))
    assert catalogue.namespaces("acme") == ["acme/eu2"]
    assert bench.engine.topics.names() == ["persistent://acme/eu2/orders"]
    assert bench.engine.policy("topic", "acme/eu/orders") is None
    assert catalogue.get("schema", "persistent://acme/eu/orders") is None
    bench.ask(catalogue.remove_tenant("acme", force=True))
    assert catalogue.tenants() == ["public"]
    bench.refused(catalogue.remove_tenant("acme"), NotFound)
    bench.refused(catalogue.remove_namespace("acme/eu"), NotFound)


# Partitions


def test_a_partitioned_topic_and_its_partitions(bench: Bench) -> None:
    topics = bench.engine.topics
    bench.publish("parted-partition-1", b"was here before")
    bench.ask(topics.create("parted", 2))
    assert topics.names() == [full("parted"), full("parted-partition-0"), full("parted-partition-1")]
    assert (topics.partitions(full("parted")), topics.partitions(full("parted-partition-0"))) == (2, 0)
    assert topics.stats("parted-partition-1").next_entry == 1
    bench.ask(topics.create("parted", 4))
    assert topics.partitions(full("parted")) == 4
    bench.refused(topics.create("parted", 3), Conflict)
    bench.refused(topics.create("parted", -1), Invalid)
    bench.refused(topics.create("huge", 1 << 20), Invalid)
    bench.ask(topics.delete("parted"))
    assert topics.names() == []


def test_a_topic_with_entries_of_its_own_gets_no_partitions(bench: Bench) -> None:
    bench.publish("plain", b"x")
    bench.refused(bench.engine.topics.create("plain", 2), Conflict)
    assert bench.engine.topics.partitions(full("plain")) == 0
