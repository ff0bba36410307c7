"""A homeserver with Tarry in front of it, for suites about delayed events: Synapse from PyPI, without any of its own."""

import contextlib
from collections.abc import Iterator

from msgspec import Struct

from tarry.homeserver import environment
from tests.conformance.matrix.conftest import UNLIMITED
from tests.conformance.matrix.people import fresh
from tests.conformance.matrix.synapse import ENVIRONMENT, Synapse
from tests.peers.workplace import Workplace
from tests.processes import ServerProcess, free_port


class Account(Struct, frozen=True):
    """A user with a device."""

    user_id: str
    access_token: str
    device_id: str


class Stage(Struct, frozen=True):
    """The homeserver and the door."""

    url: str
    """Where clients find it: the door."""
    homeserver: Synapse
    server: ServerProcess

    def register(self) -> Account:
        """Make a user."""
        made = self.homeserver.register(fresh("user"))
        return Account(made["user_id"], made["access_token"], made["device_id"])

    def stop(self) -> None:
        """End both."""
        self.server.kill()
        self.homeserver.kill()

    def start(self) -> None:
        """Start both again, with all that they had."""
        self.homeserver.launch()
        self.server.start()
        self.homeserver.wait_ready()


def lacking() -> str | None:
    """The reason for which there can be no Synapse here; None if there is one, which is installed at the first call."""
    try:
        environment.ensure(ENVIRONMENT, print)
    except environment.CannotInstall as error:
        return f"Synapse cannot be installed: {error}"
    return None


def _config(homeserver: Synapse, port: int) -> str:
    """A door in front of the homeserver, as it comes but for its rates: programs are faster than people."""
    return f"""
[doors.matrix]
enabled = true
port = {port}
homeserver = "{homeserver.url}"
registration = "{homeserver.registrations[port]}"
{UNLIMITED}
"""


@contextlib.contextmanager
def staged(workplace: Workplace) -> Iterator[Stage]:
    """Both, ready."""
    port = free_port()
    homeserver = Synapse(workplace.folder / "synapse", port)
    try:
        homeserver.launch()
        server = workplace.serve(_config(homeserver, port))
        homeserver.wait_ready()
        yield Stage(f"http://127.0.0.1:{port}", homeserver, server)
    finally:
        homeserver.kill()
