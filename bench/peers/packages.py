"""Where the peers' programs come from: the system, or Debian packages, npm and Go modules, below `bench/.cache`.

Nothing is installed on the system and no service is started: packages are downloaded by apt, with those that they
depend on and the system lacks, and only unpacked. That needs no root, only apt's lists.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.peers.peer import Skipped
from bench.processes import CACHE

DEBIAN: Final = CACHE / "debian"
_FETCHED: dict[str, str | None] = {}
"""Package -> why it could not be fetched, or None."""


def program(name: str, package: str, *folders: str) -> Path:
    """A program by its name; fetched with its package if the system does not have it."""
    found = _look(name, folders)
    if found is None:
        if package not in _FETCHED:
            _FETCHED[package] = _fetch(package)
        found = _look(name, folders)
    if found is None:
        why = _FETCHED.get(package) or f"the package has no {name}"
        raise Skipped(f"{name} is not here ({why}); type: apt-get install {package}")
    return found


def environment() -> dict[str, str]:
    """The environment for a program, so that unpacked libraries are found."""
    libraries = [str(path) for path in (DEBIAN / "usr/lib").glob("*-linux-*")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def _look(name: str, folders: tuple[str, ...]) -> Path | None:
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    for root in (Path("/"), DEBIAN):
        for folder in ("usr/bin", "usr/sbin", *folders):
            for path in sorted(root.glob(f"{folder}/{name}"), reverse=True):
                return path
    return None


def _fetch(package: str) -> str | None:
    """Download and unpack; gives why that did not work."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "this is not Debian"
    archives = CACHE / "archives" / package
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1"]
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "--download-only"]
    done = subprocess.run([*command, *options, package], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "apt-get failed"
    DEBIAN.mkdir(parents=True, exist_ok=True)
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, DEBIAN], check=True)
    return None


def npm_modules(*wanted: str) -> Path:
    """A folder whose node_modules hold packages of npm, each asked for as `name@version`."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise Skipped("node and npm are not here; type: apt-get install nodejs npm")
    # A folder for each set of versions, and no lock file: that would record where packages came from.
    folder = CACHE / "npm" / "+".join(wanted)
    done = folder / "done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", *wanted]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            words = ran.stderr.strip().splitlines()
            raise Skipped(
                f"npm could not fetch {' '.join(wanted)}: {words[-1] if words else 'no reason given'}"
            )
        done.touch()
    return folder


def python_with(*wanted: str) -> Path:
    """The interpreter of an environment with packages of the Python index, each asked for as `name==version`."""
    folder = CACHE / "python" / "+".join(word.partition("[")[0].replace("==", "@") for word in wanted)
    python = folder / "bin" / "python"
    done = folder / "done"
    if not done.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
        ):
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode != 0:
                # Its own words name the index that somebody uses, and what is skipped is kept with its reason.
                raise Skipped(f"pip could not fetch it; to see why, type: pip install {' '.join(wanted)}")
        done.touch()
    return python


def go_program(module: str, version: str) -> Path:
    """A program of a Go module, built here at one version."""
    folder = CACHE / "go" / f"{module.replace('/', '-')}@{version}"
    if not folder.exists():
        if shutil.which("go") is None:
            raise Skipped("go is not here, which builds it; type: apt-get install golang-go")
        building = CACHE / "go" / "building"
        command = ["go", "install", f"{module}@{version}"]
        env = {**os.environ, "GOBIN": str(building)}
        ran = subprocess.run(command, env=env, cwd=CACHE, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            # Its own words name the proxy that somebody uses, and what is skipped is kept with its reason.
            raise Skipped(f"go could not fetch or build it; to see why, type: {' '.join(command)}")
        building.rename(folder)
    return next(folder.iterdir())
