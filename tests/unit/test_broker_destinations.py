"""`broker://component/topic`: who may send there, what a mistyped address is told, and what came of an attempt."""

from pathlib import Path
from typing import Any

import pytest

from tarry.client import AsyncClient
from tarry.core.errors import Invalid
from tarry.core.limits import HOUR_MS
from tarry.core.messages.delivery import Delivered, Delivery, Missing, Refused, Retry
from tarry.core.messages.message import Message
from tarry.outlets.broker import BrokerOutlet, metadata_of, topic_of
from tarry.outlets.dapr.errors import BrokerUnreachable, NeverTaken
from tests.serving import serving
from tests.unit.engine_kit import Bench
from tests.unit.test_dapr_outlet import Broker
from tests.waiting import until

HOME = "public/default"
TO = "broker://orders/created"


def delivery(id_: str = "1", namespace: str = HOME, to: str = TO, **fields: Any) -> Delivery:
    headers = fields.pop("headers", {})
    key = fields.pop("key", None)
    return Delivery(id_, to, id_.encode(), headers, key, "", 0, 0, 1, "http", namespace)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def outlet(broker: Broker) -> BrokerOutlet:
    made = BrokerOutlet({"orders": frozenset({HOME}), "audit": frozenset({"*"})})
    made.open({"orders": broker, "audit": broker}.get)
    return made


@pytest.mark.parametrize(
    "bad",
    ["broker://", "broker://orders", "broker://orders/", "broker:///x", "broker:orders/x", "broker://o/a%00"],
)
def test_a_bad_address_is_refused(outlet: BrokerOutlet, bad: str) -> None:
    with pytest.raises(Invalid):
        outlet.check(bad)


def test_a_topic_may_have_slashes_and_quoted_characters() -> None:
    assert topic_of("broker://a/persistent://x/y/z") == ("a", "persistent://x/y/z")
    assert topic_of("broker://a%2Fb/c%20d") == ("a/b", "c d")


@pytest.mark.parametrize(
    ("to", "namespace", "words"),
    [
        ("broker://order/created", HOME, "did you mean broker://orders/created?"),
        ("broker://kafka/created", HOME, "there are audit, orders"),
        ("broker://orders/created", "acme/eu", "there are audit"),
        ("broker://orders/no", HOME, "does not let 'no' be published to"),
    ],
)  # fmt: skip
def test_an_address_that_is_not_open_is_told_what_is(
    outlet: BrokerOutlet, to: str, namespace: str, words: str
) -> None:
    with pytest.raises(Invalid) as caught:
        outlet.check_namespace(to, namespace)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("brokr://orders/x", "did you mean broker://?"),
        ("kafak://orders/x", "a broker's topic is written broker://component/topic"),
        ("RabbitMQ://orders/x", "a broker's topic is written broker://component/topic"),
        ("persistant://public/default/x", "did you mean persistent://?"),
        ("ftp://example.org/x", "an address is written https://host/path, and a topic by its name"),
    ],
)
def test_an_unknown_scheme_has_a_suggestion_also_where_there_are_no_brokers(to: str, words: str) -> None:
    bench = Bench()
    refused = bench.refused(bench.engine.schedule(Message(destination=to, delay_ms=0)), Invalid)
    assert refused.reason == f"there is no outlet for {to.partition(':')[0]}:// here; {words}"


async def test_messages_for_one_topic_are_one_call(outlet: BrokerOutlet, broker: Broker) -> None:
    sent = await outlet.send_many(
        [delivery("1", key="k", headers={"a": "b", "content-type": "text/plain"}), delivery("2")]
    )
    assert sent == [Delivered(), Delivered()]
    (call,) = broker.calls
    assert call == [
        ("nscreated", b"1", {"a": "b", "tarry-id": "1", "partitionKey": "k"}, "text/plain"),
        ("nscreated", b"2", {"tarry-id": "2"}, None),
    ]
    assert metadata_of(delivery(key="k", headers={"partitionKey": "own"}))["partitionKey"] == "own"
    assert (outlet.order_key(TO, None), outlet.order_key(TO, "k")) == (None, f"{TO}#k")


async def test_what_may_not_be_sent_any_more_is_not(outlet: BrokerOutlet, broker: Broker) -> None:
    assert isinstance(await outlet.send(delivery(namespace="acme/eu")), Missing)
    assert isinstance(await outlet.send(delivery(to="broker://gone/x")), Missing)
    assert isinstance(await outlet.send(delivery(to="broker://orders/no")), Refused)
    assert isinstance(await BrokerOutlet({}).send(delivery()), Retry)
    assert broker.calls == []


