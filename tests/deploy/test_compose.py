"""deploy/compose: the server runs as the file says, and Prometheus and Grafana find what they are told of."""

import os
import secrets
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.box import Contained, boxed, image
from tests.processes import ROOT

FOLDER: Final = ROOT / "deploy" / "compose"


def services() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def mounts(service: Any) -> dict[str, Path]:
    """The files of this folder that a service sees, by their place inside."""
    binds = (volume.split(":") for volume in service["volumes"] if volume.startswith("."))
    return {place: (FOLDER / source).resolve() for source, place, _ in binds}


def test_everything_is_published_on_loopback_alone_and_has_no_rights() -> None:
    for name, service in services().items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name
        assert all(":" in service["image"] for service in services().values() if "build" not in service)


def test_every_file_that_is_mounted_is_there() -> None:
    for service in services().values():
        for source in mounts(service).values():
            assert source.is_file(), source


def test_the_server_runs_as_the_file_says(tmp_path: Path) -> None:
    service = services()["tarry"]
    token = secrets.token_hex(32)
    (tmp_path / "operations").write_text(token + "\n")
    places = {f"/run/secrets/{name}": tmp_path / name for name in service["secrets"]}
    assert service["read_only"]
    made = image()
    contained = Contained(
        made["arguments"],
        # Spark takes its time, and nothing here waits for it.
        made["environment"] | {"TARRY_PIPELINE__ENABLED": "false", "TARRY_LEDGER__SEGMENT_BYTES": "1048576"},
        mounts(service) | places,
        {
            volume.split(":")[1]: tmp_path / "data"
            for volume in service["volumes"]
            if volume.startswith("data:")
        },
        made["user"],
    )
    with boxed(contained, tmp_path) as box:
        box.wait("http://127.0.0.1:8080/readyz")
        message = {"destination": "hello", "payload": "x", "delay": "1h"}
        assert box.ask("POST", "http://127.0.0.1:8080/v1/messages", message)[0] == 401
        assert box.ask("POST", "http://127.0.0.1:8080/v1/messages", message, token)[0] == 201
        # What Prometheus is told to scrape.
        scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
        (target,) = (
            target for one in scraped for part in one["static_configs"] for target in part["targets"]
        )
        host, port = target.split(":")
        assert host in services()
        status, figures = box.ask("GET", f"http://127.0.0.1:{port}/metrics")
        assert (status, "\ntarry_ready 1.0\n" in figures) == (200, True)
        assert box.stop(int(service["stop_grace_period"].removesuffix("s"))) == 0
    assert os.stat(tmp_path / "data" / "id.key").st_uid == 10001


def test_grafana_is_given_our_dashboard_and_the_prometheus_beside_it() -> None:
    grafana = services()["grafana"]
    inside = mounts(grafana)
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services()
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards.yaml").read_text())["providers"]
    boards = [place for place in inside if place.startswith(provider["options"]["path"] + "/")]
    assert [inside[place] for place in boards] == [ROOT / "deploy" / "grafana" / "tarry.json"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in boards
    rules = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"]
    assert {f"/etc/prometheus/{name}" for name in rules} <= set(mounts(services()["prometheus"]))
