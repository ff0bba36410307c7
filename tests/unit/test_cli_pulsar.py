"""`tarry pulsar`: Pulsar's commands and flags, and commands for pending messages, against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ServerProcess, running
from tests.unit.cli_kit import Shell

CONFIG = "[doors.pulsar]\nenabled = true\nport = 0\n[ledger]\nsegment_bytes = 1048576\n"
NAMESPACE, TOPIC = "public/default", "persistent://public/default/orders"
PLACES = [("namespaces", NAMESPACE), ("topics", TOPIC), ("topicPolicies", TOPIC)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("pulsar") / "data"
    with running(folder, CONFIG) as process:
        yield process


@pytest.fixture
def tarry(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    shell = Shell(monkeypatch, capsys)
    shell.set("TARRY_URL", server.url)
    return shell


@pytest.fixture
def place(tarry: Shell, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    group, name = request.param
    if name == TOPIC:
        assert tarry("publish", TOPIC, "x").code == 0
    yield group, name
    assert tarry("pulsar", group, "remove-delayed-delivery", name).code == 0


def shown(tarry: Shell, group: str, name: str, *flags: str) -> Any:
    ended = tarry("pulsar", group, "get-delayed-delivery", *flags, name)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_set_get_and_remove(tarry: Shell, place: tuple[str, str]) -> None:
    group, name = place
    assert shown(tarry, group, name) is None
    assert tarry("pulsar", group, "set-delayed-delivery", name, "-e", "-t", "500ms", "-md", "5s").code == 0
    assert shown(tarry, group, name) == {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 5000}
    assert tarry("pulsar", group, "set-delayed-delivery", "--disable", name).code == 0
    assert shown(tarry, group, name) == {"tickTime": 1000, "active": False, "maxDeliveryDelayInMillis": 0}
    assert shown(tarry, group, name, "--applied")["active"] is False
    assert tarry("pulsar", group, "remove-delayed-delivery", name).code == 0
    assert shown(tarry, group, name) is None


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_pip_26_commands_and_their_defaults(tarry: Shell, place: tuple[str, str]) -> None:
    group, name = place
    assert tarry("pulsar", group, "enable-delayed-message", name).code == 0
    defaults = {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0}
    assert shown(tarry, group, name) == defaults | {"timePartitionGranularityInMillis": 300_000}
    assert tarry("pulsar", group, "set-delayed-delivery", name, "-e", "-md", "1w").code == 0
    assert tarry("pulsar", group, "enable-delayed-message", "-p", "2w", "-t", "250ms", name).code == 0
    found = shown(tarry, group, name)
    # They leave PIP-315's limit as it is.
    assert (found["maxDeliveryDelayInMillis"], found["tickTime"]) == (604_800_000, 250)
    assert found["timePartitionGranularityInMillis"] == 1_209_600_000
    assert tarry("pulsar", group, "disable-delayed-message", name).code == 0
    assert shown(tarry, group, name) == found | {"active": False}


@pytest.mark.parametrize("flags", [[], ["-e", "-d"]])
def test_either_enable_or_disable(tarry: Shell, flags: list[str]) -> None:
    ended = tarry("pulsar", "namespaces", "set-delayed-delivery", NAMESPACE, *flags)
    assert ended.code == 2
    assert "Need to specify either --enable or --disable" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["namespaces", "set-delayed-delivery", NAMESPACE, "-e", "-t", "soon"], 2, "is not a duration"),
        (["namespaces", "set-delayed-delivery", NAMESPACE, "-e", "-md", "-5s"], 2, "is not a duration"),
        (["namespaces", "set-delayed-delivery", NAMESPACE, "-e", "-t", "0"], 5, "tickTime must be > 0"),
        (["namespaces", "enable-delayed-message", NAMESPACE, "-p", "1ms"], 5, "slot_ms"),
        (["namespaces", "get-delayed-delivery", "public/none"], 3, "Namespace does not exist"),
        (["topics", "get-delayed-delivery", "nobody/made/this"], 3, "Namespace does not exist"),
        (["topics", "get-delayed-delivery", "this"], 3, "Topic persistent://public/default/this not found"),
        (["namespaces", "get-delayed-delivery", "public"], 5, "tenant/namespace"),
    ],
)
def test_what_is_refused(tarry: Shell, arguments: list[str], code: int, said: str) -> None:
    ended = tarry("pulsar", *arguments)
    assert (ended.code, said in " ".join(ended.err.split())) == (code, True), ended.err


# Pending messages


def test_pending_messages(tarry: Shell) -> None:
    topic = "pending"
    for number, key in enumerate(("red", "blue", "red")):
        assert tarry("publish", topic, f"message {number}", "--in", "1h", "--key", key).code == 0
    assert tarry("publish", topic, "at once").code == 0
    commands = ("pulsar", "topics")
    listed = tarry(*commands, "list-delayed", topic, "--json").json()
    assert [(entry["entry_id"], entry["key"]) for entry in listed] == [(0, "red"), (1, "blue"), (2, "red")]
    place = tarry(*commands, "list-delayed", topic, "-n", "1").out.partition("  due ")[0]
    ledger, entry, partition = place.split(":")
    assert (int(ledger) > 1, entry, partition) == (True, "0", "-1")
    assert "message 0" in tarry(*commands, "peek-delayed", topic, place).out
    assert "is no message of" in tarry(*commands, "cancel-delayed", topic, f"{int(ledger) + 1}:0").err
    assert [
        entry["entry_id"] for entry in tarry(*commands, "list-delayed", topic, "-k", "red", "--json").json()
    ] == [0, 2]
    assert "message 1" in tarry(*commands, "peek-delayed", topic, "1:1").out
    (peeked,) = tarry(*commands, "peek-delayed", topic, "1", "--json").json()
    assert peeked["payload"] == "message 1"
    (moved,) = tarry(*commands, "reschedule-delayed", topic, "1:1:-1", "--in", "2h", "--json").json()
    assert moved["due_at_ms"] > peeked["due_at_ms"]
    assert len(tarry(*commands, "cancel-delayed", topic, "--key", "red", "--json").json()) == 2
    assert (
        len(
            tarry(
                *commands, "reschedule-delayed", topic, "--all", "--at", "2100-01-01T00:00:00Z"
            ).out.splitlines()
        )
        == 1
    )
    assert tarry(*commands, "cancel-delayed", topic, "1:1").code == 0
    assert tarry(*commands, "list-delayed", topic).out == ""
    assert tarry(*commands, "cancel-delayed", topic, "1:1").code == 3
    assert tarry(*commands, "cancel-delayed", topic, "3").code == 4


def test_pending_messages_of_a_partitioned_topic(tarry: Shell, server: ServerProcess) -> None:
    import httpx

    path = server.url + "/admin/v2/persistent/public/default/parted/partitions"
    assert httpx.put(path, json=2, trust_env=False).status_code == 204
    for number in range(2):
        assert tarry("publish", f"parted-partition-{number}", "x", "--in", "1h").code == 0
    commands = ("pulsar", "topics")

    def listed() -> list[str]:
        lines = tarry(*commands, "list-delayed", "parted").out.splitlines()
        return [line.partition(" ")[0] for line in lines]

    first, second = listed()
    assert [place.partition(":")[2] for place in (first, second)] == ["0:0", "0:1"]
    assert first.partition(":")[0] != second.partition(":")[0]
    assert tarry(*commands, "cancel-delayed", "parted", "1:0").code == 2
    # As earlier versions printed it.
    assert tarry(*commands, "cancel-delayed", "parted", "1:0:1").out.startswith(second)
    assert listed() == [first]


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel-delayed", "t"],
        ["cancel-delayed", "t", "1:1", "--all"],
        ["cancel-delayed", "t", "x"],
        ["reschedule-delayed", "t", "1:1"],
        ["peek-delayed", "t"],
    ],
)
def test_commands_that_are_not_understood(tarry: Shell, arguments: list[str]) -> None:
    assert tarry("pulsar", "topics", *arguments).code == 2