async def test_the_brokers_words_are_the_verdict(outlet: BrokerOutlet, broker: Broker) -> None:
    broker.error = BrokerUnreachable("away", uncertain=True)
    verdict = await outlet.send(delivery())
    assert isinstance(verdict, Retry)
    assert verdict.uncertain
    broker.error = NeverTaken("too large")
    assert isinstance(await outlet.send(delivery()), Refused)
    broker.error = ValueError("a bug")
    verdict = await outlet.send(delivery())
    assert isinstance(verdict, Retry)
    assert verdict.uncertain
    broker.error, broker.failed = None, {b"2": NeverTaken("bad")}
    assert [type(one) for one in await outlet.send_many([delivery("1"), delivery("2")])] == [
        Delivered,
        Refused,
    ]


def components(folder: Path, *names: str) -> list[str]:
    """A folder with component files, as `resources_path`."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.yaml").write_text(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\n"
            f"metadata:\n  name: {name}\nspec:\n  type: pubsub.in-memory\n  version: v1\n"
            + ("scopes: [another]\n" if name == "scoped" else "")
        )
    return [str(folder)]


@pytest.mark.parametrize("none_open", [True, False])
async def test_without_its_component_a_message_waits_for_a_start_that_has_it(
    tmp_path: Path, none_open: bool
) -> None:
    def settings(name: str) -> dict[str, Any]:
        given = components(tmp_path / name, name)
        return {
            "brokers__resources_path": given,
            "brokers__allow": [{"component": name, "namespaces": [HOME]}],
        }

    data, has_it, other = tmp_path / "data", settings("orders"), settings("another")
    async with serving(data, **has_it) as served, AsyncClient(served.url) as client:
        id_ = (await client.schedule(TO, b"x", delay_ms=HOUR_MS)).id
    async with serving(data, **({} if none_open else other)) as served, AsyncClient(served.url) as client:
        # It becomes due in this life, and no sooner.
        await client.restart(id_, delay_ms=0)
        await until(lambda: served.engine.stats().stranded == {"broker": 1})
        view = await client.get(id_)
        assert (view.state, view.attempts) == ("scheduled", 0)
        ready = await served.client.get("/readyz")
        assert ready.status_code == 200
        assert "broker" in ready.json()["warnings"][0]
        assert ": 1" in ready.json()["warnings"][0]
        assert 'tarry_messages_stranded{outlet="broker"} 1.0' in (await served.client.get("/metrics")).text
        with pytest.raises(Invalid):
            await client.schedule(TO, b"x", delay_ms=0)
    async with serving(data, **has_it) as served, AsyncClient(served.url) as client:
        await until(lambda: served.engine.stats().stranded == {} and not served.engine.stats().pending)
        view = await client.get(id_)
        assert (view.state, view.attempts) == ("sent", 1)


async def test_a_server_tells_what_was_mistyped(tmp_path: Path) -> None:
    folder = components(tmp_path / "components", "orders", "scoped")
    allow = [
        {"component": "orders", "namespaces": [HOME]},
        {"component": "orders", "namespaces": ["acme/us"]},
    ]
    settings: dict[str, Any] = {"brokers__resources_path": folder, "brokers__allow": allow}
    async with serving(tmp_path / "data", **settings) as served, AsyncClient(served.url) as client:
        done = await client.schedule("broker://orders/created", b"x", delay_ms=0)
        answer = await served.client.post(
            "/v1/messages/batch", content='{"destination":"broker://orders/x","delay_ms":0}\n{"destination":"broker://order/x","delay_ms":0}\n',
            headers={"content-type": "application/x-ndjson"},
        )  # fmt: skip
        one, other = answer.text.splitlines()
        assert ('"id"' in one, "did you mean broker://orders/x?" in other) == (True, True)
        for to, words in (
            ("broker://order/x", "did you mean broker://orders/x?"),
            ("broker://scoped/x", "no broker component 'scoped' is open"),
            ("brokr://orders/x", "did you mean broker://?"),
            ("kafka://orders/x", "a broker's topic is written broker://component/topic"),
            ("htps://example.org/x", "did you mean https://?"),
            ("broker://orders", "broker://component/topic"),
        ):
            with pytest.raises(Invalid) as caught:
                await client.schedule(to, b"x", delay_ms=0)
            assert words in str(caught.value), to
        with pytest.raises(Invalid):
            await client.schedule("broker://orders/x", b"x", delay_ms=0, namespace="acme/eu")
        await client.schedule("broker://orders/x", b"x", delay_ms=0, namespace="acme/us")
        while (view := await client.get(done.id)).state != "sent":
            assert view.state in ("scheduled", "sending"), view
    allow[0]["component"] = "scoped"
    with pytest.raises(Invalid, match="no component file has a component 'scoped'"):
        async with serving(tmp_path / "data", **settings):
            pass
