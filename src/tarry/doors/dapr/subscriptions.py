"""Subscriptions: what an application asks for over `/dapr/subscribe`, and what YAML files declare. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.unreadable import UNREADABLE
from tarry.doors.dapr.resources import Document, field_of, respelled
from tarry.doors.dapr.rules import EventFields, Expression, compile_rule, matches, searches

V1: Final = "dapr.io/v1alpha1"
V2: Final = "dapr.io/v2alpha1"
DEFAULT_BULK_COUNT: Final = 100
DEFAULT_BULK_WAIT_MS: Final = 1_000


class RoutingRule(Struct, frozen=True):
    """A path of the application, and the events that go there."""

    match: str
    """Empty: all that come so far."""
    path: str
    test: Expression | None = None

    def fits(self, event: EventFields) -> bool:
        """Whether an event goes there."""
        return self.test is None or matches(self.test, event)


class Bulk(Struct, frozen=True):
    """How many messages are given to the application together."""

    max_count: int = DEFAULT_BULK_COUNT
    max_wait_ms: int = DEFAULT_BULK_WAIT_MS


class AppSubscription(Struct, frozen=True, kw_only=True):
    """A topic that an application wants to receive."""

    pubsub: str
    topic: str
    rules: tuple[RoutingRule, ...]
    dead_letter_topic: str = ""
    metadata: dict[str, str] = {}
    bulk: Bulk | None = None
    scopes: tuple[str, ...] = ()
    """The applications for which it is declared; none means all."""
    kind: Literal["PROGRAMMATIC", "DECLARATIVE", "STREAMING"] = "PROGRAMMATIC"

    def path_of(self, event: EventFields) -> str | None:
        """Where an event goes: the first rule that fits; None if none does."""
        return next((rule.path for rule in self.rules if rule.fits(event)), None)

    @property
    def searches(self) -> bool:
        """Whether to find an event's path may take a while."""
        return any(rule.test is not None and searches(rule.match) for rule in self.rules)

    @property
    def raw(self) -> bool:
        """Whether payloads are taken as they are, and not as CloudEvents."""
        return self.metadata.get("rawPayload", "").lower() in ("true", "1", "t")

    def shown(self) -> dict[str, Any]:
        """As the metadata endpoint shows it."""
        shown: dict[str, Any] = {
            "pubsubname": self.pubsub,
            "topic": self.topic,
            "rules": [_given(match=rule.match, path=rule.path) for rule in self.rules],
            "deadLetterTopic": self.dead_letter_topic,
            "type": self.kind,
        }
        return shown | ({"metadata": self.metadata} if self.metadata else {})


def _given(**texts: str) -> dict[str, str]:
    """Texts by name, without the empty ones."""
    return {name: text for name, text in texts.items() if text}


class _Rule(Struct):
    match: str = ""
    path: str = ""


class _Routes(Struct):
    rules: list[_Rule] = []
    default: str = ""


class _Bulk(Struct):
    enabled: bool = False
    maxMessagesCount: int = 0  # noqa: N815 - Dapr's name of the field
    maxAwaitDurationMs: int = 0  # noqa: N815


class _Wanted(Struct):
    pubsubname: str = ""
    topic: str = ""
    deadLetterTopic: str | None = ""  # noqa: N815
    metadata: dict[str, Any] | None = None
    route: str | None = ""
    routes: _Routes | None = None
    bulkSubscribe: _Bulk | None = None  # noqa: N815


class Declared(Struct, frozen=True):
    """The subscriptions that an application declares. A wrong one costs it none of the others, as in Dapr."""

    subscriptions: list[AppSubscription]
    wrong: list[Invalid]


def programmatic(body: bytes) -> Declared:
    """The subscriptions in an application's answer to `GET /dapr/subscribe`; raises `Invalid` if it is no list of them."""
    try:
        given = msgspec.json.decode(body or b"[]", type=list[Any] | None) or []
        wanted = msgspec.convert([respelled(one, _Wanted) for one in given], list[_Wanted])
    except UNREADABLE as error:
        raise Invalid("/dapr/subscribe", f"the answer is not a list of subscriptions: {error}") from None
    return _asked(wanted, allow_empty_path=False)


