"""Podman for the tests: images, containers and a network of its own below `.cache/container`, made by `tools/container.sh`.

What pip is told on this machine, of an index or a certificate of its own, is handed to a build as a secret: it is in no
image and in no file that is committed.
"""

import ast
import json
import os
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes import ROOT

FOLDER: Final = ROOT / ".cache" / "container"
BASE: Final = "localhost/tarry-base"
"""An image of Debian, from its packages."""
NETWORK: Final = "tarry-test"
PIP_FILES: Final = "/run/pip"
"""Where a build finds the files that pip's settings name."""


class Podman:
    """The program, with what is its own here. Skips the test where it cannot be had."""

    def __init__(self) -> None:
        made = subprocess.run([ROOT / "tools" / "container.sh", FOLDER], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"no container can be run here: {made.stderr.strip()}")
        self._environment = os.environ | {
            "CONTAINERS_CONF": str(FOLDER / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
        }

    def __call__(self, *arguments: str, within_s: float = 120) -> str:
        """Run a command that must succeed; gives what it printed."""
        return _succeeded(self.try_to(*arguments, within_s=within_s))

    def try_to(self, *arguments: str, within_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run a command that may fail."""
        return self._run(["podman", *arguments], ROOT, within_s)

    def typed(self, text: str, folder: Path, within_s: float = 120) -> str:
        """Run what somebody types into a shell in a folder. It must succeed."""
        return _succeeded(self._run(["bash", "-euo", "pipefail", "-c", text], folder, within_s))

    def inspect(self, name: str) -> Any:
        """Podman's facts about an image or a container."""
        return json.loads(self("inspect", name))[0]

    def _run(self, command: list[str], folder: Path, within_s: float) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=folder, env=self._environment, capture_output=True, text=True, timeout=within_s
        )


def _succeeded(ended: "subprocess.CompletedProcess[str]") -> str:
    assert ended.returncode == 0, f"{ended.args}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout.strip()


def pip_options(folder: Path) -> list[str]:
    """Options of a build that hand over what pip is told here. The folder is for the file that says it."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings = RawConfigParser()
    mounts = {}
    for line in told.splitlines():
        name, _, quoted = line.partition("=")
        section, _, key = name.replace(":env:", "global").partition(".")
        value = str(ast.literal_eval(quoted))
        if os.path.isabs(value) and os.path.exists(value):
            mounts[key] = f"--volume={value}:{PIP_FILES}/{key}:ro"
            value = f"{PIP_FILES}/{key}"
        if not settings.has_section(section):
            settings.add_section(section)
        settings.set(section, key, value)
    file = folder / "pip.conf"
    with file.open("w") as out:
        settings.write(out)
    return [f"--secret=id=pip,src={file}", *mounts.values()]
