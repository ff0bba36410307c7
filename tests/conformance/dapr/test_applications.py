"""Applications as Dapr's own packages make them receive what is due: gRPC, FastAPI, JavaScript."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.applications import application
from tests.conformance.dapr.kit import in_s, need, sidecar
from tests.processes import ROOT, free_port

HERE = Path(__file__).parent


def publish(port: int, topic: str, data: object, **metadata: str) -> None:
    query = {f"metadata.{name}": value for name, value in metadata.items()}
    url = f"http://127.0.0.1:{port}/v1.0/publish/pubsub/{topic}"
    assert httpx.post(url, json=data, params=query, timeout=30).status_code == 204


@pytest.mark.parametrize("kind", ["grpc", "fastapi"])
def test_an_application_of_the_python_sdk_gets_what_is_due(tmp_path: Path, kind: str) -> None:
    need("python")
    port = free_port()
    protocol = "grpc" if kind == "grpc" else "http"
    with sidecar(tmp_path / "data", app_port=port, app_protocol=protocol, retry_min_ms=20) as one:
        packages = os.pathsep.join([str(ROOT / ".cache" / "dapr-sdk"), *sys.path])
        environment = one.environment | {"APP_PORT": str(port), "PYTHONPATH": packages}
        command = [sys.executable, "-W", "ignore", str(HERE / f"{kind}_app.py")]
        with application(command, environment) as app:
            assert app.line() == "up"
            if kind == "grpc":
                publish(one.http_port, "orders", "again", scheduledSendTime=in_s(0.3))
                assert [json.loads(app.line()) for _ in range(2)] == [["orders", '"again"']] * 2
                publish(one.http_port, "orders", "x", scheduledSendTime="100ms", **{"cloudevent.type": "big"})
                assert json.loads(app.line()) == ["big", '"x"']
            else:
                publish(one.http_port, "orders", {"n": 1}, scheduledSendTime=in_s(0.3))
                assert json.loads(app.line()) == ["orders", {"n": 1}]
                publish(one.http_port, "orders", "bad", scheduledSendTime="100ms")
                assert [json.loads(app.line()) for _ in range(2)] == [["orders", "bad"], ["dead", "bad"]]


def test_the_javascript_sdk_publishes_and_receives(tmp_path: Path) -> None:
    need("javascript")
    port = free_port()
    with sidecar(tmp_path / "data", app_port=port) as one:
        environment = one.environment | {
            "APP_PORT": str(port),
            "SDK_FOLDER": str(ROOT / ".cache" / "dapr-js"),
        }
        with application(["node", str(HERE / "app.mjs")], environment) as app:
            lines = Counter(app.line() for _ in range(10))
            assert lines == Counter(
                json.dumps(line, separators=(",", ":"))
                for name in ("http", "grpc")
                for line in (
                    ["published", name, True],
                    ["refused", name, True],
                    ["bulk", name, 0],
                    ["js", {"via": name}],
                    ["js", {"bulk": name}],
                )
            )
            for n in range(2):
                publish(one.http_port, "js-bulk", n, scheduledSendTime="10ms")
            assert sorted(app.line() for _ in range(2)) == ['["js-bulk",0]', '["js-bulk",1]']
