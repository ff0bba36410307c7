"""`pulsar-admin` itself, command by command. Each one starts a Java machine, so `make soak` runs it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.pulsar.java_kit import TOOLS, class_path, java
from tests.conformance.pulsar.kit import Broker

pytestmark = pytest.mark.soak

TOPIC, PARTED = "persistent://public/default/tool", "persistent://public/default/tool-parted"

WORKS = f"""
tenants create acme --admin-roles ann --allowed-clusters standalone
tenants list
tenants get acme
tenants update acme --admin-roles bob --allowed-clusters standalone
namespaces create acme/eu
namespaces list acme
namespaces policies acme/eu
namespaces set-delayed-delivery acme/eu -e -t 2s -md 5s
namespaces get-delayed-delivery acme/eu
namespaces remove-delayed-delivery acme/eu
namespaces set-message-ttl -ttl 60 acme/eu
namespaces get-message-ttl acme/eu
namespaces remove-message-ttl acme/eu
namespaces set-retention acme/eu --time 1h --size 10M
namespaces get-retention acme/eu
namespaces remove-retention acme/eu
namespaces set-backlog-quota acme/eu --limit 10M --policy producer_request_hold
namespaces get-backlog-quotas acme/eu
namespaces remove-backlog-quota acme/eu
namespaces topics acme/eu
namespaces clear-backlog acme/eu --force
topics create {TOPIC}
topics list public/default
topics create-partitioned-topic {PARTED} -p 2
topics list-partitioned-topics public/default
topics get-partitioned-topic-metadata {PARTED}
topics update-partitioned-topic {PARTED} -p 3
topics create-subscription {TOPIC} -s sub
topics subscriptions {TOPIC}
topics stats {TOPIC}
topics partitioned-stats {PARTED}
topics stats-internal {TOPIC}
topics lookup {TOPIC}
topics last-message-id {TOPIC}
topics skip {TOPIC} -s sub -n 1
topics clear-backlog {TOPIC} -s sub
topics expire-messages {TOPIC} -s sub -t 10
topics reset-cursor {TOPIC} -s sub -t 1m
topics unsubscribe {TOPIC} -s sub
topicPolicies set-delayed-delivery {TOPIC} -e -t 3s -md 1m
topicPolicies get-delayed-delivery {TOPIC}
topicPolicies get-delayed-delivery {TOPIC} --applied
topicPolicies remove-delayed-delivery {TOPIC}
topicPolicies set-message-ttl {TOPIC} -t 5
topicPolicies get-message-ttl {TOPIC}
topicPolicies set-retention {TOPIC} -t 1h -s 1M
topicPolicies get-retention {TOPIC}
topicPolicies set-backlog-quota {TOPIC} -l 1M -p consumer_backlog_eviction
topicPolicies get-backlog-quota {TOPIC}
topics set-delayed-delivery {TOPIC} -e
topics get-delayed-delivery {TOPIC}
brokers healthcheck
brokers list standalone
brokers leader-broker
clusters list
clusters get standalone
topics delete {TOPIC} -f
topics delete-partitioned-topic {PARTED} -f
namespaces delete acme/eu
tenants delete acme
""".strip().splitlines()
"""In this order: later ones need earlier ones."""


@pytest.fixture(scope="module")
def tool(server: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    classes = class_path(TOOLS)
    folder: Path = tmp_path_factory.mktemp("tool")
    conf = folder / "client.conf"
    conf.write_text(f"webServiceUrl={server.server.url}/\nbrokerServiceUrl={server.url}/\n")

    def run(*arguments: str) -> tuple[int, str]:
        ended = java(classes, "org.apache.pulsar.admin.cli.PulsarAdminTool", str(conf), *arguments)
        return ended.returncode, ended.stdout + ended.stderr

    return run


def test_every_command_for_what_is_served(tool: Callable[..., tuple[int, str]]) -> None:
    said: dict[str, str] = {}
    for command in WORKS:
        code, said[command] = tool(*command.split())
        assert code == 0, f"{command}: {said[command]}"
    policy = said["namespaces get-delayed-delivery acme/eu"]
    shown = json.loads(policy[policy.index("{") : policy.rindex("}") + 1])
    assert shown == {"tickTime": 2000, "active": True, "maxDeliveryDelayInMillis": 5000}
    assert '"partitions" : 2' in said[f"topics get-partitioned-topic-metadata {PARTED}"]
    assert "ok" in said["brokers healthcheck"]


def test_refusals_reach_the_operator(tool: Callable[..., tuple[int, str]]) -> None:
    missing = "persistent://public/default/no-such-topic"
    for command, said in [
        (f"topics stats {missing}", f"Topic {missing} not found"),
        (f"topicPolicies get-delayed-delivery {missing}", f"Topic {missing} not found"),
        ("namespaces get-delayed-delivery public/none", "Namespace does not exist"),
        ("namespaces set-delayed-delivery public/default", "either enable or disable"),
    ]:
        code, told = tool(*command.split())
        assert (code, said in told) == (1, True), told
