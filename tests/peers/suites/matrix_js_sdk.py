"""matrix-js-sdk from npm: a program of ours that makes it do all that it can about delayed events, in front of a Synapse."""

import json
import shutil
from pathlib import Path
from typing import Final

import httpx
import msgspec

from tests.peers.matrix import Account, Stage, lacking, staged
from tests.peers.suite import Case
from tests.peers.workplace import Workplace

PROGRAM: Final = Path(__file__).parents[1] / "js" / "delayed_events.mjs"
WITHIN_S: Final = 600


def read_cases(output: str) -> list[Case]:
    """The cases that the program told, one a line; whatever else is said between them is passed over."""
    told = [json.loads(line) for line in output.splitlines() if line.startswith('{"name"')]
    return [Case(one["name"], "passed" if one["passed"] else "failed", one.get("said", "")) for one in told]


class MatrixJsSdk:
    """See `Suite`."""

    name = "matrix-js-sdk"
    title = "matrix-js-sdk: every call about delayed events, and MatrixRTC"
    version = "43.0.0"
    programs = ("node", "npm")
    minutes = 2

    def lacking(self) -> str | None:
        """A Synapse that can be installed."""
        return lacking()

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Install the library, start the homeserver and the door, and run the program."""
        modules = self._modules(workplace)
        with staged(workplace) as stage:
            account = stage.register()
            given = {**msgspec.to_builtins(account), "url": stage.url, "room_id": _room(stage, account)}
            done = workplace.command("node", PROGRAM, modules, json.dumps(given), only, within_s=WITHIN_S)
        cases = read_cases(done.stdout)
        if done.returncode:
            cases.append(Case("the program ends", "failed", done.stdout[-2000:]))
        return cases

    def _modules(self, workplace: Workplace) -> Path:
        """The folder with the library."""
        folder = workplace.cache / self.version
        if not (folder / "node_modules" / "matrix-js-sdk").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{"private": true}')
            workplace.must("npm", "install", "--silent", f"matrix-js-sdk@{self.version}", cwd=folder)
        return folder


def _room(stage: Stage, account: Account) -> str:
    """A room in which its maker may send call memberships."""
    answer = httpx.post(
        f"{stage.url}/_matrix/client/v3/createRoom",
        json={"preset": "public_chat"},
        headers={"Authorization": f"Bearer {account.access_token}"},
        timeout=60,
        trust_env=False,
        verify=False,
    )
    answer.raise_for_status()
    return str(answer.json()["room_id"])


SUITE: Final = MatrixJsSdk()
