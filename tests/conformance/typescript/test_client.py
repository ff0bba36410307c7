"""The TypeScript client is generated from this tree's OpenAPI document, compiles strictly, and passes its own tests against a real server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents import blocks
from tests.processes import ROOT, SMALL, ServerProcess

CLIENT = ROOT / "clients" / "typescript"
LEFT_OUT = ("node_modules", "dist", "openapi.json", "schema.ts")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client, generated and compiled."""
    if shutil.which("npm") is None:
        install = "source tools/apt.sh && on_debian && apt_install nodejs && apt_install npm"
        subprocess.run(["bash", "-c", install], cwd=ROOT, capture_output=True, check=False)
    if shutil.which("npm") is None:
        pytest.skip("node and npm are not here; type: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [str(ROOT / "tools" / "typescript-client.sh"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0 and "npm error network" in done.stderr:
        pytest.skip("npm could not fetch the client's packages")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_client_passes_its_tests_against_a_real_server(built: Path, tmp_path: Path) -> None:
    # A message for a port that nobody listens on fails at its first attempt.
    config = SMALL + '[engine]\nattempts = 1\n[webhook]\nallow = ["127.0.0.1"]\n'
    with ServerProcess(tmp_path / "data", config) as server:
        server.start()
        settings = {**os.environ, "TARRY_URL": server.url}
        command = ["node", "--test", "--test-reporter", "tap", "dist/test/"]
        done = subprocess.run(
            command, cwd=built, env=settings, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "# pass 11" in done.stdout
    assert "# fail 0" in done.stdout


def test_a_field_that_the_api_does_not_have_is_an_error_of_types(built: Path) -> None:
    wrong = built / "src" / "wrong.ts"
    wrong.write_text(
        'import { Client } from "./client.js";\n'
        'export const view = await new Client().get("id");\n'
        "export const missing = view.no_such_field;\n"
    )
    done = subprocess.run(["npx", "tsc", "--noEmit"], cwd=built, capture_output=True, text=True, check=False)
    wrong.unlink()
    assert done.returncode != 0
    assert "no_such_field" in done.stdout


def test_the_example_of_the_page_compiles(built: Path) -> None:
    (example,) = (one.text for one in blocks("clients/typescript/README.md") if one.language == "ts")
    page = built / "src" / "page.ts"
    page.write_text(example.replace('"tarry-client"', '"./index.js"'))
    done = subprocess.run(["npx", "tsc", "--noEmit"], cwd=built, capture_output=True, text=True, check=False)
    page.unlink()
    # It shows one import that it does not use.
    assert [line for line in done.stdout.splitlines() if "TarryError" not in line] == []


def test_the_lock_names_no_address() -> None:
    assert '"resolved"' not in (CLIENT / "package-lock.json").read_text("utf-8")
