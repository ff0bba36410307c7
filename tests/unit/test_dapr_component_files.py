"""Component files: what they say, and every field that can be wrong."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarry.core.time.clock import SystemClock
from tarry.doors.dapr.components import BUILT_IN, ComponentDefinition, components_of
from tarry.doors.dapr.mounting import Mounts, mount
from tarry.doors.dapr.resources import BadResource, read_documents
from tarry.outlets.dapr.component import ComponentSurroundings


def component(**changes: Any) -> dict[str, Any]:
    """A component document; `spec__type="x"` changes or, with None, removes a field."""
    document: dict[str, Any] = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": "pubsub"},
        "spec": {
            "type": "pubsub.in-memory",
            "version": "v1",
            "metadata": [{"name": "redisHost", "value": "localhost:6379"}],
        },
    }
    for path, value in changes.items():
        *way, last = path.split("__")
        place = document
        for name in way:
            place = place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return document


def load(folder: Path, *documents: object, **environment: str) -> list[ComponentDefinition]:
    file = folder / "pubsub.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return components_of(read_documents([folder]), environment)


def only(folder: Path, *documents: object, **environment: str) -> ComponentDefinition:
    (found,) = load(folder, *documents, **environment)
    return found


def test_a_file_as_the_proposal_shows_it(tmp_path: Path) -> None:
    (tmp_path / "pubsub.yaml").write_text(
        """
apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: pubsub
spec:
  type: pubsub.in-memory
  version: v1
  metadata:
  - name: "enableDelayedMessaging"
    value: true
"""
    )
    (found,) = components_of(read_documents([tmp_path]), {})
    assert found.name == "pubsub"
    assert found.kind == "pubsub.in-memory"
    assert found.delayed
    assert found.custody == "ledger"
    assert found.properties == {"enableDelayedMessaging": "true"}


def test_names_of_fields_in_any_case(tmp_path: Path) -> None:
    """As Dapr reads them. The names in a component's metadata are of any case as well; their values are not touched."""
    (tmp_path / "pubsub.yaml").write_text(
        """
APIVersion: dapr.io/v1alpha1
Kind: Component
Metadata: {Name: pubsub}
Spec:
  Type: pubsub.in-memory
  Version: v1
  Metadata:
  - {Name: EnableDelayedMessaging, Value: true}
  - {NAME: secret, SecretKeyRef: {Name: A_SECRET, Key: A_SECRET}}
  - {name: variable, EnvRef: A_SECRET}
Scopes: [shop]
"""
    )
    (found,) = components_of(read_documents([tmp_path]), {"A_SECRET": "Hidden"})
    assert (found.name, found.kind, found.delayed, found.scopes) == (
        "pubsub",
        "pubsub.in-memory",
        True,
        ("shop",),
    )
    assert (found.properties["secret"], found.properties["variable"]) == ("Hidden", "Hidden")


def test_delays_are_off_unless_they_are_switched_on(tmp_path: Path) -> None:
    assert not only(tmp_path, component()).delayed
    assert BUILT_IN.delayed
    assert (BUILT_IN.name, BUILT_IN.kind) == ("pubsub", "pubsub.tarry")


def test_values_of_every_kind_become_text(tmp_path: Path) -> None:
    items = [
        {"name": "a", "value": True}, {"name": "b", "value": 5}, {"name": "c", "value": "x"},
        {"name": "d", "value": 1.5}, {"name": "e", "value": False}, {"name": "f"},
    ]  # fmt: skip
    properties = only(tmp_path, component(spec__metadata=items)).properties
    assert properties == {"a": "true", "b": "5", "c": "x", "d": "1.5", "e": "false", "f": ""}


def test_files_and_documents_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(yaml.safe_dump(component(metadata__name="three")))
    (tmp_path / "a.yaml").write_text(
        yaml.safe_dump_all([component(metadata__name="one"), None, component(metadata__name="two")])
    )
    (tmp_path / "notes.txt").write_text("not: yaml: at all")
    found = components_of(read_documents([tmp_path]), {})
    assert [(one.name, Path(one.file).name, one.number) for one in found] == [
        ("one", "a.yaml", 1), ("two", "a.yaml", 3), ("three", "b.yml", 1),
    ]  # fmt: skip


