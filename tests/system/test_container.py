"""The container file is built, and run as its page says. `make container` runs it: Debian, root, minutes and 4 GB of disk.

The base is an image of Debian that is made here from packages, and not the one that the file names: see `tools/container.sh`.
"""

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import grpc
import httpx
import pulsar
import pytest

from tests.documents import runnable
from tests.processes import ROOT, free_port
from tests.system.podman import BASE, NETWORK, Podman, pip_options
from tests.waiting import wait_until

pytestmark = pytest.mark.soak

TOKEN: Final = "only-for-this-test"
CONFIG: Final = f"""\
[[tokens]]
name = "tester"
token = "{TOKEN}"
roles = ["admin"]

[doors.matrix]
homeserver = "http://127.0.0.1:9"  # nobody listens there; without one, a private Synapse would be fetched
registration = "registration.yaml"

[pipeline]
flush_every_ms = 1000
"""
BUILD_WITHIN_S: Final = 1500
PIPELINE_WITHIN_S: Final = 180
"""Spark's start, on a slow machine."""
TOPIC: Final = "persistent://public/default/boxed"


class Container:
    """A container of Tarry, and the ports of this machine where its doors are."""

    def __init__(self, podman: Podman, name: str) -> None:
        self.name = name
        self.podman = podman
        self.ports = {inside: free_port() for inside in (8080, 8008, 3500, 50001, 6650)}
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.ports[8080]}",
            headers={"authorization": f"Bearer {TOKEN}"},
            timeout=60,
        )

    def wait_ready(self) -> None:
        """Wait until it says that it is ready."""
        wait_until(self._is_ready, self.said)

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").is_success
        except httpx.TransportError:
            assert self.podman.inspect(self.name)["State"]["Running"], self.said()
            return False

    def execute(self, *command: str, within_s: float = 120) -> str:
        """Run a command inside; gives what it printed."""
        return self.podman("exec", self.name, *command, within_s=within_s)

    def said(self) -> str:
        """The container's last lines."""
        ended = self.podman.try_to("logs", "--tail=100", self.name)
        return ended.stdout + ended.stderr

    def exit_code(self) -> int:
        """How it ended."""
        state = self.podman.inspect(self.name)["State"]
        assert not state["Running"]
        return int(state["ExitCode"])

    def call(self, path: str, body: object, method: str = "POST") -> Any:
        """Call the native API."""
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def received(self, topic: str, wait_ms: int) -> list[Any]:
        """Entries that a new subscription of a topic gets, from the beginning."""
        path = f"/v1/topics/public/default/{topic}/subscriptions/me"
        self.call(path, {"start": "earliest"}, "PUT")
        return list(self.call(f"{path}/receive", {"wait_ms": wait_ms})["messages"])


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Podman, and an end that leaves only what makes the next run quick."""
    made = Podman()
    yield made
    made("rm", "--all", "--force", "--time=0")
    made("volume", "rm", "--all", "--force")
    made("image", "prune", "--force")


@pytest.fixture(scope="module")
def run(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image as the page says; gives the command by which the page runs it."""
    (block,) = runnable("docs/operations/deploy.md")
    build, run = re.split(r"\n(?=podman run)", block.text)
    here = [f"--build-arg=BASE={BASE}", "--network=host", *pip_options(tmp_path_factory.mktemp("pip"))]
    build = build.replace("podman build", f"podman build {' '.join(here)}")
    podman.typed(build, ROOT, BUILD_WITHIN_S)
    # The stages before the last get a name too, so that they are not taken for waste in the end.
    podman.typed(build.replace("-t tarry", "-t tarry-packed --target packed"), ROOT, BUILD_WITHIN_S)
    return run


