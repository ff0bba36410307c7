"""`tarry dapr run`: a server and an application that live and die together."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT, free_port

PRINT = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'DAPR' in k or k.startswith('APP_')}))"
PUBLISH = """
import os, urllib.request
url = os.environ["DAPR_HTTP_ENDPOINT"] + "/v1.0/publish/pubsub/t?metadata.scheduledSendTime=PT1H"
answer = urllib.request.urlopen(urllib.request.Request(url, data=b"1", method="POST"))
print(answer.status, len(answer.headers["tarry-message-id"]))
raise SystemExit(7)
"""


ASK = """
import json, os, urllib.error, urllib.request
url = os.environ["DAPR_HTTP_ENDPOINT"] + "/v1.0/"
shown = json.load(urllib.request.urlopen(url + "metadata"))
print(json.dumps([shown["id"], [one["name"] for one in shown["components"]], shown["enabledFeatures"], shown["appConnectionProperties"]]))
try:
    urllib.request.urlopen(url + "publish/mine/t?metadata.scheduledSendTime=PT1H", data=b"1")
except urllib.error.HTTPError as refused:
    print(json.load(refused)["errorCode"])
"""


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tarry",
            "dapr",
            "run",
            "--data",
            str(folder / "data"),
            "--port",
            "0",
            *arguments,
        ],
        env={**kept, "PYTHONPATH": str(ROOT / "src"), "TARRY_LEDGER__SEGMENT_BYTES": "1048576"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def test_the_application_finds_the_door_and_its_end_is_the_end(tmp_path: Path) -> None:
    run = start(tmp_path, "--app-id", "shop", "--app-port", "4321", "--", sys.executable, "-c", PRINT)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    ready, given = out.splitlines()
    variables = json.loads(given)
    assert ready.startswith("tarry: ready on ")
    assert variables["APP_ID"] == "shop"
    assert variables["APP_PORT"] == "4321"
    assert variables["APP_PROTOCOL"] == "http"
    assert variables["DAPR_HTTP_PORT"] in ready
    assert variables["DAPR_GRPC_PORT"] in ready
    # The application may publish as soon as it runs, and its exit code is the command's.
    again = start(tmp_path, sys.executable, "-c", PUBLISH)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 7, err
    assert out.splitlines()[1].split()[0] == "204"


def test_every_option_of_dapr_is_heeded(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {name: c}\n"
        "spec: {features: [{name: DelayedMessaging, enabled: false}]}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: mine}\n"
        "spec: {type: pubsub.in-memory, version: v1, metadata: [{name: enableDelayedMessaging, value: true}]}\n"
    )
    port = free_port()
    options = {
        "--app-id": "shop", "--app-port": "4321", "--app-protocol": "grpc", "--config": "config.yaml",
        "--resources-path": "mine.yaml", "--namespace": "eu", "--dapr-http-port": str(port),
        "--app-health-check-path": "/well", "--app-health-probe-interval": "7", "--app-health-probe-timeout": "900",
        "--app-health-threshold": "2", "--disable-init-endpoints": "subscribe",
    }  # fmt: skip
    given = ["--enable-app-health-check", *(word for option in options.items() for word in option)]
    run = start(tmp_path, *given, "--", sys.executable, "-c", ASK)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    ready, shown, refused = out.splitlines()
    assert str(port) in ready
    id_, components, features, connection = json.loads(shown)
    assert (id_, components, features) == ("shop", ["mine"], [])
    assert (connection["port"], connection["protocol"]) == (4321, "grpc")
    assert connection["health"] == {
        "healthProbeInterval": "7s", "healthProbeTimeout": "900ms", "healthThreshold": 2
    }  # fmt: skip
    assert refused == "ERR_PUBSUB_DELAYED_MESSAGING_DISABLED"


def test_a_signal_ends_both(tmp_path: Path) -> None:
    waiting = "import signal, time; print('here', flush=True); time.sleep(600)"
    run = start(tmp_path, sys.executable, "-c", waiting)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("tarry: ready on ")
    assert run.stdout.readline() == "here\n"
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    run = start(tmp_path, "--app-protocol", "smoke", "--", "true")
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "APP_PROTOCOL" in err
    missing = start(tmp_path, "--", str(tmp_path / "nothing"))
    _, err = missing.communicate(timeout=120)
    assert missing.returncode == 127
    assert "cannot start" in err
    (tmp_path / "bad.yaml").write_text("kind: Component\n")
    wrong = start(tmp_path, "--resources-path", str(tmp_path / "bad.yaml"), "--", "true")
    _, err = wrong.communicate(timeout=120)
    assert wrong.returncode == 1
    assert "bad.yaml: document 1: apiVersion: is missing" in err
