"""A box: what a container engine makes of a manifest, without an engine.

The command runs as the manifest's user, without capabilities, on a root that nobody can write, in a network of its own where its
usual ports are free; it sees the files that the manifest mounts, and this tree in place of the image's. Needs root and Linux's
namespaces; elsewhere the test is skipped. `make container` runs the image itself.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.processes import ROOT, START_WITHIN_S
from tests.waiting import wait_until

CONTAINERFILE: Final = ROOT / "deploy" / "container" / "Containerfile"

_MAKE: Final = """
set -eu
root=$1; shift
mount -t tmpfs -o mode=755 box "$root"
mkdir -p "$root"/tmp "$root"/proc "$root"/dev "$root"/etc
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
printf '%s\\n' "$MOUNTS" | while IFS=: read -r from to how; do
  [ -n "$from" ] || continue
  if [ -d "$from" ]; then mkdir -p "$root$to"; else mkdir -p "$root${to%/*}"; : >"$root$to"; fi
  mount --bind "$from" "$root$to"
  [ "$how" = rw ] || mount -o remount,bind,ro "$root$to"
done
# Last: a manifest's /tmp would hide a tree that stands below it.
for folder in /usr /bin /lib /lib64 /etc/ssl $SHOWN; do
  [ -e "$folder" ] || continue
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
  mount -o remount,bind,ro "$root$folder"
done
mount -o remount,ro "$root"
ip link set lo up
echo "$MADE"
exec chroot "$root" setpriv --reuid "$BOX_USER" --regid "$BOX_GROUP" --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all env --ignore-environment "$@"
"""

MADE: Final = "the box is made"

_ASK: Final = """
import http.client, json, sys
method, port, path, headers, body = json.load(sys.stdin)
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
connection.request(method, path, body, headers)
answer = connection.getresponse()
json.dump([answer.status, answer.read().decode()], sys.stdout)
"""


class Contained(NamedTuple):
    """The part of a manifest about one container."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    """Files and folders by their place inside; read-only."""
    folders: Mapping[str, Path]
    """Folders that may be written, by their place inside."""
    user: str = "10001:10001"


def image() -> dict[str, Any]:
    """The variables, the user and the command that the container file gives to an image."""
    text = CONTAINERFILE.read_text()
    lines = text[text.rindex("\nENV ") + 5 :].partition("\nUSER")[0].replace("\\\n", " ").split()
    user = re.search(r"^USER (\S+)$", text, re.MULTILINE)
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert user is not None
    assert command is not None
    return {
        "environment": dict(one.split("=", 1) for one in lines),
        "user": user[1],
        "arguments": json.loads(command[1]),
    }


class Box:
    """A command in its box."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def said(self) -> str:
        """The output of the command."""
        return self._log.read_text(errors="replace")

    def ask(self, method: str, url: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """A request from within the box's network; status and body, 0 if nobody listens."""
        assert self._process.poll() is None, self.said()
        parts = urllib.parse.urlsplit(url)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        text = None
        if body is not None:
            headers["content-type"], text = "application/json", json.dumps(body)
        told = json.dumps([method, parts.port, parts._replace(scheme="", netloc="").geturl(), headers, text])
        command = ["nsenter", f"--target={self._process.pid}", "--net", sys.executable, "-c", _ASK]
        done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=90, check=False)
        if done.returncode:
            assert "Connection refused" in done.stderr, done.stderr
            return 0, None
        status, content = json.loads(done.stdout)
        return status, json.loads(content) if content.startswith(("{", "[")) else content

    def wait(self, url: str) -> None:
        """Wait until an address answers 200, as a probe does."""
        wait_until(lambda: self.ask("GET", url)[0] == 200, self.said, START_WITHIN_S)

    def status(self) -> dict[str, str]:
        """Facts of the kernel about the command's process."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines)

    def root(self) -> Path:
        """The box's root folder, as it sees it."""
        return Path(f"/proc/{self._process.pid}/root")

    def stop(self, within_s: float) -> int:
        """SIGTERM; gives the exit code."""
        self._process.terminate()
        return self._process.wait(within_s)


@contextlib.contextmanager
def boxed(contained: Contained, folder: Path) -> Iterator[Box]:
    """Run `tarry` as a manifest says. The folder is for the box's own files."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("needs root, and namespaces of its own")
    root = folder / "root"
    root.mkdir()
    user, group = contained.user.split(":")
    mounts = [f"{source}:{place}:ro" for place, source in contained.mounts.items()]
    for place, source in contained.folders.items():
        source.mkdir(mode=0o700, exist_ok=True)
        os.chown(source, int(user), int(group))
        mounts.append(f"{source}:{place}:rw")
    shown = {sys.base_prefix, sys.prefix, str(ROOT / "src")} - {"/usr"}
    variables = {
        **contained.environment,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT / "src"),
    }
    given = [f"{name}={value}" for name, value in variables.items()]
    command = ["unshare", "--mount", "--net", "sh", "-c", _MAKE, "box", str(root), *given]
    command += [sys.executable, "-m", "tarry", *contained.arguments]
    box = {
        "MADE": MADE,
        "SHOWN": " ".join(sorted(shown)),
        "MOUNTS": "\n".join(mounts),
        "BOX_USER": user,
        "BOX_GROUP": group,
    }
    log = folder / "box.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", **box},
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True,
        )  # fmt: skip
    try:
        box_of = Box(process, log)
        # Before, the process is in this machine's own network.
        wait_until(lambda: MADE in box_of.said() or process.poll() is not None, box_of.said)
        yield box_of
    finally:
        process.kill()
        process.wait()