@pytest.fixture(scope="module")
def container(podman: Podman, run: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Tarry as the page runs it, with all of its doors published on loopback."""
    made = Container(podman, "tarry-test")
    published = [f"-p 127.0.0.1:{here}:{inside}" for inside, here in made.ports.items() if inside != 8080]
    registration = "-v ./registration.yaml:/etc/tarry/registration.yaml:ro"
    here = f"podman run --detach --name {made.name} --network {NETWORK} {' '.join(published)} {registration}"
    folder = tmp_path_factory.mktemp("container")
    (folder / "tarry.toml").write_text(CONFIG)
    (folder / "registration.yaml").write_text(json.dumps({"as_token": "a" * 40, "hs_token": "b" * 40}))
    run = run.replace("podman run", here).replace("127.0.0.1:8080:", f"127.0.0.1:{made.ports[8080]}:")
    podman.typed(run, folder)
    with made.client:
        made.wait_ready()
        yield made


def test_it_runs_without_rights_on_a_root_that_it_cannot_write(container: Container) -> None:
    status = dict(line.split(":\t", 1) for line in container.execute("cat", "/proc/1/status").splitlines())
    assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    refused = container.podman.try_to("exec", container.name, "touch", "/opt/tarry/x")
    assert "Read-only file system" in refused.stderr
    assert container.execute("stat", "--format=%U %G %a", "/data") == "tarry tarry 700"


def test_what_the_build_was_told_of_this_machine_is_not_in_the_image(container: Container) -> None:
    for path in ("/etc/pip.conf", "/packed", "/src"):
        assert container.podman.try_to("exec", container.name, "test", "-s", path).returncode == 1, path


def test_it_answers_its_health_check_and_nobody_does_for_a_server_that_is_not_there(
    container: Container,
) -> None:
    container.podman("healthcheck", "run", container.name)
    kind, program, *arguments = container.podman.inspect(container.name)["Config"]["Healthcheck"]["Test"]
    assert kind == "CMD"
    alone = container.podman.try_to(
        "run", "--rm", "--network=none", f"--entrypoint={program}", "tarry", *arguments
    )
    assert alone.returncode == 1
    assert "Connection refused" in alone.stderr


def test_it_does_not_start_without_tokens(podman: Podman, run: str) -> None:
    open_to_all = podman.try_to("run", "--rm", "--network=none", "--env=TARRY_CONFIG=", "tarry")
    assert open_to_all.returncode == 1
    assert "tokens" in open_to_all.stderr


def test_a_message_outlives_a_kill_and_arrives_once_and_not_early(container: Container) -> None:
    scheduled = container.call(
        "/v1/messages", {"destination": TOPIC, "payload": "still here", "delay": "15s"}
    )
    container.podman("kill", "--signal=KILL", container.name)
    assert container.exit_code() == 128 + signal.SIGKILL
    assert time.time() * 1000 < scheduled["due_at_ms"]
    container.podman("start", container.name)
    container.wait_ready()
    (message,) = container.received("boxed", wait_ms=60_000)
    assert time.time() * 1000 >= scheduled["due_at_ms"]
    assert message["published_at_ms"] >= scheduled["due_at_ms"] == message["due_at_ms"]
    assert message["payload"] == "still here"
    assert container.received("boxed", wait_ms=2_000) == []


def test_every_door_is_reached_from_the_host(container: Container) -> None:
    _, matrix, dapr, dapr_grpc, broker = (f"127.0.0.1:{port}" for port in container.ports.values())
    # There is no homeserver behind it, and it says so.
    assert httpx.get(f"http://{matrix}/_matrix/client/v3/sync").json()["errcode"] == "M_UNKNOWN"
    published = httpx.post(
        f"http://{dapr}/v1.0/publish/pubsub/dapr?metadata.scheduledSendTime=PT1S",
        json={"order": 66},
        headers={"dapr-api-token": TOKEN},
    )
    assert published.status_code == 204, published.text
    (event,) = container.received("dapr", wait_ms=60_000)
    assert json.loads(event["payload"])["data"] == {"order": 66}
    with grpc.insecure_channel(dapr_grpc) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
    client = pulsar.Client(f"pulsar://{broker}", authentication=pulsar.AuthenticationToken(TOKEN))
    try:
        consumer = client.subscribe("pulsar", "me", pulsar.ConsumerType.Shared)
        client.create_producer("pulsar").send(b"later", deliver_after=timedelta(seconds=1))
        assert consumer.receive(60_000).data() == b"later"
    finally:
        client.close()


def test_the_pipeline_runs_in_it_and_the_books_balance(container: Container) -> None:
    def finding(about: str) -> Any:
        told = container.podman.try_to("exec", container.name, "tarry", "doctor", "--json").stdout
        return {one["about"]: one for one in map(json.loads, told.splitlines())}[about]

    container.call("/v1/messages", {"destination": TOPIC, "payload": "much later", "delay": "1h"})
    assert finding("java")["level"] == "ok"
    wait_until(lambda: "running" in finding("pipeline")["text"], container.said, PIPELINE_WITHIN_S)
    container.execute("tarry", "audit", "/data", within_s=PIPELINE_WITHIN_S)


def test_a_spark_that_is_killed_starts_again_and_leaves_no_orphan_behind(container: Container) -> None:
    """The supervisor is the first process, which is given everybody's orphans."""
    listing = "import glob\nfor name in glob.glob('/proc/[0-9]*/stat'): print(open(name).read())"

    def processes() -> dict[int, tuple[str, str, int]]:
        """By pid: name, state, parent."""
        told = container.execute("python", "-c", listing)
        found = re.findall(r"^(\d+) \((.+)\) (\w) (\d+) ", told, re.MULTILINE)
        return {int(pid): (name, state, int(parent)) for pid, name, state, parent in found}

    def pipeline_java() -> int | None:
        """The child of a child of the supervisor."""
        seen = processes()
        children = {pid for pid, (_, state, parent) in seen.items() if parent == 1 and state != "Z"}
        javas = (pid for pid, (name, _, parent) in seen.items() if name == "java" and parent in children)
        return next(javas, None)

    wait_until(pipeline_java, container.said, PIPELINE_WITHIN_S)
    killed = pipeline_java()
    container.execute("python", "-c", f"import os; os.kill({killed}, 9)")
    wait_until(lambda: pipeline_java() not in (killed, None), container.said, PIPELINE_WITHIN_S)
    wait_until(lambda: not any(one[1:] == ("Z", 1) for one in processes().values()), lambda: str(processes()))


def test_told_to_stop_it_ends_well_and_the_next_start_has_everything(container: Container) -> None:
    waiting = container.call("/v1/messages", {"destination": TOPIC, "payload": "later", "delay": "1h"})
    container.podman("stop", container.name)
    assert container.exit_code() == 0
    assert "did not end in time" not in container.said()
    container.podman("start", container.name)
    container.wait_ready()
    assert container.call(f"/v1/messages/{waiting['id']}", None, "GET")["state"] == "scheduled"
