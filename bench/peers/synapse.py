"""Synapse: the homeserver behind the Matrix door, and, with its own delayed events switched on, the peer beside it."""

import json
import sqlite3
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import Skipped
from bench.processes import ROOT, CannotStart, Process, free_port
from tarry.homeserver import environment
from tarry.homeserver.synapse import PrivateSynapse

START_WITHIN_S: Final = 120
_MUCH: Final = {"per_second": 1_000_000, "burst_count": 1_000_000}
_OPEN: Final[dict[str, Any]] = {
    "bcrypt_rounds": 4,
    "rc_message": _MUCH,
    "rc_room_creation": _MUCH,
    "rc_delayed_event_mgmt": _MUCH,
    "rc_joins": {"local": _MUCH, "remote": _MUCH},
    "max_event_delay_duration": "24h",
    "experimental_features": {"msc4140_max_delayed_events_per_user": 10_000_000},
}
"""No limit of its own gets into the way of a measurement."""


class SynapseServer:
    """A running Synapse on SQLite; a context manager."""

    def __init__(self, folder: Path, door_port: int) -> None:
        try:
            interpreter = environment.ensure(ROOT / ".cache" / "synapse", print)
        except environment.CannotInstall as error:
            raise Skipped(f"Synapse cannot be installed: {error}") from None
        folder.mkdir(parents=True)
        self._files = PrivateSynapse(folder, "bench.test")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._files.prepare(self.port, f"http://127.0.0.1:{door_port}", _OPEN)
        self.registration = self._files.registration
        self._process = Process(
            self._files.command(interpreter), folder / "output.log", cwd=self._files.folder
        )
        self._process.wait_for_port(self.port, START_WITHIN_S)

    def __enter__(self) -> "SynapseServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    def forget_delayed(self) -> None:
        """Begin anew with its own delayed events: it slows down as they pile up, whoever they are from.

        For every one that is scheduled or restarted it counts or searches those that wait.
        """
        with closing(sqlite3.connect(self._files.folder / "homeserver.db", timeout=60)) as database, database:
            database.execute("DELETE FROM delayed_events")

    def user(self, name: str) -> str:
        """A new user; gives an access token."""
        return str(self._files.register(name, name)["access_token"])

    def rooms(self, token: str, count: int) -> list[str]:
        """New rooms of a user."""
        body = {"preset": "private_chat", "room_version": "11"}
        return [
            call(self.url, "POST", "/_matrix/client/v3/createRoom", token, body)["room_id"]
            for _ in range(count)
        ]


def call(url: str, method: str, path: str, token: str | None, body: Any = None) -> Any:
    """One of the few calls around a measurement; gives the JSON of the answer."""
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{url}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise CannotStart(f"{method} {path}: {error.code} {error.read()[:300]!r}") from None


def wait_for(url: str, within_s: float = START_WITHIN_S) -> None:
    """Until something answers there."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            urllib.request.urlopen(f"{url}/_matrix/client/versions", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise CannotStart(f"{url} does not answer") from None
            time.sleep(0.1)
