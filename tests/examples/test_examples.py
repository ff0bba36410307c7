"""Each program of examples/ does what its page says, against a real server. Those of Matrix are beside its other tests."""

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tarry import Client
from tests.applications import application
from tests.processes import ROOT, SMALL, ServerProcess, free_port, running

EXAMPLES: Final = ROOT / "examples"
WITHIN_S: Final = 60


def environment(server: ServerProcess, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
    # A new interpreter's output waits in a buffer if it goes to a pipe.
    path = {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    return kept | path | {"TARRY_URL": server.url} | more


def call(method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Any:
    """A request, made until the program listens."""
    end = time.monotonic() + WITHIN_S
    while True:
        request = urllib.request.Request(url, body, dict(headers), method=method)
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return refusal.code
        except urllib.error.URLError:
            assert time.monotonic() < end, f"nothing listens at {url}"
            time.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running(tmp_path / "data") as server:
        yield server


def payloads(server: ServerProcess, topic: str, count: int) -> list[Any]:
    """The first payloads of a topic, and none more for half a second after."""
    with Client(server.url) as client:
        client.subscribe(topic, "test", start="earliest")
        found: list[Any] = []
        while len(found) < count:
            entries = client.receive(topic, "test", wait_ms=WITHIN_S * 1000)
            assert entries, f"only {len(found)} of {count} came"
            found += [json.loads(entry.payload) for entry in entries]
        assert not client.receive(topic, "test", wait_ms=500)
        return found


@pytest.mark.parametrize("framework", ["fastapi", "django"])
def test_who_logs_in_is_not_reminded(server: ServerProcess, framework: str) -> None:
    port = free_port()
    commands = {
        "fastapi": ["-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"],
        "django": ["app.py", "runserver", "--noreload", str(port)],
    }
    folder = EXAMPLES / f"{framework}_reminder"
    given = environment(server, REMIND_AFTER="2s", SECRET_KEY=secrets.token_hex())
    with application([sys.executable, *commands[framework]], given, folder):
        url = f"http://127.0.0.1:{port}/users"
        assert call("POST", f"{url}/cleo/login") == {"reminder": "there was none"}
        first, _, again = (call("POST", f"{url}/{user}/trial") for user in ("ben", "ann", "ben"))
        assert again["remind_at_ms"] > first["remind_at_ms"]
        assert call("POST", f"{url}/ann/login") == {"reminder": "cancelled"}
        assert call("POST", f"{url}/ann/login") == {"reminder": "is cancelled already"}
        assert [found["user"] for found in payloads(server, "reminders", 1)] == ["ben"]
        assert call("POST", f"{url}/ben/login") == {"reminder": "is sent already"}


def test_a_worker_handles_tries_again_and_gives_up(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "tarry", "worker", "app:worker"]
    with (
        Client(server.url) as client,
        application(command, environment(server, FIRST_WAIT="50ms"), EXAMPLES / "worker") as worker,
    ):
        for user in ("nobody", "ann"):
            client.schedule("reminders", {"user": user, "text": "hello"}, delay="1s")
        assert worker.line() == "dear ann: hello (attempt 1)"
        assert worker.line().startswith("gave up: ")


def test_a_receiver_acts_once_for_what_is_signed(tmp_path: Path) -> None:
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    port = free_port()
    allowed = f'{SMALL}[webhook]\nallow = ["127.0.0.1"]\nsecrets = ["{secret}"]\n'
    with running(tmp_path / "data", allowed) as server:
        given = environment(
            server, WEBHOOK_SECRETS=secret, PORT=str(port), SEEN=str(tmp_path / "seen.sqlite")
        )
        receiver = [sys.executable, str(EXAMPLES / "webhook_receiver" / "receiver.py")]
        with application(receiver, given) as program, Client(server.url) as client:
            url = f"http://127.0.0.1:{port}/hook"
            assert call("POST", url, b'{"order": 18}') == 401
            forged = {
                "webhook-id": "x",
                "webhook-timestamp": str(int(time.time())),
            }
            for signature in ("v1,AAAA", "v1,\xe4"):
                assert call("POST", url, b'{"order": 18}', forged | {"webhook-signature": signature}) == 401
            for length in ("-1", "x", str(1 << 30)):
                assert call("POST", url, b"", {"content-length": length}) == 413
            client.schedule(url, {"order": 17}, delay="100ms")
            assert program.line() == 'new: {"order":17}'


def test_an_order_that_fails_comes_back_with_growing_delays(tmp_path: Path) -> None:
    pytest.importorskip("pulsar")
    port = free_port()
    door = f"{SMALL}[doors.pulsar]\nenabled = true\nport = {port}\n"
    with running(tmp_path / "data", door) as server:
        given = environment(server, PULSAR_URL=f"pulsar://127.0.0.1:{port}", DELAYS_MS="300,600,900")
        program = [sys.executable, "retry.py"]
        with application([*program, "work"], given, EXAMPLES / "pulsar_retry") as worker:
            for body in ("fails always", "fails twice", "order 17"):
                subprocess.run(
                    [*program, "send", body],
                    env=given,
                    cwd=EXAMPLES / "pulsar_retry",
                    check=True,
                    timeout=WITHIN_S,
                    capture_output=True,
                )
            said: set[str] = set()
            expected = {
                "done: order 17 (attempt 1)", "done: fails twice (attempt 3)", "gave up: fails always"
            }  # fmt: skip
            while not expected <= said:
                said.add(worker.line())
        assert {line for line in said if line.startswith(("done", "gave"))} == expected


def test_an_order_is_cancelled_unless_it_is_paid(tmp_path: Path) -> None:
    port, app_port, grpc_port = free_port(), free_port(), free_port()
    command = [
        sys.executable, "-m", "tarry", "dapr", "run", "--app-id", "shop", "--app-port", str(app_port),
        "--dapr-http-port", str(port), "--dapr-grpc-port", str(grpc_port),
        "--data", str(tmp_path / "shop-data"), "--port", "0", "--", sys.executable, "saga.py",
    ]  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TARRY_", "DAPR_"))}
    given = kept | {"PYTHONPATH": str(ROOT / "src"), "PAY_WITHIN": "PT2S", "PYTHONUNBUFFERED": "1"}
    with application(command, given, EXAMPLES / "dapr_order_saga") as shop:
        url = f"http://127.0.0.1:{app_port}/orders"
        call("GET", f"{url}/17")
        _until_subscribed(port)
        for path in ("/17", "/18", "/18/payment"):
            assert call("POST", url + path, b"") == {"status": "SUCCESS"}
        with contextlib.suppress(StopIteration):
            next(line for line in iter(shop.line, None) if line.startswith("warehouse: order 17"))
        assert call("GET", f"{url}/17") == {"state": "cancelled"}
        assert call("GET", f"{url}/18") == {"state": "paid"}


def _until_subscribed(port: int) -> None:
    """Wait until the sidecar says that it is well: before, a publish is refused."""
    end = time.monotonic() + WITHIN_S
    while call("GET", f"http://127.0.0.1:{port}/v1.0/healthz") == 500:
        assert time.monotonic() < end
        time.sleep(0.05)