def of_callback(wanted: Sequence[Any]) -> Declared:
    """The subscriptions in a gRPC application's answer to `ListTopicSubscriptions`."""
    read = [
        _Wanted(
            pubsubname=one.pubsub_name,
            topic=one.topic,
            deadLetterTopic=one.dead_letter_topic,
            metadata=dict(one.metadata),
            routes=_Routes([_Rule(rule.match, rule.path) for rule in one.routes.rules], one.routes.default),
            bulkSubscribe=_Bulk(
                one.bulk_subscribe.enabled,
                one.bulk_subscribe.max_messages_count,
                one.bulk_subscribe.max_await_duration_ms,
            ),
        )
        for one in wanted
    ]
    return _asked(read, allow_empty_path=True)


def _asked(wanted: Sequence[_Wanted], *, allow_empty_path: bool) -> Declared:
    asked = Declared([], [])
    for one in wanted:
        try:
            asked.subscriptions.append(_subscription(one, allow_empty_path=allow_empty_path))
        except Invalid as error:
            asked.wrong.append(Invalid(error.field, f"{error.reason} (topic {one.topic!r})"))
    return asked


def _subscription(wanted: _Wanted, *, allow_empty_path: bool) -> AppSubscription:
    for name, value in (("pubsubname", wanted.pubsubname), ("topic", wanted.topic)):
        if not value:
            raise Invalid(name, "is empty in a subscription; give a name")
    routes = wanted.routes or _Routes(default=wanted.route or "")
    if wanted.routes is not None and not routes.rules and not routes.default:
        routes = _Routes(default=wanted.route or "")
    return AppSubscription(
        pubsub=wanted.pubsubname,
        topic=wanted.topic,
        rules=_rules(routes, allow_empty_path=allow_empty_path),
        dead_letter_topic=wanted.deadLetterTopic or "",
        metadata={name: _as_text(value) for name, value in (wanted.metadata or {}).items()},
        bulk=_bulk(wanted.bulkSubscribe),
    )


def _rules(routes: _Routes, *, allow_empty_path: bool) -> tuple[RoutingRule, ...]:
    rules = [
        RoutingRule(one.match, one.path, compile_rule(one.match) if one.match.strip() else None)
        for one in routes.rules
    ]
    # A gRPC application that says nothing gets everything, without a path. One that has rules gets what they take.
    if routes.default or (allow_empty_path and not rules):
        rules.append(RoutingRule("", routes.default))
    if not rules or not (allow_empty_path or all(rule.path for rule in rules)):
        raise Invalid("route", "a subscription has no path of the application; give it one")
    return tuple(rules)


def _bulk(wanted: _Bulk | None) -> Bulk | None:
    if wanted is None or not wanted.enabled:
        return None
    return Bulk(
        max(1, wanted.maxMessagesCount or DEFAULT_BULK_COUNT),
        max(1, wanted.maxAwaitDurationMs or DEFAULT_BULK_WAIT_MS),
    )


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise Invalid(
            "metadata", "is nested so deeply that it cannot be written as JSON; give texts"
        ) from None


def declarative(documents: Sequence[Document]) -> list[AppSubscription]:
    """The subscriptions among YAML documents; raises `BadResource`."""
    return [_declared(document) for document in documents if document.kind == "Subscription"]


def _declared(document: Document) -> AppSubscription:
    version = document.version(V1, V2)
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        raise document.refuse("spec", "is missing or not a mapping")
    other = "routes" if version == V1 else "route"
    if field_of(spec, other) is not None:
        raise document.refuse(f"spec.{other}", f"is not a field of {version}")
    try:
        wanted = msgspec.convert(respelled(spec, _Wanted), _Wanted)
        found = _subscription(wanted, allow_empty_path=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise document.refuse(f"spec.{place.rstrip('`')}" if place else "spec", reason) from None
    except Invalid as error:
        places = {"match": "routes.rules.match", "route": "route" if version == V1 else "routes"}
        raise document.refuse(f"spec.{places.get(error.field, error.field)}", error.reason) from None
    return msgspec.structs.replace(found, scopes=document.texts("scopes"), kind="DECLARATIVE")
