"""A real server in a process of its own, for tests that need one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import IO, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tarry.config.doors import DOORS

SOURCE = Path(__file__).parents[2] / "src"


CLOSED_DOORS = {f"TARRY_DOORS__{name.upper()}__ENABLED": "false" for name in DOORS}
"""For `tarry up`, which opens them all: a test has no business on their ports."""


def environment(**settings: str) -> dict[str, str]:
    """The environment of a child, without what the tester's own shell has set for Tarry."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
    return kept | {"PYTHONPATH": str(SOURCE), **settings}


class Running:
    """A server process that is ready."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def start(
    data: Path, *, log: IO[str] | None = None, max_open_files: int | None = None, **settings: str
) -> Running:
    """Start a server on a free port and wait until it is ready."""
    command = [sys.executable, "-m", "tarry", "serve", "--data", str(data), "--port", "0"]
    if max_open_files is not None:
        command = ["sh", "-c", f'ulimit -n {max_open_files}; exec "$0" "$@"', *command]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=log or subprocess.DEVNULL,
        text=True,
        # Not the repository: a tarry.toml that happens to lie there is none of the test's business.
        cwd=data.parent,
        env=environment(TARRY_LEDGER__SEGMENT_BYTES="1048576", **settings),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("tarry: ready on "):
        process.kill()
        process.wait()
        process.stdout.close()
        raise AssertionError(f"the server did not start: {line!r}")
    return Running(process, line.removeprefix("tarry: ready on ").strip())


@contextmanager
def running(data: Path, **how: Any) -> Iterator[Running]:
    """A server that ends with the test; `how` is for `start`."""
    server = start(data, **how)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        assert server.process.stdout is not None
        server.process.stdout.close()


def tarry(*arguments: str, stdin: str | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tarry", *arguments],
        capture_output=True, text=True, input=stdin, timeout=60, env=environment(**settings), cwd="/",
    )  # fmt: skip


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_file, key_file
