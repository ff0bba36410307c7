"""`tarry up` without a homeserver of one's own: a private Synapse beside the server, a user, and a delayed event."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conformance.matrix.people import CLIENT, Person, text
from tests.conformance.matrix.sdk import WITH_RESOLVERS, modules
from tests.conformance.matrix.synapse import ENVIRONMENT, interpreter
from tests.documents import Reader, output_below, runnable, shows, typed_and_shown
from tests.processes import ROOT, free_port
from tests.waiting import until


class Up:
    """A running `tarry up`, and the commands beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        self.homeserver = folder / "data" / "homeserver"
        self.homeserver.mkdir(parents=True, mode=0o700)
        interpreter()
        # It is installed already, elsewhere: installing takes a minute.
        (self.homeserver / "environment").symlink_to(ENVIRONMENT)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
        self._settings = {
            **kept,
            "PYTHONPATH": str(ROOT / "src"),
            "TARRY_DATA": str(folder / "data"),
            "TARRY_HTTP__PORT": str(free_port()),
            "TARRY_PIPELINE__ENABLED": "false",
            "TARRY_DOORS__PULSAR__ENABLED": "false",
            "TARRY_DOORS__DAPR__ENABLED": "false",
            "TARRY_DOORS__MATRIX__PORT": str(port),
        }
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "tarry", "up"]
            self._process = subprocess.Popen(command, cwd=folder, env=self._settings, stdout=log, stderr=log)

    def said(self) -> str:
        """The process's output; an error if it has ended."""
        text = self._log.read_text()
        assert self._process.poll() is None, text
        return text

    def user(self, name: str, password: str) -> "subprocess.CompletedProcess[str]":
        """`tarry matrix user`."""
        return subprocess.run(
            [sys.executable, "-m", "tarry", "matrix", "user", name, "--password-stdin"],
            cwd=self._folder, env=self._settings, input=f"{password}\n", capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    def read_the_page(self) -> None:
        """Type what docs/quickstart/matrix.md says, as another user."""
        swaps = {
            "tarry matrix user alice": "tarry matrix user carol --password-stdin <<< wonderland",
            '"alice"': '"carol"',
            '"…"': '"wonderland"',
            "http://127.0.0.1:8008": self.url,
        }
        reader = Reader(self._folder / "reader", swaps, **self._given())
        self._add_jq(reader)
        made, _ = typed_and_shown(reader, "docs/quickstart/matrix.md")
        assert made.startswith("@carol:localhost")

    def read_the_readme(self) -> None:
        """Type what README.md says of Matrix."""
        swaps = {
            "matrix user alice ": "matrix user alice --password-stdin <<< wonderland ",
            # Where it writes without settings, beside what this reader has.
            "example.org": f"example.org --output {self._folder}/tarry-data/registration.yaml",
        }
        (self._folder / "tarry-data").mkdir()
        reader = Reader(self._folder / "readme", swaps, **self._given())
        (block,) = (one for one in runnable("README.md") if "tarry matrix" in one.text)
        told = reader.run(block).replace(f"{self._folder}/", "").replace(self.url, "http://127.0.0.1:8008")
        shown = output_below(block)
        assert shown is not None
        assert shows(shown, told), told

    def read_about_calls(self) -> None:
        """Type what examples/element_call_leave says, until its program has joined."""
        swaps = {
            "tarry matrix user alice": "tarry matrix user erin --password-stdin <<< wonderland",
            '"alice"': '"erin"',
            '"…"': '"wonderland"',
            "http://127.0.0.1:8008": self.url,
            "npm install matrix-js-sdk@43": f"ln -s {modules()}/node_modules node_modules",
            "node leave.mjs": f"node --import {shlex.quote(WITH_RESOLVERS)} leave.mjs",
        }
        reader = Reader(self._folder / "caller", swaps, **self._given())
        self._add_jq(reader)
        shutil.copytree(ROOT / "examples/element_call_leave", reader.folder / "examples/element_call_leave")
        (block,) = runnable("examples/element_call_leave/README.md")
        with reader.started(block) as started:
            # The library logs its requests in between.
            while started.line() != "joined":
                continue

    def _given(self) -> dict[str, str]:
        return {name: value for name, value in self._settings.items() if name.startswith("TARRY_")}

    @staticmethod
    def _add_jq(reader: Reader) -> None:
        """A stand-in for jq, with the little of it that these pages use."""
        jq = reader.folder / ".venv" / "bin" / "jq"
        jq.write_text(f"#!{sys.executable}\nimport json, sys; print(json.load(sys.stdin)[sys.argv[2][1:]])\n")
        jq.chmod(0o755)

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=90)


@pytest.mark.crash
async def test_up_starts_a_private_homeserver_and_everything_works(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    up = Up(tmp_path)
    try:

        async def answers() -> bool:
            up.said()
            try:
                return (await http.get(f"{up.url}{CLIENT}/versions")).is_success
            except httpx.TransportError:
                return False

        await until(answers, 120)
        assert f"Matrix clients connect to {up.url}" in up.said()
        up.read_the_page()
        up.read_the_readme()
        up.read_about_calls()
        again = up.user("alice", "wonderland")
        assert (again.returncode, "already taken" in again.stderr) == (6, True), again.stderr
        login = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": "alice"},
            "password": "wonderland",
        }
        alice = Person(http, up.url, (await http.post(f"{up.url}{CLIENT}/v3/login", json=login)).json())
        room_id = await alice.create_room()
        await alice.delay(room_id, text("out of the box"), ms=100)
        assert (await alice.arrived(room_id))[0]["content"] == text("out of the box")
    finally:
        code = up.stop()
    assert code == 0
    # No process of it is left: nobody listens where the homeserver did.
    with pytest.raises(httpx.TransportError):
        await http.get((up.homeserver / "address").read_text())