def test_other_kinds_of_resources_and_components_are_left_to_others(tmp_path: Path) -> None:
    subscription = {"apiVersion": "dapr.io/v2alpha1", "kind": "Subscription", "metadata": {"name": "s"}}
    assert load(tmp_path, subscription, component(spec__type="state.redis")) == []
    assert [one.kind for one in read_documents([tmp_path])] == ["Subscription", "Component"]


WRONG = [
    ({"apiVersion": None}, "apiVersion", "is missing"),
    ({"apiVersion": "dapr.io/v9"}, "apiVersion", "'dapr.io/v9' is not one of dapr.io/v1alpha1"),
    ({"kind": None}, "kind", "is missing"),
    ({"kind": 5}, "kind", "5 is not text; put it in quotes"),
    ({"metadata": "pubsub"}, "metadata", "is not a mapping"),
    ({"metadata__name": None}, "metadata.name", "is missing"),
    ({"metadata__name": 7}, "metadata.name", "7 is not text; put it in quotes"),
    ({"metadata__namespace": 7}, "metadata.namespace", "7 is not text; put it in quotes"),
    ({"spec": None}, "spec.type", "is missing"),
    ({"spec": "x"}, "spec", "is not a mapping"),
    ({"spec__type": None}, "spec.type", "is missing"),
    ({"spec__type": "pubsub.pigeon"}, "spec.type", "'pubsub.pigeon' is not one of "),
    ({"spec__version": "v2"}, "spec.version", "'v2' is not v1"),
    ({"spec__version": 1}, "spec.version", "1 is not text; put it in quotes"),
    ({"spec__ignoreErrors": "maybe"}, "spec.ignoreErrors", "is neither true nor false"),
    ({"spec__metadata": "x"}, "spec.metadata", "is not a list of mappings"),
    ({"spec__metadata": ["x"]}, "spec.metadata", "is not a list of mappings"),
    ({"spec__metadata": [{"value": "x"}]}, "spec.metadata[1].name", "is missing or not text"),
    ({"spec__metadata": [{"name": "a"}, {"name": "A"}]}, "spec.metadata.A", "is given twice"),
    ({"spec__metadata": [{"name": "a", "value": [1]}]}, "spec.metadata.a.value", "is neither text, a number"),
    ({"spec__metadata": [{"name": "a", "value": "b", "envRef": "C"}]}, "spec.metadata.a", "give one of them"),
    ({"spec__metadata": [{"name": "a", "envRef": 5}]}, "spec.metadata.a.envRef", "is not the name of"),
    ({"spec__metadata": [{"name": "a", "envRef": "X"}]}, "spec.metadata.a.envRef", "there is no secret 'X'"),
    ({"spec__metadata": [{"name": "a", "secretKeyRef": "X"}]}, "spec.metadata.a.secretKeyRef", "needs a name"),
    ({"spec__metadata": [{"name": "a", "secretKeyRef": {"name": "X", "key": "Y"}}]},
     "spec.metadata.a.secretKeyRef", "there is no secret 'X'"),
    ({"spec__metadata": [{"name": "enableDelayedMessaging", "value": "soon"}]},
     "spec.metadata.enableDelayedMessaging", "'soon' is neither true nor false"),
    ({"spec__metadata": [{"name": "delayedMessagingCustody", "value": "bank"}]},
     "spec.metadata.delayedMessagingCustody", "'bank' is not one of ledger, broker"),
    ({"auth__secretStore": "vault"}, "auth.secretStore", "component named 'vault'"),
    ({"auth__secretStore": 5}, "auth.secretStore", "5 is not text; put it in quotes"),
    ({"scopes": "shop"}, "scopes", "is not a list of texts"),
    ({"scopes": [5]}, "scopes", "is not a list of texts"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field", "reason"), WRONG, ids=[f"{one[1]}-{n}" for n, one in enumerate(WRONG)]
)
def test_each_wrong_field_is_refused_by_file_document_and_name(
    tmp_path: Path, changes: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(BadResource, match=re.escape(reason)) as refused:
        load(tmp_path, component(metadata__name="good"), component(**changes))
    assert str(refused.value).startswith(f"{tmp_path / 'pubsub.yaml'}: document 2: {field}: ")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "just text", "\x00"])
