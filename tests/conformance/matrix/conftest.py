"""One Synapse for all tests, and two Tarrys in front of it: one as it comes, and one with every switch set."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

import httpx
import pytest

from tests.conformance.matrix.people import Person, fresh
from tests.conformance.matrix.synapse import Synapse
from tests.processes import ServerProcess, free_port


class Door(NamedTuple):
    """A Tarry with an open Matrix door."""

    url: str
    server: ServerProcess


UNLIMITED: Final = "\n".join(
    f"{name} = 0"
    for name in (
        "schedule_per_second",
        "manage_per_second",
        "manage_per_second_per_event",
        "list_per_second",
        "send_per_second",
    )
)
"""Tests are faster than people."""

SWITCHED: Final = """
trusted_proxies = ["127.0.0.1"]
management_token = true
cancel_by_state_update = true
schedule_per_second = 10
manage_per_second = 4
list_per_second = 15
send_per_second = 4
"""


def config(homeserver: Synapse, port: int, more: str = "") -> str:
    """The configuration of a Tarry in front of a homeserver."""
    return f"""
[ledger]
segment_bytes = 1048576
[doors.matrix]
enabled = true
port = {port}
homeserver = "{homeserver.url}"
registration = "{homeserver.registrations[port]}"
{more}"""


class Stage(NamedTuple):
    """Everything that all tests share."""

    homeserver: Synapse
    door: Door
    switched: Door


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The homeserver and the doors before it. They start together: neither needs the other for that."""
    ports = free_port(), free_port()
    homeserver = Synapse(tmp_path_factory.mktemp("homeserver") / "synapse", *ports)
    folder = tmp_path_factory.mktemp("doors")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(folder / f"data-{port}", config(homeserver, port, more)))
            for port, more in zip(ports, (UNLIMITED, SWITCHED), strict=True)
        ]
        for server in servers:
            server.launch()
        stack.callback(homeserver.kill)
        homeserver.launch()
        for server in servers:
            server.wait_ready()
        homeserver.wait_ready()
        doors = [
            Door(f"http://127.0.0.1:{port}", server) for port, server in zip(ports, servers, strict=True)
        ]
        yield Stage(homeserver, *doors)


@pytest.fixture
def homeserver(stage: Stage) -> Synapse:
    """The homeserver."""
    return stage.homeserver


@pytest.fixture
def door(stage: Stage) -> Door:
    """A Tarry as it comes, but for its rates."""
    return stage.door


@pytest.fixture
def switched_door(stage: Stage) -> Door:
    """A Tarry with low rates and every switch set the other way."""
    return stage.switched


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client; the limits of its pool are out of the way."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False, limits=limits) as client:
        yield client


@pytest.fixture
def someone(homeserver: Synapse, http: httpx.AsyncClient) -> Callable[[str], Person]:
    """Makes a new user at an address."""
    return lambda url: Person(http, url, homeserver.register(fresh("user")))


@pytest.fixture
def alice(door: Door, someone: Callable[[str], Person]) -> Person:
    """A user of this test's own."""
    return someone(door.url)


@pytest.fixture
def bob(door: Door, someone: Callable[[str], Person]) -> Person:
    """Another one."""
    return someone(door.url)


@pytest.fixture
async def room(alice: Person) -> str:
    """A room of Alice's."""
    return await alice.create_room()
