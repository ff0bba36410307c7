"""The private homeserver that `up` runs beside the server where the operator has named none."""

import contextlib
import random
import sys
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tarry.cli.ports import first_free
from tarry.cli.supervisor import Child
from tarry.config import Config
from tarry.config.server import url_of
from tarry.core.errors import Unavailable
from tarry.homeserver.synapse import PrivateSynapse
from tarry.serve.datafolder import explain, owner_pid

FOLDER: Final = "homeserver"
"""Its place in the data folder."""
_PORTS: Final = range(20_000, 32_000)
"""Below those that the system gives to connections, so that it is free again at the next start."""


class Beside(NamedTuple):
    """The process of the private homeserver, the settings that the server gets for it, and the lines that the user reads."""

    child: Child
    settings: dict[str, str]
    """Variables for the server's process."""
    advice: str


def private(config: Config) -> PrivateSynapse:
    """The files of the private homeserver."""
    return PrivateSynapse(Path(config.data) / FOLDER)


def beside(config: Config, options: list[str]) -> Beside | None:
    """The private homeserver; None where the Matrix door is closed, or has a homeserver of the operator's.

    Its address is chosen here, so that both processes are told the same. `options` name data folder and configuration.
    """
    door = config.doors.matrix
    if not door.enabled or door.homeserver is not None:
        return None
    folder = Path(config.data)
    if owner_pid(folder) is not None:
        # Another Tarry runs here, with a homeserver of its own; our server will say so and refuse to start.
        return None
    synapse = private(config)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        synapse.prepare(_port(synapse), url_of(door) if door.port else None)
    except OSError as error:
        raise Unavailable(explain(Path(error.filename or folder), error)) from None
    settings = {
        "TARRY_DOORS__MATRIX__HOMESERVER": synapse.address(),
        "TARRY_DOORS__MATRIX__REGISTRATION": str(synapse.registration),
    }
    command = [sys.executable, "-m", "tarry", "matrix", "homeserver", *options]
    advice = f"Matrix clients connect to {url_of(door)}; a private Synapse is behind it. Register a user"
    return Beside(Child("homeserver", command, essential=False), settings, advice)


def _port(synapse: PrivateSynapse) -> int:
    """The one that it had, if that is free: its address seldom changes."""
    tried = random.sample(_PORTS, 100)
    with contextlib.suppress(FileNotFoundError):
        tried.insert(0, urlsplit(synapse.address()).port or 0)
    return first_free(tried)
