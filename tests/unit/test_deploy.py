"""The files in deploy/ name what there is: commands, settings, metrics and files."""

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app
from tarry.config import load
from tests.documents import runnable
from tests.processes import ROOT
from tests.serving import serving

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "tarry.service"
CONTAINER = DEPLOY / "container" / "Containerfile"


def unit() -> configparser.RawConfigParser:
    # An option may stand several times, as systemd has it; the last one is enough here.
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_starts_a_command_that_there_is_and_gives_it_time_to_stop() -> None:
    service = unit()["Service"]
    program, command, *options = service["ExecStart"].split()
    assert Path(program).name == "tarry"
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    for option in (one for one in options if one.startswith("--")):
        assert option in shown
    drain_ms = load(environment={}).config.http.drain_ms
    # The listener, attempts under way and the registry each have their time.
    assert int(service["TimeoutStopSec"]) * 1000 >= 2 * drain_ms + 20_000


def test_the_unit_gives_away_nothing_that_it_does_not_need() -> None:
    service = unit()["Service"]
    for option in (
        "NoNewPrivileges",
        "PrivateDevices",
        "PrivateTmp",
        "ProtectHome",
        "ProtectKernelModules",
        "RestrictNamespaces",
    ):
        assert service[option] == "yes", option
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"], service["User"]) == (
        "strict",
        "",
        "tarry",
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    # The program is not installed on the machine that runs the test.
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text().replace("/opt/tarry/bin/tarry", "/bin/true").replace("User=tarry", "User=root")
    )
    said = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert "tarry.service" not in said.stderr, said.stderr


def test_the_container_file_names_files_and_settings_that_there_are() -> None:
    text = CONTAINER.read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    variables = dict(re.findall(r"(TARRY_\w+)=(\S+)", text))
    variables.pop("TARRY_CONFIG")
    secret = {"TARRY_TOKENS": '[{"name": "a", "token": "long-enough", "roles": ["admin"]}]'}
    config = load(environment=variables | secret).config
    doors = (config.http, config.doors.matrix, config.doors.dapr, config.doors.pulsar)
    assert (config.data, {door.host for door in doors}) == ("/data", {"0.0.0.0"})
    exposed = re.search(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert exposed is not None
    assert {int(port) for port in exposed[1].split()} == {config.doors.dapr.grpc_port} | {
        door.port for door in doors
    }
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE)


def test_the_container_file_is_used_as_its_page_says() -> None:
    (block,) = runnable("docs/operations/deploy.md")
    commands = [line.removeprefix("#").strip() for line in CONTAINER.read_text().splitlines()]
    for line in block.text.splitlines():
        assert line.strip() in commands


async def test_the_grafana_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    board: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tarry.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"\b(?:tarry|process)_\w+", target["expr"])
    }
    assert len(asked) > 20
    documented = (ROOT / "docs" / "operations" / "metrics.md").read_text()
    async with serving(tmp_path / "data") as served:
        told = (await served.client.get("/metrics")).text
    for name in asked:
        plain = re.sub(r"_(bucket|count|sum)$", "", name)
        assert f"`{plain}`" in documented or (name.startswith("process_") and f"\n{name} " in told), name
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    # Nothing overlaps.
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in board["panels"]
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
