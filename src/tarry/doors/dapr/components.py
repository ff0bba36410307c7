"""Component files: which brokers there are, who may use them for what, and how delays are kept there.

    apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata:
      name: pubsub
    spec:
      type: pubsub.redis
      version: v1
      metadata:
      - name: redisHost
        value: localhost:6379
      - name: redisPassword
        secretKeyRef: {name: redis-password, key: redis-password}
      - name: enableDelayedMessaging
        value: true
    auth:
      secretStore: secrets
    scopes: [shop]

Every field that is wrong is refused by its name. Components that are not for pub/sub are left to others.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from tarry.doors.dapr.resources import Document, field_of
from tarry.doors.dapr.secrets import ENVIRONMENT, FILE, EnvironmentSecrets, SecretStore, secret_store
from tarry.outlets.dapr.component import KIND_PREFIX, kinds
from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties

API_VERSION: Final = "dapr.io/v1alpha1"

DELAYED: Final = "enableDelayedMessaging"
CUSTODY: Final = "delayedMessagingCustody"
DELAYED_DEAD_LETTER: Final = "delayedMessagingDeadLetterTopic"

Custody = Literal["ledger", "broker"]


class ComponentDefinition(Struct, frozen=True, kw_only=True):
    """One pub/sub component, as its file describes it; secrets are resolved."""

    name: str
    kind: str
    version: str = "v1"
    properties: dict[str, str] = {}
    scopes: tuple[str, ...] = ()
    """The applications that may use it; none means all."""
    namespace: str = ""
    file: str = ""
    number: int = 0
    delayed: bool = False
    """Whether `scheduledSendTime` is allowed."""
    custody: Custody = "ledger"
    """The keeper of delayed messages: Tarry's ledger, or the broker, in the delayed topic."""
    dead_letter_topic: str = ""
    """Where undecodable messages of the delayed topic go; empty for the topic's name and `-dead`."""
    ignore_errors: bool = False
    """Go on without it if it cannot be started."""

    @property
    def namespaced(self) -> bool:
        """Whether consumer groups, and with them topics, belong to a namespace."""
        return any("{namespace}" in value for value in self.properties.values())

    def open_to(self, app_id: str) -> bool:
        """Whether an application may use it at all."""
        return not self.scopes or app_id in self.scopes

    def publishable_by(self, app_id: str, topic: str) -> bool:
        """Whether an application may publish to a topic."""
        return self._allows(topic, _scoped(self._text("publishingScopes"), app_id))

    def subscribable_by(self, app_id: str, topic: str) -> bool:
        """Whether an application may subscribe to a topic."""
        return self._allows(topic, _scoped(self._text("subscriptionScopes"), app_id))

    def _allows(self, topic: str, scoped: list[str] | None) -> bool:
        allowed, protected = _split(self._text("allowedTopics")), _split(self._text("protectedTopics"))
        if allowed and topic not in allowed:
            return False
        if scoped is None:
            return topic not in protected
        return topic in scoped

    def _text(self, field: str) -> str:
        return Properties(self.properties).text(field)

    def properties_for(self, app_id: str, namespace: str) -> dict[str, str]:
        """The metadata with Dapr's placeholders filled in for an application."""
        return {name: _filled(value, app_id, namespace) for name, value in self.properties.items()}

    def consumer_group(self, app_id: str, namespace: str) -> str:
        """The consumer group of an application: its id, unless the file says otherwise."""
        given = self._text("consumerID")
        return _filled(given, app_id, namespace) if given else app_id


BUILT_IN: Final = ComponentDefinition(name="pubsub", kind="pubsub.tarry", delayed=True)
"""The component that exists without any component file, so that the first try works."""


def components_of(documents: Sequence[Document], environment: Mapping[str, str]) -> list[ComponentDefinition]:
    """The pub/sub components among documents; raises `BadResource`."""
    found = [document for document in documents if document.kind == "Component"]
    for document in found:
        document.version(API_VERSION)
    stores = Stores(found, environment)
    definitions: dict[str, ComponentDefinition] = {}
    for document in found:
        if document.text("spec.type").startswith(KIND_PREFIX):
            made = _definition(document, stores)
            if made.name in definitions:
                other = definitions[made.name]
                raise document.refuse(
                    "metadata.name",
                    f"{made.name!r} is the name of document {other.number} of {other.file} too",
                )
            definitions[made.name] = made
    return list(definitions.values())


