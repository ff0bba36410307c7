"""A real daprd beside the Dapr door on one broker, in both directions, at once and scheduled: event for event equal."""

import asyncio
import base64
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Struct

from tarry.doors.dapr.delayed_message import WaitingMessage, encode
from tests.conformance.dapr.brokers.apache_pulsar import PulsarServer
from tests.conformance.dapr.brokers.kinds import (
    ApachePulsarBroker,
    Broker,
    KafkaBroker,
    NatsBroker,
    RabbitBroker,
    RedisBroker,
)
from tests.conformance.dapr.brokers.servers import KafkaServer, NatsServer, RabbitServer, RedisServer, Server
from tests.peers.daprd import script
from tests.peers.sidecars import PUBSUB, Arrival, Pair, beside
from tests.peers.suite import Case
from tests.peers.suites.dapr import VERSION, module_tree
from tests.peers.workplace import Workplace

BROKERS: Final[dict[str, tuple[type[Broker], type[Server]]]] = {
    "redis": (RedisBroker, RedisServer),
    "rabbitmq": (RabbitBroker, RabbitServer),
    "jetstream": (NatsBroker, NatsServer),
    "kafka": (KafkaBroker, KafkaServer),
    "pulsar": (ApachePulsarBroker, PulsarServer),
}
BETA: Final = ("pubsub_jetstream", "nameresolution_nameformat")
"""Components that are not among Dapr's stable ones: a broker, and a way to find others that listens to no network."""
CONFIGURATION: Final = {
    "apiVersion": "dapr.io/v1alpha1",
    "kind": "Configuration",
    "metadata": {"name": "quiet"},
    "spec": {"nameResolution": {"component": "nameformat", "configuration": {"format": "{appid}.localhost"}}},
}
DAPRD, TARRY = "daprd", "tarry"
TOPIC: Final = "orders"
RAW: Final = "raw-orders"
AHEAD_S: Final = 3.0
PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
OWN_EVENT: Final = {"specversion": "1.0", "source": "mine", "type": "mine.v1", "subject": "s", "extra": 7}


class Publish(Struct, frozen=True):
    """One kind of publish; `body` is made for a mark by which its event is known again."""

    body: Callable[[str], bytes]
    type_: str
    topic: str = TOPIC
    headers: Mapping[str, str] = {}
    metadata: Mapping[str, str] = {}
    bulk: bool = False
    count: int = 1


def _json(mark: str) -> bytes:
    return json.dumps(
        {"mark": mark, "text": "Grüße", "large": 9007199254740993, "deep": [{"a": None}]}
    ).encode()


def _entries(mark: str) -> bytes:
    entries = [
        {"entryId": "1", "event": {"mark": mark}, "contentType": "application/json"},
        {"entryId": "2", "event": f"text {mark}", "contentType": "text/plain"},
        {"entryId": "3", "event": OWN_EVENT | {"id": f"own-{mark}", "data": mark}, "contentType": "application/cloudevents+json"},
    ]  # fmt: skip
    return json.dumps(entries).encode()


def _own(mark: str) -> bytes:
    return json.dumps(OWN_EVENT | {"id": mark, "data": {"n": 1}}).encode()


def _text(mark: str) -> bytes:
    return f"text {mark} \u2713".encode()


PUBLISHES: Final[dict[str, Publish]] = {
    "json": Publish(_json, "application/json"),
    "json-charset": Publish(_json, "application/json; charset=utf-8"),
    "text": Publish(_text, "text/plain"),
    "no-type": Publish(_text, ""),
    "other-type": Publish(_text, "application/vnd.mine+json"),
    "binary": Publish(lambda mark: b"\x00\xff" + mark.encode(), "application/octet-stream"),
    "broken-json": Publish(lambda mark: f"{{{mark}".encode(), "application/json"),
    "own-event": Publish(_own, "application/cloudevents+json"),
    "traced": Publish(_json, "application/json", headers={"traceparent": PARENT, "tracestate": "a=1"}),
    "overridden": Publish(
        _json, "application/json",
        metadata={"cloudevent.id": "id-MARK", "cloudevent.source": "s", "cloudevent.type": "t", "cloudevent.subject": "j"},
    ),
    "metadata": Publish(_json, "application/json", metadata={"customer": "42"}),
    "raw": Publish(lambda mark: mark.encode(), "text/plain", topic=RAW, metadata={"rawPayload": "true"}),
    "bulk": Publish(_entries, "application/json", bulk=True, count=3),
}  # fmt: skip
"""By name: what is published from either side."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""An id that a sidecar made; others are the publisher's, and have a mark, because JetStream takes no id twice."""


