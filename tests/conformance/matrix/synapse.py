"""A real Synapse for tests: a process of its own on SQLite and loopback, without rate limits, with users of ours.

It is the private homeserver of `tarry up` with other settings, so that its set-up is tested with everything else.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

import httpx
import pytest

from tarry.homeserver import environment, registration
from tarry.homeserver.synapse import PrivateSynapse
from tests.processes import ROOT, free_port

ENVIRONMENT: Final = ROOT / ".cache" / "synapse"
START_WITHIN_S: Final = 120
SERVER_NAME: Final = "tarry.test"

_MUCH: Final = {"per_second": 100_000, "burst_count": 100_000}
_OPEN: Final[dict[str, Any]] = {
    "bcrypt_rounds": 4,
    "allow_guest_access": True,
    # Sticky events, with which MatrixRTC can send its memberships.
    "experimental_features": {"msc4354_enabled": True},
    "rc_message": _MUCH,
    "rc_room_creation": _MUCH,
    "rc_registration": _MUCH,
    "rc_joins": {"local": _MUCH, "remote": _MUCH},
    "rc_joins_per_room": _MUCH,
    "rc_invites": {"per_room": _MUCH, "per_user": _MUCH, "per_issuer": _MUCH},
    "rc_login": {"address": _MUCH, "account": _MUCH, "failed_attempts": _MUCH},
    "rc_admin_redaction": _MUCH,
}
"""Rate limits that no test reaches, and passwords that cost no time."""


def interpreter() -> Path:
    """The Python that has Synapse; installed at the first use, and skipped where that cannot be."""
    try:
        return environment.ensure(ENVIRONMENT, print)
    except environment.CannotInstall as error:
        pytest.skip(f"Synapse cannot be installed: {error}")


class Synapse:
    """One homeserver. One object for as many starts as one likes; the port stays."""

    def __init__(self, folder: Path, *doors: int, **extra: Any) -> None:
        """`doors` are ports on which it finds doors: it has a registration for each of them."""
        self._interpreter = interpreter()
        self._files = PrivateSynapse(folder, SERVER_NAME)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True)
        self.registrations = {port: self._register(folder, port) for port in doors}
        files = [str(path) for path in self.registrations.values()]
        self._files.prepare(self.port, None, {**_OPEN, "app_service_config_files": files, **extra})
        self._log = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    def _register(self, folder: Path, port: int) -> Path:
        path = folder / f"registration-{port}.yaml"
        made = registration.fresh(SERVER_NAME, f"http://127.0.0.1:{port}")
        # Several services in one homeserver: each has a name and a user of its own.
        registration.write(path, {**made, "id": f"tarry-{port}", "sender_localpart": f"tarry-{port}"})
        return path

    def launch(self) -> None:
        """Start it and do not wait."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._files.command(self._interpreter),
                cwd=self._files.folder,
                env=kept,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> Self:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/_matrix/client/versions", trust_env=False, verify=False).is_success:
                    return self
            assert self._process.poll() is None, f"Synapse ended: {self.said()}"
            assert time.monotonic() < deadline, f"Synapse does not answer: {self.said()}"
            time.sleep(0.05)

    def start(self) -> Self:
        """Start it and wait until it answers."""
        self.launch()
        return self.wait_ready()

    def kill(self) -> None:
        """SIGKILL, as a crash does it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def said(self) -> str:
        """The end of its log and of its output."""
        logs = (self._log, self._files.folder / "synapse.log")
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in logs if path.exists())

    def register(self, name: str) -> dict[str, Any]:
        """Make a user; gives what a login would: `user_id`, `access_token`, `device_id`."""
        return self._files.register(name, f"password of {name}")

    def password(self, name: str) -> str:
        """A user's password."""
        return f"password of {name}"