class Stores:
    """The secret stores that documents describe, and the environment."""

    def __init__(self, documents: Sequence[Document], environment: Mapping[str, str]) -> None:
        self.environment = EnvironmentSecrets(environment)
        self._by_name: dict[str, SecretStore] = {"": self.environment}
        for document in documents:
            if document.text("spec.type") in (ENVIRONMENT, FILE):
                properties = Properties(_metadata(document, self))
                name = document.text("metadata.name")
                self._by_name[name] = secret_store(document, properties, environment)

    def of(self, document: Document) -> SecretStore:
        """The store that a component takes its secrets from."""
        name = document.text("auth.secretStore", needed=False)
        if name not in self._by_name:
            raise document.refuse(
                "auth.secretStore", f"there is no {ENVIRONMENT} or {FILE} component named {name!r}"
            )
        return self._by_name[name]


def _definition(document: Document, stores: Stores) -> ComponentDefinition:
    name = document.text("metadata.name")
    kind = document.text("spec.type")
    if kind not in kinds():
        raise document.refuse("spec.type", f"{kind!r} is not one of {', '.join(kinds())}")
    version = document.text("spec.version", needed=False) or "v1"
    if version != "v1":
        raise document.refuse("spec.version", f"{version!r} is not v1")
    stores.of(document)
    properties = _metadata(document, stores)
    asked = Properties(properties)
    ignore_errors = document.get("spec.ignoreErrors")
    if not isinstance(ignore_errors, bool | None):
        raise document.refuse("spec.ignoreErrors", "is neither true nor false")
    try:
        custody: Custody = (
            "broker" if asked.one_of(CUSTODY, ("ledger", "broker"), "ledger") == "broker" else "ledger"
        )
        return ComponentDefinition(
            name=name,
            kind=kind,
            version=version,
            properties=properties,
            scopes=document.texts("scopes"),
            namespace=document.text("metadata.namespace", needed=False),
            file=document.file,
            number=document.number,
            delayed=asked.flag(DELAYED),
            custody=custody,
            dead_letter_topic=asked.text(DELAYED_DEAD_LETTER),
            ignore_errors=bool(ignore_errors),
        )
    except Misconfigured as error:
        raise document.refuse(f"spec.metadata.{error.field}", error.reason) from None


def _metadata(document: Document, stores: Stores) -> dict[str, str]:
    properties: dict[str, str] = {}
    seen: set[str] = set()
    for place, item in enumerate(document.mappings("spec.metadata"), 1):
        name = field_of(item, "name")
        if not isinstance(name, str) or not name:
            raise document.refuse(f"spec.metadata[{place}].name", "is missing or not text")
        if name.lower() in seen:
            raise document.refuse(f"spec.metadata.{name}", "is given twice")
        seen.add(name.lower())
        properties[name] = _value(document, f"spec.metadata.{name}", item, stores)
    return properties


def _value(document: Document, field: str, item: Mapping[str, Any], stores: Stores) -> str:
    given = [name for name in ("value", "secretKeyRef", "envRef") if field_of(item, name) is not None]
    if len(given) > 1:
        raise document.refuse(field, f"has {' and '.join(given)}; give one of them")
    if given == ["secretKeyRef"]:
        return _secret(document, f"{field}.secretKeyRef", field_of(item, "secretKeyRef"), stores.of(document))
    if given == ["envRef"]:
        name = field_of(item, "envRef")
        if not isinstance(name, str):
            raise document.refuse(f"{field}.envRef", "is not the name of an environment variable")
        return _secret(document, f"{field}.envRef", {"name": name}, stores.environment)
    return _scalar(document, f"{field}.value", field_of(item, "value"))


def _secret(document: Document, field: str, reference: object, secrets: SecretStore) -> str:
    name = field_of(reference, "name") if isinstance(reference, Mapping) else None
    if not isinstance(reference, Mapping) or not isinstance(name, str):
        raise document.refuse(field, "needs a name, and may have a key")
    found = secrets.get(name, str(field_of(reference, "key") or name))
    if found is None:
        raise document.refuse(field, f"there is no secret {name!r}")
    return found


def _scalar(document: Document, field: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise document.refuse(field, "is neither text, a number, true nor false; put it in quotes")


def _filled(value: str, app_id: str, namespace: str) -> str:
    while "{uuid}" in value:
        value = value.replace("{uuid}", str(uuid.uuid4()), 1)
    # As Dapr does it: the namespace comes with the application's id.
    return value.replace("{namespace}", f"{namespace}.{app_id}").replace("{appID}", app_id)


def _scoped(text: str, app_id: str) -> list[str] | None:
    """The topics that an application is confined to; None if it is not mentioned."""
    for part in text.split(";"):
        name, equals, topics = part.partition("=")
        if equals and name.strip() == app_id:
            return _split(topics)
    return None


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