class DaprBeside:
    """See `Suite`."""

    name = "dapr-beside"
    title = "a real daprd beside the Dapr door, on one broker"
    version = VERSION
    programs = ("go",)
    minutes = 20

    def lacking(self) -> str | None:
        """Nothing beyond Go; a broker that cannot be had is skipped by itself."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Build daprd; then, broker by broker, publish everything from both sides and compare what arrived."""
        programs = {DAPRD: _daprd(workplace), TARRY: script(workplace.folder / "daprd")}
        cases: list[Case] = []
        for name in BROKERS:
            if not only or re.search(only, name):
                cases += _on(name, workplace.folder / name, programs)
                print(f"  {name}: {sum(one.outcome == 'passed' for one in cases)} passed so far", flush=True)
        return cases


def _daprd(workplace: Workplace) -> Path:
    """The real program; it is built once for each version."""
    program = workplace.cache / f"daprd-{VERSION}"
    if not program.exists():
        tree = module_tree(workplace)
        for name in BETA:
            file = tree / "cmd/daprd/components" / f"{name}.go"
            text = file.read_text("utf-8")
            file.write_text(
                text.replace("//go:build allcomponents", "//go:build allcomponents || stablecomponents"),
                "utf-8",
            )
        command = ("go", "build", "-tags", "stablecomponents", "-o", program, "./cmd/daprd")
        workplace.must(*command, cwd=tree, within_s=3600, env={"CGO_ENABLED": "0"})
    return program


def _on(name: str, folder: Path, programs: Mapping[str, Path]) -> list[Case]:
    """Every case on one broker; one that cannot be had here is one case that is skipped."""
    broker_of, server_of = BROKERS[name]
    server = server_of(folder / "broker")
    try:
        server.start()
        broker = broker_of(server)
        for topic in (TOPIC, RAW, f"{TARRY}-delayed", f"{TARRY}-delayed-dead"):
            asyncio.run(broker.topic(topic))
        resources = _resources(folder / "resources", broker)
        subscriptions: list[dict[str, Any]] = [
            {"pubsubname": PUBSUB, "topic": TOPIC, "route": "/in"},
            {"pubsubname": PUBSUB, "topic": RAW, "route": "/raw", "metadata": {"rawPayload": "true"}},
        ]
        with beside(programs, resources, subscriptions, folder) as pair:
            return list(_cases(name, pair))
    except pytest.skip.Exception as missing:
        return [Case(name, "skipped", str(missing))]
    except RuntimeError as error:
        return [Case(name, "failed", str(error))]
    finally:
        server.stop()


def _resources(folder: Path, broker: Broker) -> Path:
    metadata = broker.properties() | {"enableDelayedMessaging": "true"}
    component = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": PUBSUB},
        "spec": {
            "type": broker.kind,
            "version": "v1",
            "metadata": [{"name": key, "value": value} for key, value in metadata.items()],
        },
    }
    folder.mkdir(parents=True)
    (folder / "pubsub.yaml").write_text(json.dumps(component))
    (folder / "configuration.yaml").write_text(json.dumps(CONFIGURATION))
    return folder


def _cases(broker: str, pair: Pair) -> Iterator[Case]:
    for kind, publish in PUBLISHES.items():
        shapes: dict[str, Any] = {}
        for side in (DAPRD, TARRY):
            yield _case(f"{broker}/{kind}/from-{side}", partial(_at_once, pair, side, publish, shapes))
        yield _case(f"{broker}/{kind}/same-from-both", partial(_same, shapes))
        yield _case(f"{broker}/{kind}/scheduled", partial(_scheduled, pair, publish, shapes))
    yield _case(f"{broker}/delayed-topic/from-daprd", partial(_by_the_delayed_topic, pair))


def _case(name: str, check: Callable[[], None]) -> Case:
    """A case that passed unless its check raises."""
    try:
        check()
    except (AssertionError, RuntimeError, KeyError, OSError) as error:
        return Case(name, "failed", f"{type(error).__name__}: {error}"[:3000])
    return Case(name, "passed")


def _at_once(pair: Pair, side: str, publish: Publish, shapes: dict[str, Any]) -> None:
    """Publish from one side: both applications get the same events, each once."""
    arrived = _published(pair, side, publish, {})
    shapes[side] = [_shape(one, side) for one in arrived]


