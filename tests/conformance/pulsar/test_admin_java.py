"""`pulsar-admin` itself, command by command. It needs Java and Maven, so `make soak` runs it."""

import re
from pathlib import Path

import pytest

from tests.conformance.pulsar.java_kit import TOOLS, class_path, java
from tests.conformance.pulsar.kit import Broker

pytestmark = pytest.mark.soak

T, P = "persistent://public/default/tool", "persistent://public/default/tool-parted"

SERVED = {
    "tenants and namespaces": """
        tenants create acme --admin-roles ann --allowed-clusters standalone
        tenants list
        tenants get acme
        tenants update acme --admin-roles bob --allowed-clusters standalone
        namespaces create acme/eu
        namespaces list acme
        namespaces policies acme/eu
        namespaces topics acme/eu
        namespaces clear-backlog acme/eu --force
        namespaces delete acme/eu
        tenants delete acme
    """,
    "policies of namespaces": """
        namespaces set-delayed-delivery public/default -e -t 2s -md 5s
        namespaces get-delayed-delivery public/default
        namespaces remove-delayed-delivery public/default
        namespaces set-message-ttl -ttl 60 public/default
        namespaces get-message-ttl public/default
        namespaces remove-message-ttl public/default
        namespaces set-retention public/default --time 1h --size 10M
        namespaces get-retention public/default
        namespaces remove-retention public/default
        namespaces set-backlog-quota public/default --limit 10M --policy producer_request_hold
        namespaces get-backlog-quotas public/default
        namespaces remove-backlog-quota public/default
    """,
    "policies of topics": f"""
        topics create {T}-policies
        topicPolicies set-delayed-delivery {T}-policies -e -t 3s -md 1m
        topicPolicies get-delayed-delivery {T}-policies
        topicPolicies get-delayed-delivery {T}-policies --applied
        topicPolicies remove-delayed-delivery {T}-policies
        topicPolicies set-message-ttl {T}-policies -t 5
        topicPolicies get-message-ttl {T}-policies
        topicPolicies set-retention {T}-policies -t 1h -s 1M
        topicPolicies get-retention {T}-policies
        topicPolicies set-backlog-quota {T}-policies -l 1M -p consumer_backlog_eviction
        topicPolicies get-backlog-quota {T}-policies
        topics set-delayed-delivery {T}-policies -e
        topics get-delayed-delivery {T}-policies
    """,
    "topics": f"""
        topics create {T}
        topics list public/default
        topics create-partitioned-topic {P} -p 2
        topics list-partitioned-topics public/default
        topics get-partitioned-topic-metadata {P}
        topics update-partitioned-topic {P} -p 3
        topics stats {T}
        topics partitioned-stats {P}
        topics stats-internal {T}
        topics lookup {T}
        topics last-message-id {T}
        topics delete {T} -f
        topics delete-partitioned-topic {P} -f
    """,
    "subscriptions": f"""
        topics create {T}-subs
        topics create-subscription {T}-subs -s sub
        topics subscriptions {T}-subs
        topics skip {T}-subs -s sub -n 1
        topics clear-backlog {T}-subs -s sub
        topics expire-messages {T}-subs -s sub -t 10
        topics reset-cursor {T}-subs -s sub -t 1m
        topics unsubscribe {T}-subs -s sub
    """,
    "the cluster": """
        brokers healthcheck
        brokers list standalone
        brokers leader-broker
        clusters list
        clusters get standalone
    """,
}
"""Commands in their order: later ones of a group need earlier ones."""

SAID = {
    "namespaces get-delayed-delivery public/default": '"maxDeliveryDelayInMillis" : 5000',
    "namespaces get-message-ttl public/default": "60",
    "namespaces get-backlog-quotas public/default": "producer_request_hold",
    f"topicPolicies get-delayed-delivery {T}-policies": '"tickTime" : 3000',
    f"topics get-partitioned-topic-metadata {P}": '"partitions" : 2',
    f"topics subscriptions {T}-subs": "sub",
    f"topics lookup {T}": "pulsar://",
    "brokers healthcheck": "ok",
    "clusters list": "standalone",
    "tenants get acme": "ann",
}
"""The output of some commands."""


SHELL, TOOL = "org.apache.pulsar.shell.PulsarShell", "org.apache.pulsar.admin.cli.PulsarAdminTool"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def conf(server: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("tool") / "client.conf"
    file.write_text(f"webServiceUrl={server.server.url}/\nbrokerServiceUrl={server.url}/\n")
    return file


def told(conf: Path, commands: list[str]) -> dict[str, str]:
    """The output of each command. One machine runs them all, in Pulsar's shell: the same commands, started once."""
    classes, script = class_path(TOOLS), conf.with_name("commands.txt")
    script.write_text("".join(f"admin {command}\n" for command in commands))
    printed = _COLOUR.sub("", java(classes, SHELL, "-c", str(conf), "-f", str(script)).stdout)
    parts = re.split(r"^\[\d+/\d+\] Executing admin (.*)$", printed, flags=re.MULTILINE)
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    # After each command the shell shows all that it has run, which is nothing that the command says.
    return {name: re.sub(r"^\[\d+/\d+\].*$", "", text, flags=re.MULTILINE) for name, text in said.items()}


@pytest.mark.parametrize("group", SERVED)
def test_every_command_for_what_is_served(conf: Path, group: str) -> None:
    commands = [line.strip() for line in SERVED[group].strip().splitlines()]
    said = told(conf, commands)
    assert list(said) == commands
    for command, text in said.items():
        assert not re.search("Reason:|Usage:|Exception", text), f"{command}: {text}"
        assert SAID.get(command, "") in text, f"{command}: {text}"


def test_refusals_reach_the_operator(conf: Path) -> None:
    missing = "persistent://public/default/no-such-topic"
    expected = {
        f"topics stats {missing}": f"Topic {missing} not found",
        f"topicPolicies get-delayed-delivery {missing}": f"Topic {missing} not found",
        "namespaces get-delayed-delivery public/none": "Namespace does not exist",
        "namespaces set-delayed-delivery public/default": "either --enable or --disable",
    }
    for command, text in told(conf, list(expected)).items():
        assert expected[command] in text


def test_the_tool_by_itself(conf: Path) -> None:
    classes = class_path(TOOLS)
    ended = java(classes, TOOL, str(conf), "brokers", "healthcheck")
    assert (ended.returncode, "ok" in ended.stdout) == (0, True)
    assert (
        java(classes, TOOL, str(conf), "topics", "stats", "persistent://public/default/none").returncode == 1
    )