def test_what_is_no_mapping_or_no_yaml(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(BadResource, match=r"bad\.yaml: "):
        read_documents([tmp_path])


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadResource, match="there is no such file or folder"):
        read_documents([tmp_path / "none"])
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadResource, match="cannot be read"):
        read_documents([tmp_path])
    monkeypatch.setattr("tarry.doors.dapr.resources.MAX_FILE_BYTES", 2)
    with pytest.raises(BadResource, match="is larger than 2 bytes"):
        read_documents([tmp_path])


def test_two_components_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(BadResource, match=r"document 2: metadata\.name: 'pubsub' is the name of document 1"):
        load(tmp_path, component(), component())


# What only the component itself knows to be wrong


def mounted(folder: Path, *documents: object) -> Mounts:
    surroundings = ComponentSurroundings(name="", clock=SystemClock())
    return mount(load(folder, *documents), "shop", "eu", surroundings)


@pytest.mark.parametrize(
    ("kind", "field", "reason"),
    [
        ("pubsub.jetstream", "spec.metadata.natsURL", "is missing"),
        ("pubsub.kafka", "spec.metadata.brokers", "is missing"),
        ("pubsub.pulsar", "spec.metadata.host", "is missing"),
    ],
)
def test_a_component_that_cannot_be_made_is_refused_by_its_file(
    tmp_path: Path, kind: str, field: str, reason: str
) -> None:
    with pytest.raises(BadResource) as refused:
        mounted(tmp_path, component(spec__type=kind))
    assert str(refused.value) == f"{tmp_path / 'pubsub.yaml'}: document 1: {field}: {reason}"


