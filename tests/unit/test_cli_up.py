"""`tarry up` where a port is taken: it says so for all of them, and starts nothing."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.processes import CLOSED_DOORS, environment


def test_every_taken_port_is_told_with_who_has_it_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as pulsar:
        ports = {name: taken.getsockname()[1] for name, taken in (("http", http), ("pulsar", pulsar))}
        settings = CLOSED_DOORS | {
            "TARRY_HTTP__PORT": str(ports["http"]),
            "TARRY_DOORS__PULSAR__ENABLED": "true",
            "TARRY_DOORS__PULSAR__PORT": str(ports["pulsar"]),
        }
        ended = subprocess.run(
            [sys.executable, "-m", "tarry", "up", "--data", str(tmp_path / "data")],
            capture_output=True, text=True, timeout=60, env=environment(**settings), cwd=tmp_path,
        )  # fmt: skip
    assert ended.returncode == 1
    by = f"with pid {os.getpid()}"
    assert f"port {ports['http']} (http.port): address already in use by " in ended.stderr
    assert f"port {ports['pulsar']} (doors.pulsar.port): address already in use by " in ended.stderr
    assert ended.stderr.count(by) == 2
    assert not (tmp_path / "data").exists()
    assert ended.stdout == ""
