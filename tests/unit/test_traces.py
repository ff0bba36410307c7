"""Traces as a collector gets them: a real OTLP/HTTP endpoint, which decodes what a real server sends it."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarry.config import ConfigError, load
from tarry.core.messages.delivery import Delivered, Delivery
from tarry.core.time.clock import SystemClock
from tarry.engine.loop.driver import Driver, launcher
from tarry.serve.composition.configuration import tracer_of
from tarry.serve.transport import callers
from tests.processes import SMALL, ServerProcess, environment
from tests.waiting import until, wait_until

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

from tarry.serve.composition.traces import OtelTracer, parse  # noqa: E402 - only where the extra is

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"

ACCEPT = {"tarry.door", "messaging.system", "messaging.operation.name", "messaging.batch.message_count"}
DELIVER = {
    "tarry.door", "tarry.outlet", "tarry.namespace", "tarry.attempt", "tarry.lateness_ms", "tarry.outcome",
    "messaging.system", "messaging.operation.name",
}  # fmt: skip


class Collector:
    """Spans as they came, and the requests that brought them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.requests: list[Any] = []
        self.url = ""

    def named(self, name: str, **attributes: Any) -> list[Any]:
        return [
            span for span in self.spans if span.name == name and attributes.items() <= facts(span).items()
        ]

    def wait_for(self, count: int, name: str, **attributes: Any) -> list[Any]:
        wait_until(lambda: len(self.named(name, **attributes)) >= count, lambda: str(self.spans))
        return self.named(name, **attributes)


def facts(span: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value")).__str__()
        if one.value.WhichOneof("value") == "string_value"
        else one.value.int_value
        for one in span.attributes
    }