def test_a_missing_library_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    for name in [
        name for name in sys.modules if name.startswith(("nats.", "tarry.outlets.dapr.brokers.jetstream"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        BadResource, match=r"spec\.type: pubsub\.jetstream needs the library nats.*tarry\[jetstream\]"
    ):
        mounted(tmp_path, component(spec__type="pubsub.jetstream"))


def test_a_component_whose_errors_are_ignored_is_left_out(tmp_path: Path) -> None:
    wrong = component(spec__type="pubsub.kafka", spec__ignoreErrors=True)
    assert list(mounted(tmp_path, wrong, component(metadata__name="good"))) == ["good"]


# Secrets

SECRET = [{"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "password"}}]


def store(kind: str, **properties: object) -> dict[str, Any]:
    return component(
        metadata__name="secrets",
        spec__type=f"secretstores.local.{kind}",
        spec__metadata=[{"name": name, "value": value} for name, value in properties.items()],
    )


def test_a_secret_from_the_environment(tmp_path: Path) -> None:
    document = component(spec__metadata=[*SECRET, {"name": "redisUsername", "envRef": "REDIS_USER"}])
    properties = only(tmp_path, document, redis="hush", REDIS_USER="me").properties
    assert properties == {"redisPassword": "hush", "redisUsername": "me"}
    named = component(spec__metadata=SECRET, auth__secretStore="secrets")
    assert only(tmp_path, named, store("env"), redis="hush").properties == {"redisPassword": "hush"}
    prefixed = store("env", prefix="MY_")
    assert only(tmp_path, named, prefixed, MY_redis="hush").properties == {"redisPassword": "hush"}


@pytest.mark.parametrize(
    ("content", "reference", "options"),
    [
        ({"redis": "hush"}, {"name": "redis", "key": "redis"}, {}),
        ({"redis": {"password": "hush"}}, {"name": "redis:password", "key": "redis:password"}, {}),
        ({"redis": {"password": "hush"}}, {"name": "redis.password"}, {"nestedSeparator": "."}),
        ({"redis": {"password": "hush"}}, {"name": "redis", "key": "password"}, {"multiValued": True}),
        ({"redis": ["no", "hush"]}, {"name": "redis:1"}, {}),
    ],
)
def test_a_secret_from_a_file(
    tmp_path: Path, content: object, reference: dict[str, str], options: dict[str, object]
) -> None:
    (tmp_path / "secrets.json").write_text(json.dumps(content))
    found = only(
        tmp_path,
        store("file", secretsFile=str(tmp_path / "secrets.json"), **options),
        component(
            spec__metadata=[{"name": "redisPassword", "secretKeyRef": reference}], auth__secretStore="secrets"
        ),
    )
    assert found.properties == {"redisPassword": "hush"}


def test_a_secrets_file_may_lie_beside_the_component_file(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text('{"redis": "hush"}')
    using = component(spec__metadata=SECRET, auth__secretStore="secrets")
    assert only(tmp_path, store("file", secretsFile="secrets.json"), using).properties == {
        "redisPassword": "hush"
    }


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), ("[", "is not JSON"), ("[]", "is not a JSON object")]
)
def test_a_secrets_file_that_is_none(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "secrets.json").write_text(content)
    with pytest.raises(BadResource, match=rf"document 1: spec\.metadata\.secretsFile: .*{reason}"):
        load(tmp_path, store("file", secretsFile=str(tmp_path / "secrets.json")))
    with pytest.raises(BadResource, match="secretsFile: is missing"):
        load(tmp_path, store("file"))


# Who may do what


def with_metadata(folder: Path, **properties: str) -> ComponentDefinition:
    items = [{"name": name, "value": value} for name, value in properties.items()]
    return only(folder, component(spec__metadata=items, scopes=["shop", "audit"]))


def test_scopes_of_applications(tmp_path: Path) -> None:
    found = with_metadata(tmp_path)
    assert found.open_to("shop")
    assert not found.open_to("stranger")
    assert only(tmp_path, component()).open_to("stranger")


def test_scopes_of_topics(tmp_path: Path) -> None:
    found = with_metadata(
        tmp_path, publishingScopes="shop=orders, invoices;audit=", SUBSCRIPTIONSCOPES="audit=orders"
    )
    assert found.publishable_by("shop", "orders")
    assert found.publishable_by("shop", "invoices")
    assert not found.publishable_by("shop", "others")
    assert not found.publishable_by("audit", "orders")
    assert found.publishable_by("stranger", "anything")
    assert found.subscribable_by("audit", "orders")
    assert not found.subscribable_by("audit", "invoices")
    assert found.subscribable_by("shop", "invoices")


def test_allowed_and_protected_topics(tmp_path: Path) -> None:
    found = with_metadata(
        tmp_path,
        allowedTopics="orders,invoices",
        protectedTopics="invoices",
        publishingScopes="shop=invoices",
    )
    assert not found.publishable_by("audit", "others")
    assert found.publishable_by("audit", "orders")
    assert not found.publishable_by("audit", "invoices")
    assert found.publishable_by("shop", "invoices")
    assert not found.publishable_by("shop", "orders")
    assert not found.subscribable_by("shop", "invoices")


def test_the_consumer_group(tmp_path: Path) -> None:
    assert with_metadata(tmp_path).consumer_group("shop", "eu") == "shop"
    assert with_metadata(tmp_path, consumerID="g-{appID}").consumer_group("shop", "eu") == "g-shop"
    namespaced = with_metadata(tmp_path, consumerID="{namespace}")
    assert namespaced.namespaced
    assert namespaced.consumer_group("shop", "eu") == "eu.shop"
    assert not with_metadata(tmp_path).namespaced
    unique = with_metadata(tmp_path, consumerID="{uuid}")
    assert unique.consumer_group("shop", "eu") != unique.consumer_group("shop", "eu")


def test_placeholders_in_any_field(tmp_path: Path) -> None:
    found = with_metadata(tmp_path, clientID="tarry-{appID}", other="{namespace}/{appID}")
    assert found.properties_for("shop", "eu") == {"clientID": "tarry-shop", "other": "eu.shop/shop"}
