"""Files that declare subscriptions, what applications say of theirs, configuration files: every field that can be wrong."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tarry.core.errors import Invalid
from tarry.doors.dapr.configuration import delayed_messaging
from tarry.doors.dapr.resources import BadResource, read_documents
from tarry.doors.dapr.subscriptions import AppSubscription, Bulk, declarative, programmatic

V1, V2 = "dapr.io/v1alpha1", "dapr.io/v2alpha1"
SPEC = {"pubsubname": "pubsub", "topic": "orders", "route": "/in"}
ROUTED = {"pubsubname": "pubsub", "topic": "orders", "routes": {"default": "/in"}}


def declared(folder: Path, version: Any = V1, **spec: Any) -> list[AppSubscription]:
    whole = {**(ROUTED if version == V2 else SPEC), **spec}
    document = {"apiVersion": version, "kind": "Subscription", "metadata": {"name": "s"}, "spec": whole}
    return loaded(folder, document)


def loaded(folder: Path, document: dict[str, Any]) -> list[AppSubscription]:
    file = folder / "subscription.yaml"
    file.write_text(yaml.safe_dump(document))
    return declarative(read_documents([file]))


def test_what_a_file_says(tmp_path: Path) -> None:
    rules = [{"match": 'event.type == "big"', "path": "/big"}]
    more = {
        "routes": {"rules": rules, "default": "/rest"}, "deadLetterTopic": "dead", "metadata": {"rawPayload": "true"},
        "bulkSubscribe": {"enabled": True, "maxMessagesCount": 5, "maxAwaitDurationMs": 50},
    }  # fmt: skip
    (found,) = declared(tmp_path, V2, **more)
    assert [(rule.match, rule.path) for rule in found.rules] == [
        ('event.type == "big"', "/big"),
        ("", "/rest"),
    ]
    assert (found.dead_letter_topic, found.raw, found.bulk) == ("dead", True, Bulk(5, 50))
    (plain,) = declared(tmp_path)
    assert (plain.pubsub, plain.topic, plain.bulk, plain.kind) == ("pubsub", "orders", None, "DECLARATIVE")


def test_names_of_fields_in_any_case(tmp_path: Path) -> None:
    routes = {"Rules": [{"Match": 'event.type == "Big"', "PATH": "/Big"}], "Default": "/Rest"}
    spec = {"PubsubName": "Pubsub", "TOPIC": "Orders", "Routes": routes, "DeadletterTopic": "Dead",
            "Metadata": {"Customer": "Mine"}, "bulksubscribe": {"Enabled": True, "maxMessagescount": 5}}  # fmt: skip
    document = {
        "APIVersion": V2,
        "Kind": "Subscription",
        "Metadata": {"Name": "s"},
        "Spec": spec,
        "Scopes": ["a"],
    }
    (found,) = loaded(tmp_path, document)
    (asked,) = programmatic(msgspec.json.encode([spec])).subscriptions
    for one in (found, asked):
        assert (one.pubsub, one.topic, one.dead_letter_topic) == ("Pubsub", "Orders", "Dead")
        assert [(rule.match, rule.path) for rule in one.rules] == [
            ('event.type == "Big"', "/Big"),
            ("", "/Rest"),
        ]
        assert one.metadata == {"Customer": "Mine"}
        assert one.bulk is not None
        assert one.bulk.max_count == 5
    assert found.scopes == ("a",)


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("dapr.io/v3", {}, "apiVersion", "'dapr.io/v3' is not one of dapr.io/v1alpha1, dapr.io/v2alpha1"),
    (V1, {"pubsubname": None}, "spec.pubsubname", "is empty in a subscription; give a name"),
    (V1, {"pubsubname": 5}, "spec.pubsubname", "Expected `str`, got `int`"),
    (V1, {"topic": ""}, "spec.topic", "is empty in a subscription; give a name"),
    (V1, {"topic": ["a"]}, "spec.topic", "Expected `str`, got `array`"),
    (V1, {"route": ""}, "spec.route", "has no path"),
    (V1, {"route": None}, "spec.route", "has no path"),
    (V1, {"routes": {"default": "/in"}}, "spec.routes", "is not a field of dapr.io/v1alpha1"),
    (V2, {"route": "/in"}, "spec.route", "is not a field of dapr.io/v2alpha1"),
    (V2, {"routes": {}}, "spec.routes", "has no path"),
    (V2, {"routes": "/in"}, "spec.routes", "Expected `object | null`, got `str`"),
    (V2, {"routes": {"rules": [{"match": "event.type =="}]}}, "spec.routes.rules.match", "ends too soon"),
    (V2, {"routes": {"rules": [{"match": "event.type == 1"}]}}, "spec.routes", "has no path"),
    (V2, {"routes": {"rules": [{"match": 5, "path": "/a"}]}}, "spec.routes.rules[0].match", "Expected `str`"),
    (V1, {"deadLetterTopic": 5}, "spec.deadLetterTopic", "Expected `str | null`, got `int`"),
    (V1, {"metadata": "raw"}, "spec.metadata", "Expected `object | null`, got `str`"),
    (V1, {"bulkSubscribe": {"enabled": "yes"}}, "spec.bulkSubscribe.enabled", "Expected `bool`, got `str`"),
    (V1, {"bulkSubscribe": {"maxMessagesCount": "5"}}, "spec.bulkSubscribe.maxMessagesCount", "Expected `int`"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "spec", "field", "reason"), WRONG)
def test_each_wrong_field_is_refused_by_file_document_and_name(
    tmp_path: Path, version: str, spec: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(BadResource, match=re.escape(reason)) as refused:
        declared(tmp_path, version, **spec)
    assert str(refused.value).startswith(f"{tmp_path / 'subscription.yaml'}: document 1: {field}: ")


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"spec": None}, "spec"), ({"spec": "x"}, "spec"), ({"scopes": "shop"}, "scopes"), ({"scopes": [5]}, "scopes")],
)  # fmt: skip
def test_a_subscription_without_its_parts(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    document = {"apiVersion": V1, "kind": "Subscription", "metadata": {"name": "s"}, "spec": SPEC}
    with pytest.raises(BadResource) as refused:
        loaded(tmp_path, document | changes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "wrong",
    [{}, {"pubsubname": ""}, {"topic": ""}, {"route": ""}, {"routes": {"rules": [{"match": "=="}]}}],
)  # fmt: skip
def test_one_wrong_subscription_of_an_application_costs_it_none_of_the_others(wrong: dict[str, Any]) -> None:
    said = [SPEC, SPEC | wrong if wrong else {}, SPEC | {"topic": "more"}]
    asked = programmatic(msgspec.json.encode(said))
    assert [one.topic for one in asked.subscriptions] == ["orders", "more"]
    assert len(asked.wrong) == 1


def test_what_is_no_list_of_subscriptions_is_refused_and_nothing_is_none() -> None:
    for odd in (b"{", b"{}", b'"x"', b'[{"topic":5}]', b"[5]"):
        with pytest.raises(Invalid):
            programmatic(odd)
    for none in (b"", b"null", b"[]"):
        assert programmatic(none).subscriptions == []


def configuration(folder: Path, **changes: Any) -> Path:
    file = folder / "config.yaml"
    document: dict[str, Any] = {
        "apiVersion": V1,
        "kind": "Configuration",
        "metadata": {"name": "c"},
    } | changes
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"apiVersion": "dapr.io/v9"}, "apiVersion", "is not one of"),
        ({"spec": "x"}, "spec", "is not a mapping"),
        ({"spec": {"features": "x"}}, "spec.features", "is not a list of mappings"),
        ({"spec": {"features": [{"enabled": True}]}}, "spec.features[1].name", "is missing or not text"),
        ({"spec": {"features": [{"name": "DelayedMessaging"}]}}, "spec.features[1].enabled", "neither true nor false"),
        ({"spec": {"features": [{"name": "DelayedMessaging", "enabled": "off"}]}}, "spec.features[1].enabled", "neither"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_wrong(
    tmp_path: Path, changes: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(BadResource, match=re.escape(reason)) as refused:
        delayed_messaging(configuration(tmp_path, **changes))
    assert refused.value.field == field


def test_the_feature_is_on_unless_a_configuration_says_otherwise(tmp_path: Path) -> None:
    def said(*features: tuple[str, bool]) -> bool:
        listed = [{"name": name, "enabled": enabled} for name, enabled in features]
        return delayed_messaging(configuration(tmp_path, spec={"features": listed}))

    assert delayed_messaging(None)
    assert said()
    assert said(("Other", False))
    assert not said(("delayedmessaging", False))
    assert said(("DelayedMessaging", True))
    with pytest.raises(BadResource, match="there is no such file"):
        delayed_messaging(tmp_path / "nothing.yaml")
