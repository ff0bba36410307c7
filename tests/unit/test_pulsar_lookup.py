"""Questions of Pulsar clients about topics: whether one is there, where it is, and what a name alone may bring about."""

from typing import Any

import pytest

from tarry.core.rules.policy import Policy
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Type

ELSEWHERE = "persistent://acme/eu/t"
Partitions = wire.CommandPartitionedTopicMetadataResponse


def partitions(client: Client, topic: str, **fields: Any) -> wire.CommandPartitionedTopicMetadataResponse:
    asked = wire.CommandPartitionedTopicMetadata(topic=topic, request_id=1, **fields)
    return client.ask(type=Type.PARTITIONED_METADATA, partitionMetadata=asked).partitionMetadataResponse


def lookup(client: Client, topic: str, **fields: Any) -> wire.CommandLookupTopicResponse:
    asked = wire.CommandLookupTopic(topic=topic, request_id=5, **fields)
    return client.ask(type=Type.LOOKUP, lookupTopic=asked).lookupTopicResponse


# Whether a topic is there (PIP-344)


def test_clients_are_told_that_they_may_ask_whether_a_topic_is_there() -> None:
    flags = Desk().client(connect=False).connect().connected.feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation


def test_a_topic_that_is_not_there_is_not_found_where_none_is_to_be_made() -> None:
    desk = Desk()
    client = desk.client()
    answer = partitions(client, TOPIC, metadata_auto_creation_enabled=False)
    assert (answer.response, answer.error) == (Partitions.Failed, Code.TopicNotFound)
    assert desk.bench.engine.topics.names() == []
    answer = partitions(client, TOPIC, metadata_auto_creation_enabled=True)
    assert (answer.response, answer.partitions) == (Partitions.Success, 0)


def test_a_topic_that_is_there_is_found_either_way() -> None:
    desk = Desk()
    client = desk.client()
    desk.bench.ask(desk.bench.engine.topics.create("plain"))
    desk.bench.ask(desk.bench.engine.topics.create("parts", 3))
    for enabled in (False, True):
        for name, count in (("plain", 0), ("parts", 3), ("parts-partition-2", 0)):
            answer = partitions(client, name, metadata_auto_creation_enabled=enabled)
            assert (answer.response, answer.partitions) == (Partitions.Success, count)


# Namespaces


def test_a_namespace_that_is_not_there_is_refused_and_not_made() -> None:
    desk = Desk()
    client = desk.client()
    assert partitions(client, ELSEWHERE).error == Code.TopicNotFound
    assert lookup(client, ELSEWHERE).error == Code.TopicNotFound
    produced, subscribed = client.produce(topic=ELSEWHERE), client.subscribe(topic=ELSEWHERE, permits=0)
    assert produced.error.error == subscribed.error.error == Code.TopicNotFound
    assert "acme/eu does not exist" in produced.error.message
    assert desk.bench.engine.catalogue.namespaces() == ["public/default"]


@pytest.mark.parametrize("made_by", ["catalogue", "topic", "policy"])
def test_a_namespace_that_was_entered_or_is_in_use_is_served(made_by: str) -> None:
    desk = Desk()
    engine, ask = desk.bench.engine, desk.bench.ask
    if made_by == "catalogue":
        ask(engine.catalogue.add_tenant("acme", b"{}"))
        ask(engine.catalogue.add_namespace("acme/eu"))
    elif made_by == "topic":
        ask(engine.topics.create("acme/eu/other"))
    else:
        ask(engine.set_policy("namespace", "acme/eu", Policy(tick_ms=10)))
    assert desk.client().produce(topic=ELSEWHERE).type == Type.PRODUCER_SUCCESS


def test_a_namespace_that_was_only_in_use_goes_with_its_last_topic() -> None:
    desk = Desk()
    engine, ask = desk.bench.engine, desk.bench.ask
    for topic in ("acme/eu/one", "acme/eu/two"):
        ask(engine.topics.create(topic))
    assert engine.catalogue.has_namespace("acme/eu")
    ask(engine.topics.delete("acme/eu/one"))
    desk.bench.reopen()
    engine = desk.bench.engine
    assert engine.catalogue.has_namespace("acme/eu")
    ask(engine.topics.delete("acme/eu/two"))
    assert not engine.catalogue.has_namespace("acme/eu")


# Where a topic is


def test_lookup_leads_here() -> None:
    answer = lookup(Desk().client(), TOPIC)
    assert (answer.request_id, answer.brokerServiceUrl) == (5, "pulsar://127.0.0.1:6650")
    assert answer.proxy_through_service_url
    told = lookup(Desk(advertised_url="pulsar://there:1").client(), TOPIC)
    assert (told.brokerServiceUrl, told.proxy_through_service_url) == ("pulsar://there:1", False)


def test_a_listener_that_is_not_there_is_refused() -> None:
    answer = lookup(Desk().client(), TOPIC, advertised_listener_name="internal")
    # A code at which clients fail at once and do not try again.
    assert (answer.response, answer.error) == (wire.CommandLookupTopicResponse.Failed, Code.NotAllowedError)
    assert "no listener internal" in answer.message
