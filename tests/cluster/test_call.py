"""A call of matrix-js-sdk goes on while another server takes over: nobody leaves it, and who dies later does. `make cluster` runs it."""

import json
import os
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.cluster.balancer import Balancer
from tests.cluster.brokers import Brokers
from tests.cluster.links import Network
from tests.cluster.servers import ClusterServer
from tests.conformance.matrix.conftest import UNLIMITED
from tests.conformance.matrix.people import Person
from tests.conformance.matrix.sdk import sdk
from tests.conformance.matrix.synapse import Synapse
from tests.conformance.matrix.test_js_sdk import MEMBER
from tests.crash.books import now_ms
from tests.processes import free_port
from tests.waiting import until

pytestmark = pytest.mark.soak

DELAY_MS: Final = 12_000
"""Delay of the leave: longer than a takeover, and shorter than what follows."""
RESTART_MS: Final = 1_000
DOOR: Final = """
[doors.matrix]
enabled = true
port = {port}
homeserver = "{homeserver.url}"
registration = "{registration}"
{limits}
"""


async def test_a_call_goes_on_and_who_dies_after_the_takeover_has_left_once(
    one_broker: Brokers, network: Network, tmp_path: Path
) -> None:
    topic = one_broker.make_topic("ledger-of-a-call", min_insync_replicas="1")
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    owner, standby = (ClusterServer(tmp_path / name, one_broker.addresses, topic, key) for name in ("a", "b"))
    for server in (owner, standby):
        server.doors["matrix"] = free_port()
    balancer = Balancer(network, [owner.backend, standby.backend])
    port = balancer.port("matrix")
    homeserver = Synapse(tmp_path / "synapse", port)
    for server in (owner, standby):
        door = DOOR.format(
            port=server.doors["matrix"],
            homeserver=homeserver,
            registration=homeserver.registrations[port],
            limits=UNLIMITED,
        )
        server.file.write_text(server.config + door)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        with owner, standby:
            try:
                homeserver.launch()
                owner.launch()
                owner.wait_owner()
                standby.launch()
                standby.wait_standby()
                homeserver.wait_ready()
                await until(lambda: balancer.ready == {0})
                alice, bob = (
                    Person(http, f"http://127.0.0.1:{port}", homeserver.register(name))
                    for name in ("alice", "bob")
                )
                await _call(alice, bob.at(homeserver.url), owner, standby)
            finally:
                homeserver.kill()


async def _call(alice: Person, bob: Person, owner: ClusterServer, standby: ClusterServer) -> None:
    """Alice is in the call; Bob sees the room as the homeserver has it."""
    room = await alice.create_room()
    await bob.join(room)
    async with sdk("rtc", alice, room, delay=DELAY_MS, restart=RESTART_MS) as client:
        while await client.said("status") != "Connected":
            pass
        (delayed,) = (await alice.listed())["scheduled"]
        struck_ms = now_ms()
        owner.kill()
        await until(lambda: standby.owns)
        taken_ms = now_ms()
        last_ms = 0

        async def longer_than_the_delay() -> bool:
            nonlocal last_ms
            (still,) = (await alice.listed())["scheduled"]
            assert still["delay_id"] == delayed["delay_id"]
            last_ms = still["running_since"]
            return bool(last_ms > taken_ms + DELAY_MS)

        await until(longer_than_the_delay)
        (joined,) = await bob.events(room, MEMBER)
        assert joined["content"]["application"] == "m.call"
        await client.kill()
        killed_ms = now_ms()
        assert client.process.stdout is not None
        said = [json.loads(line) for line in (await client.process.stdout.read()).splitlines()]
    print(f"taken over after {taken_ms - struck_ms} ms; the client said {said}")
    assert not [line for line in said if "failed" in line or line.get("joined") is False]
    assert all(line["members"] == 1 for line in said if "members" in line)
    left = (await bob.arrived(room, 2, MEMBER))[1]
    assert (left["content"], left["state_key"]) == ({}, joined["state_key"])
    assert left["origin_server_ts"] >= last_ms + DELAY_MS
    # Within the delay of its last sign of life; generous, for a busy machine.
    assert left["origin_server_ts"] <= killed_ms + DELAY_MS + 15_000
    entry = await alice.finalised(delayed["delay_id"])
    assert (entry["outcome"], entry["reason"]) == ("send", "delay")
    assert len(await bob.events(room, MEMBER)) == 2
