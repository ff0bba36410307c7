"""A real Pulsar standalone: broker and bookie in one process, from Maven, with a journal that is synced before the receipt.

It is started once and stands still while others are measured: a warm machine of Java is what its users have.
"""

import os
import shutil
import signal
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers.peer import Skipped
from bench.processes import CACHE, CannotStart, Process, cpu_s_of, free_port

ARTIFACT: Final = "org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin"
VERSIONS: Final = ("4.2.4", "4.0.8")
"""The one that is wanted, and the newest of which Maven Central has the distribution."""
START_WITHIN_S: Final = 180
FETCH_WITHIN_S: Final = 900
DEFAULT_TICK_MS: Final = 1_000

_MEMORY: Final = "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=512m"
_CONF: Final = """
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={port}
webServicePort={web_port}
journalSyncData=true
delayedDeliveryTickTimeMillis={tick_ms}
"""
"""Its journal is not synced by default in a standalone. The broker's tick is that of its timer: a namespace's own can only be coarser."""


def distribution() -> tuple[Path, str]:
    """The unpacked distribution and its version; fetched by Maven the first time."""
    for version in VERSIONS:
        if (folder := _folder(version)).exists():
            return folder, version
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Skipped(f"Pulsar needs {program}, which is not here")
    said = ""
    for version in VERSIONS:
        said = _fetch(version)
        if not said:
            return _folder(version), version
    raise Skipped(f"Pulsar cannot be fetched with Maven: {said}")


def _folder(version: str) -> Path:
    return CACHE / "pulsar" / version


def _fetch(version: str) -> str:
    """Fetch and unpack a version; gives why that did not work."""
    place = CACHE / "pulsar" / f"{version}.part"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    words = [f"-Dartifact={ARTIFACT.format(version=version)}", f"-DoutputDirectory={place}"]
    try:
        done = subprocess.run(
            ["mvn", "-B", "-q", "dependency:copy", *words],
            cwd=place, capture_output=True, text=True, timeout=FETCH_WITHIN_S, check=False,
        )  # fmt: skip
        archives = list(place.glob("*.tar.gz"))
        if done.returncode or not archives:
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            return errors[0][:300] if errors else "Maven gave no reason"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(place, filter="data")
        (unpacked,) = place.glob("apache-pulsar-*")
        unpacked.rename(_folder(version))
        return ""
    finally:
        shutil.rmtree(place, ignore_errors=True)


class PulsarStandalone:
    """A running standalone; a context manager."""

    def __init__(self, folder: Path, tick_ms: int = DEFAULT_TICK_MS) -> None:
        home, self.version = distribution()
        folder.mkdir(parents=True)
        self.port, self._web_port = free_port(), free_port()
        conf = folder / "standalone.conf"
        own = _CONF.format(port=self.port, web_port=self._web_port, tick_ms=tick_ms)
        conf.write_text((home / "conf" / "standalone.conf").read_text() + "\n" + own)
        folders = ("--metadata-dir", folder / "metadata", "--bookkeeper-dir", folder / "bookkeeper")
        options = ("--no-functions-worker", "--no-stream-storage", "--bookkeeper-port", str(free_port()))
        self._process = Process(
            [home / "bin" / "pulsar", "standalone", *options, *folders],
            folder / "log",
            env={
                **os.environ,
                "PULSAR_STANDALONE_CONF": str(conf),
                "PULSAR_MEM": _MEMORY,
                "PULSAR_LOG_DIR": str(folder / "logs"),
                "PULSAR_LOG_LEVEL": "error",
            },
            cwd=folder,
            keep_output=False,
        )
        try:
            self._wait_until_up()
        except CannotStart:
            self._process.end(signal.SIGKILL)
            raise

    def __enter__(self) -> "PulsarStandalone":
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.end()

    def _wait_until_up(self) -> None:
        """Until its default namespace is there, which it makes last."""
        self._process.wait_for_port(self._web_port, START_WITHIN_S)
        until = time.monotonic() + START_WITHIN_S
        while time.monotonic() < until:
            try:
                if b"public/default" in self._call("GET", "/admin/v2/namespaces/public"):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise CannotStart(f"Pulsar is not up after {START_WITHIN_S} s: {self._process.last_words()}")

    def _call(self, method: str, path: str) -> bytes:
        asked = urllib.request.Request(f"http://127.0.0.1:{self._web_port}{path}", method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def topic(self, name: str) -> str:
        """A topic that it serves from now on: it takes nobody in before somebody has looked it up."""
        self._call("PUT", f"/admin/v2/persistent/public/default/{name}")
        self._call("GET", f"/lookup/v2/topic/persistent/public/default/{name}")
        return f"persistent://public/default/{name}"

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        return cpu_s_of(self._process.pid)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run; outside of this it stands still, so that it takes nothing from whoever else is measured."""
        os.kill(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGSTOP)