def _scheduled(pair: Pair, publish: Publish, shapes: Mapping[str, Any]) -> None:
    """Publish through the door for later: both applications get it when it is due, and it is as one that went at once."""
    due_s = time.time() + AHEAD_S
    arrived = _published(pair, TARRY, publish, {"scheduledSendTime": _instant(due_s)})
    assert all(one.at_s >= due_s for one in arrived), "it was early"
    assert [_shape(one, TARRY) for one in arrived] == shapes[TARRY]


def _same(shapes: Mapping[str, Any]) -> None:
    assert shapes[DAPRD] == shapes[TARRY], f"{shapes[DAPRD]} is not {shapes[TARRY]}"


def _by_the_delayed_topic(pair: Pair) -> None:
    """Publish the proposal's message through daprd to the door's delayed topic: when it is due, both get what is in it."""
    mark = uuid.uuid4().hex
    due_s = time.time() + AHEAD_S
    event = json.dumps(OWN_EVENT | {"id": mark, "data": mark, "topic": TOPIC, "pubsubname": PUBSUB}).encode()
    message = WaitingMessage(
        topic=TOPIC, message=event, content_type="application/cloudevents+json", metadata={},
        time=_instant(due_s), bulk=False,
    )  # fmt: skip
    pair.sidecars[DAPRD].publish(
        f"{TARRY}-delayed", encode(message), {"content-type": "application/octet-stream"}, rawPayload="true"
    )
    got = {side: application.wait_for(mark) for side, application in pair.applications.items()}
    assert {side: [one.event["data"] for one in arrivals] for side, arrivals in got.items()} == {
        DAPRD: [mark],
        TARRY: [mark],
    }
    assert all(one.at_s >= due_s for arrivals in got.values() for one in arrivals), "it was early"


def _published(pair: Pair, side: str, publish: Publish, more: Mapping[str, str]) -> list[Arrival]:
    """Publish, wait for both applications, compare them; gives the arrivals at one of them, in an order of their own."""
    mark = uuid.uuid4().hex
    headers = {"content-type": publish.type_} if publish.type_ else {}
    pair.sidecars[side].publish(
        publish.topic, publish.body(mark), headers | dict(publish.headers), bulk=publish.bulk,
        **{name: value.replace("MARK", mark) for name, value in publish.metadata.items()}, **more,
    )  # fmt: skip
    shown = base64.b64encode(mark.encode()).decode() if publish.topic == RAW else mark
    if publish.type_ == "application/octet-stream":
        shown = base64.b64encode(publish.body(mark)).decode()
    theirs, ours = (
        sorted(pair.applications[name].wait_for(shown, publish.count), key=_order) for name in (DAPRD, TARRY)
    )
    assert len(theirs) == len(ours) == publish.count, f"daprd's got {len(theirs)}, Tarry's {len(ours)}"
    for one, other in zip(theirs, ours, strict=True):
        assert one.path == other.path
        # A raw payload becomes an event where it arrives: that has an id of each side's own.
        anew = ("id",) if publish.topic == RAW else ()
        assert _without(one.event, anew) == _without(other.event, anew)
        assert _told(one) == _told(other), f"beside it daprd tells {_told(one)} and Tarry {_told(other)}"
    return ours


def _order(arrival: Arrival) -> str:
    return json.dumps(arrival.event.get("data", ""), sort_keys=True)


def _told(arrival: Arrival) -> dict[str, str]:
    """Metadata that an application gets beside an event, as far as they are the message's own."""
    return {
        name: value
        for name, value in arrival.headers.items()
        if name in ("content-type", "pubsubname", "customer")
    }


def _shape(arrival: Arrival, side: str) -> dict[str, Any]:
    """An event without what each publish has anew, and with the publisher's id where its source is that."""
    event = dict(arrival.event)
    anew = ("id", "time") if _UUID.fullmatch(event["id"]) else ("time",)
    text = json.dumps(_without(event, anew), sort_keys=True)
    found = re.sub(r"[0-9a-f]{32}(?=[^-])", "MARK", text)
    if event.get("source") == side:
        found = found.replace(f'"source": "{side}"', '"source": "PUBLISHER"')
    if "data_base64" in event:
        found = found.replace(event["data_base64"], "DATA")
    shape: dict[str, Any] = json.loads(found)
    return shape


def _without(event: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in names}


def _instant(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) + f".{int(at_s % 1 * 1000):03d}Z"


SUITE: Final = DaprBeside()
