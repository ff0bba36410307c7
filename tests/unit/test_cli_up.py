"""`tarry up` where a port is taken: it says so for all of them, and starts nothing."""

import os
import shlex
import socket
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

from tests.processes import CLOSED_DOORS, environment, free_port, running, tarry


def up(folder: Path, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tarry", "up", "--data", str(folder / "data"), *arguments],
        capture_output=True, text=True, timeout=60, env=environment(**(CLOSED_DOORS | settings)), cwd=folder,
    )  # fmt: skip


def test_every_taken_port_is_told_with_who_has_it_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as pulsar:
        ports = {name: taken.getsockname()[1] for name, taken in (("http", http), ("pulsar", pulsar))}
        settings = {
            "TARRY_HTTP__PORT": str(ports["http"]),
            "TARRY_DOORS__PULSAR__ENABLED": "true",
            "TARRY_DOORS__PULSAR__PORT": str(ports["pulsar"]),
        }
        ended = up(tmp_path, **settings)
    assert ended.returncode == 1
    by = f"with pid {os.getpid()}"
    assert f"port {ports['http']} (http.port): address already in use by " in ended.stderr
    assert f"port {ports['pulsar']} (doors.pulsar.port): address already in use by " in ended.stderr
    assert ended.stderr.count(by) == 2
    assert not (tmp_path / "data").exists()
    assert ended.stdout == ""


def test_the_command_that_is_told_then_starts_on_other_ports(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        refused = up(tmp_path, "--port", str(port), "--ports", "0", TARRY_PIPELINE__ENABLED="false")
        told = shlex.split(refused.stderr.splitlines()[-1].rpartition("type: ")[2])
        assert told[:2] == ["tarry", "up"]
        offset = int(told[told.index("--ports") + 1])
        assert told.count("--ports") == 1
        command = [sys.executable, "-m", *told]
        settings = CLOSED_DOORS | {
            "TARRY_PIPELINE__ENABLED": "false",
            "TARRY_LEDGER__SEGMENT_BYTES": "1048576",
        }
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(**settings), cwd=tmp_path
        ) as process:
            assert process.stdout is not None
            try:
                said = list(takewhile(lambda line: not line.startswith("tarry: ready on"), process.stdout))
                url = f"http://127.0.0.1:{port + offset}"
                assert f"  Dashboard: {url}/\n" in said
                (export,) = (line for line in said if "export" in line)
                variable, _, value = export.split()[-1].partition("=")
                # With what the banner says a command in another terminal finds this server.
                listed = tarry("list", "--json", **{variable: value, "TARRY_HTTP__PORT": str(port)})
                assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr
            finally:
                process.terminate()


def test_a_folder_that_a_tarry_uses_is_told_too_and_the_command_has_another(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        ended = up(tmp_path, "--port", str(server.port))
        assert "--ports +" in ended.stderr
        assert f"the Tarry with pid {server.pid} uses it" in ended.stderr
        assert f"--data {tmp_path / 'data'}-2" in ended.stderr
        assert ended.stderr.count("--data") == 1
        # The folder alone is reason enough: no port has to be moved for it.
        ended = up(tmp_path, "--port", str(free_port()))
        assert (ended.returncode, ended.stdout, "--ports" in ended.stderr) == (1, "", False)
        assert f"the Tarry with pid {server.pid} uses it" in ended.stderr
        assert f"--data {tmp_path / 'data'}-2" in ended.stderr
