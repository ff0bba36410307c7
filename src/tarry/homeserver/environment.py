"""Synapse in a virtual environment of its own, installed from the lock that is part of this package.

The environment is made once. What it holds is remembered in it by content: another lock or another interpreter
makes it anew. Only wheels are taken, each by its hash, from wherever pip is configured to look.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).with_name("synapse.txt")
_HOLDS: Final = "holds"


class CannotInstall(Exception):
    """Synapse could not be installed. The text says why."""


def ready(folder: Path) -> bool:
    """Whether the environment holds what the lock says."""
    try:
        return (folder / _HOLDS).read_text() == _wanted()
    except OSError:
        return False


def ensure(folder: Path, say: Callable[[str], None]) -> Path:
    """The environment's interpreter; makes the environment if need be, which takes a minute and a network."""
    if not ready(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Two that start at once: the second finds what the first has made.
        with folder.with_name(f".{folder.name}.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not ready(folder):
                say(f"installing Synapse into {folder} (once; about a minute)")
                _install(folder)
    return _interpreter(folder)


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, with_pip=True, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotInstall(f"no virtual environment can be made here ({error})") from None
    install = [
        str(_interpreter(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile",
        "--require-hashes", "--only-binary", ":all:", "--requirement", str(LOCK),
    ]  # fmt: skip
    done = subprocess.run(install, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotInstall(f"pip says: {said[-1].strip() if said else f'exit code {done.returncode}'}")
    (folder / _HOLDS).write_text(_wanted())


def _interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def _wanted() -> str:
    """Stands for the lock and for this interpreter, which the environment is made with."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    return f"{digest} {Path(sys.executable).resolve()} {sys.version_info[:3]}\n"
