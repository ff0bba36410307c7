"""The Java client with the addresses of both servers goes on across a takeover. `make cluster` runs it."""

import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.brokers import Brokers
from tests.cluster.servers import service_url, two_servers
from tests.conformance.pulsar.java_kit import CLIENT, class_path, command, need_compiler
from tests.crash.books import now_ms

pytestmark = pytest.mark.soak

PROGRAM: Final = Path(__file__).with_name("Takeover.java")
COUNT: Final = 100
EVERY_MS: Final = 100
DELAY_MS: Final = 2_000
KILLED_AFTER: Final = 20
DEDUPLICATED: Final = "[policies.broker]\ndeduplication = true\n"
"""The client sends again what was not answered when its connection broke."""


def test_pulsars_java_client_loses_nothing_and_gets_nothing_early_or_twice(
    one_broker: Brokers, tmp_path: Path
) -> None:
    classes = class_path(CLIENT)
    need_compiler()
    topic = one_broker.make_topic("ledger-of-java", min_insync_replicas="1")
    due: dict[str, int] = {}
    places: defaultdict[str, set[str]] = defaultdict(set)
    early: list[str] = []
    answered_ms: dict[str, int] = {}
    came_ms: list[int] = []
    struck_ms = 0
    others: list[str] = []
    with two_servers(tmp_path, one_broker, topic, further=DEDUPLICATED) as (owner, standby):
        given = [service_url([owner, standby]), "orders", str(COUNT), str(EVERY_MS), str(DELAY_MS)]
        with subprocess.Popen(
            command(classes, str(PROGRAM), *given),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                match line.split():
                    case ["sent", name, due_ms]:
                        due[name] = int(due_ms)
                    case ["answered", name, at_ms]:
                        answered_ms[name] = int(at_ms)
                    case ["came", name, at_ms, place]:
                        places[name].add(place)
                        came_ms.append(int(at_ms))
                        early += [name] if int(at_ms) < due[name] else []
                    case _:
                        others.append(line)
                if len(answered_ms) == KILLED_AFTER and not struck_ms:
                    struck_ms = now_ms()
                    owner.kill()
        assert process.returncode == 0, others[-20:]
        assert others[-1] == "end\n", others[-20:]
        assert standby.figure("tarry_cluster_epoch") == 2
    print(
        f"{len(answered_ms)} answered and {len(places)} came; the first answer after the kill came {min(at for at in answered_ms.values() if at > struck_ms) - struck_ms} ms "
        f"and the first message {min(at for at in came_ms if at > struck_ms) - struck_ms} ms later"
    )
    assert len(answered_ms) == COUNT
    assert due.keys() == answered_ms.keys() == places.keys()
    assert not early
    # An entry that was not acknowledged may come again; a message is in the topic once.
    assert not {name: entries for name, entries in places.items() if len(entries) > 1}
    assert max(answered_ms.values()) > struck_ms + 3_000
