"""The package works by itself: the wheel in a fresh environment, without this folder."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import httpx
import numpy
import pytest

from tests.processes import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left behind here."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    copytree(ROOT / "src", source / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    copytree(ROOT / "requirements", source / "requirements")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        copy(ROOT / name, source)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "wheel",
        "--no-index",
    ]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", built, source],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = built.glob("tarry-*.whl")
    return found


def clean_environment() -> dict[str, str]:
    """Without anything that leads to this folder."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TARRY_", "PYTHON", "VIRTUAL_ENV"))
    }


def installed(wheel: Path, folder: Path) -> Path:
    """An environment of its own, with the wheel; what it needs is that of the environment that runs the test."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        str(folder / "bin" / "python"),
    ]
    done = subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", wheel], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A line of a .pth file adds a folder, but not what the .pth files in there add: this tree stays out.
    (packages / "needed.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return folder / "bin"


def test_the_wheel_has_what_is_not_python_and_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = packed.read(metadata).decode()
    for name in ("registry/schema.sql", "py.typed", "web/static/index.html", "web/static/app.js"):
        assert f"tarry/{name}" in names
    packed_pages = {Path(name).name for name in names if name.startswith("tarry/web/static/")}
    assert packed_pages == {path.name for path in (ROOT / "src/tarry/web/static").iterdir()}
    assert not [name for name in names if name.startswith(("tests", "bench"))]
    for needed in ("numpy", "msgspec", "pyarrow", "deltalake", "pyspark"):
        assert re.search(rf"^Requires-Dist: {needed}[<>]", said, re.MULTILINE), f"no range for {needed}"
    for extra in ("redis", "rabbitmq", "kafka", "jetstream", "pulsar"):
        assert f"Provides-Extra: {extra}" in said


def test_what_is_installed_from_it_runs(wheel: Path, tmp_path: Path) -> None:
    programs = installed(wheel, tmp_path / "env")
    run = {"cwd": tmp_path, "env": clean_environment(), "text": True}
    version = subprocess.run([programs / "tarry", "--version"], capture_output=True, timeout=120, **run)  # type: ignore[call-overload]
    assert version.stdout.startswith("tarry "), version.stderr
    place = subprocess.run(
        [programs / "python", "-c", "import tarry; print(tarry.__file__)"],
        capture_output=True,
        timeout=120,
        **run,
    )  # type: ignore[call-overload]
    assert place.stdout.startswith(str(tmp_path / "env"))
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [programs / "tarry", "serve", "--data", tmp_path / "data", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            **run,
        )  # type: ignore[call-overload]
    try:
        line = server.stdout.readline()
        assert "ready on " in line, (tmp_path / "log").read_text()
        with httpx.Client(base_url=line.split("ready on ")[1].strip(), timeout=30, trust_env=False) as client:
            assert "<title>Tarry</title>" in client.get("/").text
            scheduled = client.post("/v1/messages", json={"destination": "orders", "delay": "1h"})
            assert scheduled.status_code == 201
    finally:
        server.terminate()
        assert server.wait(60) == 0
        server.stdout.close()


@pytest.mark.soak
def test_and_with_all_that_it_needs_fetched(wheel: Path, tmp_path: Path) -> None:
    """`pip install tarry[redis]` as a user types it; downloads everything."""
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", f"{wheel}[redis]"], check=True, timeout=1800)
    done = subprocess.run(
        [programs / "tarry", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    assert done.stdout.startswith("tarry "), done.stderr