@contextmanager
def listening(answer: Callable[[BaseHTTPRequestHandler, bytes], int]) -> Iterator[str]:
    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(answer(self, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()

    def take(request: BaseHTTPRequestHandler, body: bytes) -> int:
        assert request.path == "/v1/traces"
        told = trace_service.ExportTraceServiceRequest.FromString(body)
        collector.requests.append((dict(request.headers), told))
        for resource in told.resource_spans:
            collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return 200

    with listening(take) as url:
        collector.url = f"{url}/v1/traces"
        yield collector


@contextmanager
def traced(folder: Path, collector: Collector, more: str = "") -> Iterator[ServerProcess]:
    config = f"""{SMALL}
        [webhook]
        allow = ["127.0.0.1"]
        [traces]
        endpoint = "{collector.url}"
        headers = {{ authorization = "Bearer of-the-collector" }}
        {more}
    """
    with ServerProcess(folder, config) as server:
        yield server.start()


def test_one_trace_from_the_caller_over_a_restart_to_the_receiver(
    tmp_path: Path, collector: Collector
) -> None:
    received: list[tuple[dict[str, str], bytes]] = []

    def take(request: BaseHTTPRequestHandler, body: bytes) -> int:
        received.append(({name.lower(): value for name, value in request.headers.items()}, body))
        return 200

    with listening(take) as hook:
        with traced(tmp_path / "data", collector) as server, httpx.Client(base_url=server.url) as client:
            message = {
                "destination": f"{hook}/secret-path",
                "payload": "secret payload",
                "owner": "secret owner",
                "key": "secret key",
                "delay": "2s",
            }
            answer = client.post("/v1/messages", json=message, headers={"traceparent": PARENT})
            assert answer.status_code == 201
            id_, due_at_ms = answer.json()["id"], answer.json()["due_at_ms"]
            # What is left is sent at the end, and not only after some seconds.
            assert server.stop() == 0
        (accept,) = collector.named("accept schedule")
        assert (accept.trace_id.hex(), accept.parent_span_id.hex()) == (TRACE, SPAN)
        assert set(facts(accept)) == ACCEPT
        assert facts(accept)["tarry.door"] == "http"
        with traced(tmp_path / "data", collector) as server:
            wait_until(lambda: received)
            assert server.stop() == 0
    (deliver,) = collector.named("deliver")
    assert deliver.trace_id == accept.trace_id
    assert deliver.parent_span_id == accept.span_id
    assert deliver.start_time_unix_nano >= due_at_ms * 1_000_000
    assert deliver.end_time_unix_nano >= deliver.start_time_unix_nano
    told = facts(deliver)
    assert set(told) == DELIVER
    assert told["tarry.outlet"] == "http"
    assert (told["tarry.attempt"], told["tarry.outcome"], told["tarry.lateness_ms"] >= 0) == (1, "sent", True)
    # The receiver gets what the sender wrote, and nothing of the trace.
    ((headers, body),) = received
    assert body == b"secret payload"
    assert "traceparent" not in headers
    everything = str(collector.requests)
    for secret in ("secret", id_):
        assert secret not in everything
    for request, told_of in collector.requests:
        assert request["authorization"] == "Bearer of-the-collector"
        assert {one.key: one.value.string_value for one in told_of.resource_spans[0].resource.attributes}[
            "service.name"
        ] == "tarry"


def test_a_batch_is_one_span_and_its_deliveries_are_linked_to_it(
    tmp_path: Path, collector: Collector
) -> None:
    lines = [json.dumps({"destination": "orders", "payload": str(at), "delay": "1ms"}) for at in range(3)]
    with traced(tmp_path / "data", collector) as server, httpx.Client(base_url=server.url) as client:
        answer = client.post(
            "/v1/messages/batch",
            content="\n".join(lines) + "\n",
            headers={"content-type": "application/x-ndjson", "traceparent": PARENT},
        )
        assert answer.status_code == 200
        answer = client.post("/v1/messages", json={"destination": "orders", "delay": "-1s"})
        assert answer.status_code == 400
        (accept,) = collector.wait_for(1, "accept schedule", **{"messaging.batch.message_count": 3})
        delivered = collector.wait_for(3, "deliver")
        assert server.stop() == 0
    assert (accept.trace_id.hex(), accept.parent_span_id.hex()) == (TRACE, SPAN)
    assert len({span.trace_id for span in delivered} | {accept.trace_id}) == 4
    for span in delivered:
        assert not span.parent_span_id
        assert [(link.trace_id, link.span_id) for link in span.links] == [(accept.trace_id, accept.span_id)]
        assert facts(span)["tarry.outlet"] == "persistent"


def test_the_messages_own_trace_goes_before_that_of_the_request_and_through_to_its_receiver(
    tmp_path: Path, collector: Collector
) -> None:
    own = f"00-{'ab' * 16}-{'cd' * 8}-01"
    unsampled = f"00-{'12' * 16}-{'34' * 8}-00"
    message = {"destination": "orders", "delay": "1ms", "headers": {"traceparent": own}}
    with traced(tmp_path / "data", collector) as server, httpx.Client(base_url=server.url) as client:
        for parent in (unsampled, PARENT):
            plain = {"destination": "orders", "delay": "1ms"}
            assert client.post("/v1/messages", json=plain, headers={"traceparent": parent}).status_code == 201
        assert client.post("/v1/messages", json=message, headers={"traceparent": PARENT}).status_code == 201
        topic = "/v1/topics/public/default/orders/subscriptions/me"
        client.put(topic, json={"start": "earliest"})
        entries: list[Any] = []
        while len(entries) < 3:
            entries += client.post(f"{topic}/receive", json={"wait_ms": 10_000}).json()["messages"]
        collector.wait_for(2, "deliver")
        assert server.stop() == 0
    assert [entry.get("headers") or {} for entry in entries] == [{}, {}, {"traceparent": own}]
    # A caller who does not sample is believed: nothing of that message is told.
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE, "ab" * 16}
    assert {span.parent_span_id.hex() for span in collector.named("accept schedule")} == {SPAN, "cd" * 8}


def test_dapr_and_pulsar_are_traced_with_the_context_that_their_clients_send(
    tmp_path: Path, collector: Collector
) -> None:
    grpc = pytest.importorskip("grpc")
    pulsar = pytest.importorskip("pulsar")
    from dapr.proto.runtime.v1 import pubsub_pb2

    doors = (
        "[doors.dapr]\nenabled = true\nport = 0\ngrpc_port = 0\n[doors.pulsar]\nenabled = true\nport = 0\n"
    )
    with traced(tmp_path / "data", collector, doors) as server:
        log = server.said()
        (http_url,) = {*re.findall(r"url=(http://\S+)", log)} - {server.url}
        (grpc_port,) = re.findall(r"url=grpc://127.0.0.1:(\d+)", log)
        (pulsar_url,) = re.findall(r"url=(pulsar://\S+)", log)
        answer = httpx.post(
            f"{http_url}/v1.0/publish/pubsub/made?metadata.scheduledSendTime=PT0.01S",
            json={"order": 1},
            headers={"traceparent": f"00-{'1' * 32}-{SPAN}-01"},
        )
        assert answer.status_code == 204, answer.text
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            publish = channel.unary_unary(
                "/dapr.proto.runtime.v1.Dapr/PublishEvent",
                pubsub_pb2.PublishEventRequest.SerializeToString,
                lambda answer: answer,
            )
            request = pubsub_pb2.PublishEventRequest(
                pubsub_name="pubsub", topic="made", data=b"{}", metadata={"scheduledSendTime": "PT0.01S"}
            )
            publish(request, metadata=[("traceparent", f"00-{'2' * 32}-{SPAN}-01")], timeout=30)
        client = pulsar.Client(pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            producer = client.create_producer("persistent://public/default/p", batching_enabled=False)
            properties = {"other": "x", "traceparent": f"00-{'3' * 32}-{SPAN}-01"}
            producer.send(b"hello", properties=properties, deliver_at=SystemClock().now_ms() + 300)
            batching = client.create_producer(
                "persistent://public/default/b", batching_max_publish_delay_ms=500
            )
            # Now and then the client sends two in two batches; it does not always.
            for _ in range(10):
                for digit in "45":
                    of_its_own = {"traceparent": f"00-{digit * 32}-{SPAN}-01"}
                    batching.send_async(b"together", lambda *_: None, properties=of_its_own)
                batching.flush()
        finally:
            client.close()
        wait_until(lambda: len(collector.named("deliver")) >= 3, lambda: str(collector.spans))
        assert server.stop() == 0
    batches = collector.named("accept publish", **{"messaging.batch.message_count": 2})
    assert batches
    for batch in batches:
        assert {link.trace_id.hex() for link in batch.links} == {"4" * 32, "5" * 32}
    for door, digit in (("dapr", "1"), ("dapr", "2"), ("pulsar", "3")):
        of_trace = [span for span in collector.spans if span.trace_id.hex() == digit * 32]
        kinds = sorted(span.name.split()[0] for span in of_trace)
        assert kinds == ["accept", "deliver"], of_trace
        assert {facts(span)["tarry.door"] for span in of_trace} == {door}
        assert SPAN in {span.parent_span_id.hex() for span in of_trace}


def test_a_collector_that_is_away_harms_nothing_and_holds_up_no_stop(tmp_path: Path) -> None:
    collector = Collector()
    collector.url = "http://127.0.0.1:9/v1/traces"
    with traced(tmp_path / "data", collector) as server:
        message = {"destination": "orders", "delay": "1ms", "payload": "secret payload"}
        assert httpx.post(f"{server.url}/v1/messages", json=message).status_code == 201
        assert server.stop() == 0
        assert "secret" not in server.said()


def test_nothing_is_imported_unless_a_collector_is_named_and_a_missing_package_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import sys, tarry.serve.composition.server; print([name for name in sys.modules if 'opentelemetry' in name])"
    told = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert told.stdout == "[]\n", told.stderr
    assert tracer_of(load().config) is None
    config = load(environment={"TARRY_TRACES__ENDPOINT": "http://127.0.0.1:9/v1/traces"}).config
    monkeypatch.delitem(sys.modules, "tarry.serve.composition.traces")
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(ConfigError, match=r"pip install 'tarry\[otel\]'"):
        tracer_of(config)
    with pytest.raises(ConfigError, match=r"traces\.endpoint is an address"):
        load(environment={"TARRY_TRACES__ENDPOINT": "127.0.0.1:4318"})


def test_the_share_that_is_traced(collector: Collector) -> None:
    settings = load(
        environment={"TARRY_TRACES__ENDPOINT": collector.url, "TARRY_TRACES__RATIO": "0.25"}
    ).config.traces
    tracer = OtelTracer(settings)
    kept = sum(tracer.accept("schedule", "http", 1, []).context is not None for _ in range(2_000))
    assert 300 < kept < 700
    # What was taken is told in full.
    assert tracer.accept("schedule", "http", 1, [PARENT]).context is not None
    assert tracer.accept("schedule", "http", 1, [PARENT[:-1] + "0"]).context is None
    # Of many callers none is the parent; all are linked to.
    both = [f"00-{digit * 32}-{SPAN}-01" for digit in "456"] * 2
    while (accepting := tracer.accept("publish", "pulsar", 6, both)).context is None:
        pass
    accepting.end(None)
    tracer.close()
    (span,) = collector.named("accept publish")
    assert {link.trace_id.hex() for link in span.links} == {digit * 32 for digit in "456"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f"ff{PARENT[2:]}",
        PARENT + "-more",
        PARENT.replace(TRACE, "0" * 32),
        PARENT[:-1],
    ],
)
def test_what_is_no_traceparent_counts_as_none(text: str) -> None:
    assert parse(text) is None
    assert parse(PARENT) is not None
    # A later version may say more.
    assert parse(f"01{PARENT[2:]}-more") is not None


async def test_turns_of_the_engine_and_what_it_sends_belong_to_no_request() -> None:
    seen: list[str | None] = []
    sent = asyncio.Event()

    class Outlet:
        async def send(self, delivery: Any) -> Delivered:
            seen.append(callers.caller())
            return Delivered()

    class Turning:
        """As much of an engine as the driver wants."""

        def __init__(self) -> None:
            self.clock = SystemClock()

        def tell_of_earlier(self, on_earlier: Any) -> None:
            self.on_earlier = on_earlier

        def tick(self) -> int:
            seen.append(callers.caller())
            return self.clock.now_ms() + 60_000

    loop = asyncio.get_running_loop()
    launch = launcher(loop, seen.append)  # type: ignore[arg-type]
    engine: Any = Turning()
    driver = Driver(engine, loop, seen.append)  # type: ignore[arg-type]
    driver.start()
    with callers.called_by(PARENT):
        assert callers.caller() == PARENT
        engine.on_earlier(engine.clock.now_ms() + 10)
        delivery = Delivery("id", "sim:x", b"", {}, None, "", 0, 0, 1)
        launch(Outlet(), [delivery], lambda _: sent.set())  # type: ignore[arg-type]
    await sent.wait()
    await until(lambda: asyncio.sleep(0, len(seen) == 3))
    driver.stop()
    assert seen == [None, None, None]
