"""The package as `pip` installs it: small, beside other packages, on every Python that is supported.

The wheel is built from this tree; what it depends on comes from the machine's index. Where there is none, these tests are skipped.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes import ROOT, environment, running

LARGEST_BYTES: Final = 25_000_000
"""The most that `pip install tarry` may add to an environment, bytecode included."""
PYTHONS: Final = ("3.11", "3.12", "3.13")
NEIGHBOURS: Final = ("fastapi", "django", "celery")
"""Applications that have Tarry's client beside them, each in its newest version."""
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

USE: Final = """
import asyncio, sys
from tarry import AsyncClient, Client

with Client(sys.argv[1]) as client:
    print(client.schedule("persistent://public/default/a", "x", delay="1h").id)

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        print((await client.schedule("persistent://public/default/a", "y", delay="1h")).id)

asyncio.run(main())
"""

IMPORTED_IN_S: Final = """
import time
began = time.perf_counter()
import tarry
print(time.perf_counter() - began)
"""


def run(*command: str | Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in an environment that knows nothing of this tree."""
    here = {name: value for name, value in environment(**settings).items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=here, cwd="/")


def done(ended: "subprocess.CompletedProcess[str]") -> str:
    assert ended.returncode == 0, (ended.args, ended.stdout[-2000:], ended.stderr[-2000:])
    return ended.stdout


def interpreter(version: str) -> str:
    """A Python of this version; skips the test where there is none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = str(installed[-1]) if installed else shutil.which(f"python{version}")
    if found is None or run(found, "-c", "import ensurepip, venv").returncode:
        pytest.skip(f"there is no Python {version} with its venv module here")
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("package")
    probe = run(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "mdurl",
        "--disable-pip-version-check", "--retries", "0", "--timeout", "5",
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"there is no package index here: {probe.stderr.strip().splitlines()[-1]}")
    # A copy: the build leaves files beside the sources.
    tree = folder / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, tree)
    done(
        run(
            sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
            "--wheel-dir", folder / "wheel", tree,
        )
    )  # fmt: skip
    (built,) = (folder / "wheel").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("served") / "data") as started:
        yield started.url


class Installed:
    """A fresh environment with the package and nothing else."""

    def __init__(self, python: str, folder: Path, *wanted: str | Path) -> None:
        done(run(python, "-m", "venv", folder))
        self.bin = folder / "bin"
        (self._packages,) = folder.glob("lib/python*/site-packages")
        before = self._bytes()
        done(
            run(
                self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted
            )
        )
        self.added_bytes = self._bytes() - before

    def _bytes(self) -> int:
        return sum(file.stat().st_size for file in self._packages.rglob("*") if file.is_file())

    def check_use(self, url: str) -> None:
        """Both clients and the command line work with a server elsewhere."""
        ids = done(run(self.bin / "python", "-c", USE, url)).split()
        assert len(ids) == 2
        listed = done(run(self.bin / "tarry", "list", "--json", TARRY_URL=url))
        assert set(ids) <= {json.loads(line)["id"] for line in listed.splitlines()}
        assert "scheduled" in done(run(self.bin / "tarry", "list", TARRY_URL=url))


@pytest.mark.parametrize("version", PYTHONS)
def test_the_package_alone_is_a_small_client(version: str, wheel: Path, server: str, tmp_path: Path) -> None:
    installed = Installed(interpreter(version), tmp_path / "env", wheel)
    assert installed.added_bytes < LARGEST_BYTES, f"{installed.added_bytes:,} bytes"
    installed.check_use(server)
    # The best of some: the machine may be busy.
    times = [float(done(run(installed.bin / "python", "-c", IMPORTED_IN_S))) for _ in range(5)]
    assert min(times) < 0.1
    for command, extra in (
        ("serve", "server"),
        ("up", "server"),
        ("report", "pipeline"),
        ("pipeline", "pipeline"),
    ):
        lacking = run(installed.bin / "tarry", command)
        told = f"tarry {command} needs tarry[{extra}]: pip install 'tarry[{extra}]'\n"
        assert (lacking.returncode, lacking.stdout, lacking.stderr) == (7, "", told)


def test_the_fixture_of_the_pytest_plugin_names_the_extra_that_it_needs(wheel: Path, tmp_path: Path) -> None:
    installed = Installed(interpreter("3.11"), tmp_path / "env", wheel, "pytest")
    (tmp_path / "test_it.py").write_text("def test_it(tarry_server): ...")
    lacking = run(installed.bin / "python", "-m", "pytest", "-q", tmp_path / "test_it.py")
    assert lacking.returncode == 1
    assert "needs tarry[server]: pip install 'tarry[server]'" in lacking.stdout


def test_the_lowest_versions_that_are_declared_work(wheel: Path, server: str, tmp_path: Path) -> None:
    lowest = [re.sub(r">=([^,]+).*", r"==\1", one) for one in PROJECT["dependencies"]]
    assert all("==" in one for one in lowest)
    Installed(interpreter("3.11"), tmp_path / "env", wheel, *lowest).check_use(server)


@pytest.mark.parametrize("version", PYTHONS)
def test_the_package_goes_together_with_current_frameworks(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)

    def resolved(*wanted: str | Path) -> dict[str, str]:
        report = tmp_path / "report.json"
        done(
            run(
                python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
                "--disable-pip-version-check", "--report", report, *wanted,
            )
        )  # fmt: skip
        entries = json.loads(report.read_text())["install"]
        return {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in entries}

    alone = resolved(*NEIGHBOURS)
    together = resolved(wheel, *NEIGHBOURS)
    assert "tarry" in together
    # Nobody has to go back to an older version for our sake.
    assert {name: together[name] for name in NEIGHBOURS} == {name: alone[name] for name in NEIGHBOURS}
